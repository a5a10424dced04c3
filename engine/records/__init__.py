"""What a run leaves: Episode > Trajectory > Step, who and which they are, and how they lie on disk.

The stub beside this file says what there is: a name is imported when it is first used, for whoever only
checks a spec needs few of them.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
