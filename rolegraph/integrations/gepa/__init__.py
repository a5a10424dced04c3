"""Prompts that evolve by reflection, with GEPA."""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
