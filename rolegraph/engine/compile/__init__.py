"""Compilation of a spec to an immutable Plan, or to all its faults.

The stub beside this file lists the names; each is imported on first use.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
