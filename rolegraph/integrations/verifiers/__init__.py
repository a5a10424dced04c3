"""Specs as environments of verifiers (a library), for packages that `rolegraph eject --verifiers` writes."""
# verifiers is an extra, so it is missing where types are checked.
# pyright: reportUnknownVariableType=false

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
