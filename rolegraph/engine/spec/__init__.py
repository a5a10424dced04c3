"""The language: models of what a spec may say, the loader, and diagnostics.

A check elsewhere reports a `Finding`; the loader's source gives it its place in the file. The stub beside
this file lists the names; each is imported on first use.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
