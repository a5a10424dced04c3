"""Kinds of vocabulary items (parsers, rewards, …), their registries, and the calls of items in specs.

A package that adds items imports this package and `rolegraph.engine.records`, and nothing else of the engine.
The stub beside this file lists the public names.
"""

from rolegraph.engine.lazily import names_of
from rolegraph.engine.vocabulary import items as items  # fills the registries
from rolegraph.engine.vocabulary import loss as loss

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
