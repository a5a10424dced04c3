"""Execution of a Plan: order of the nodes, turns, rewards, and the stream of episodes.

The stub beside this file lists the names. A name is imported when it is first used, since an isolation worker
needs one module only.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
