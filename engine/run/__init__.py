"""Runs a Plan: what may start when, one call after the other, what it earns, and the stream of episodes.

The stub beside this file says what there is: a name is imported when it is first used, for a worker that
scores an answer needs one module of it.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
