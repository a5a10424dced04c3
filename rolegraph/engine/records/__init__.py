"""Records of a run: Episode > Trajectory > Step, their identities, and their files.

The stub beside this file lists the names; each is imported on first use, because most commands need few of
them.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
