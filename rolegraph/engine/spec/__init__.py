"""Language of specs: pydantic models of the YAML file, the loader, and diagnostics.

A check in another package reports a `Finding`; `LoadedSpec` adds the place in the file to it. The stub beside
this file lists the names; each is imported on first use.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
