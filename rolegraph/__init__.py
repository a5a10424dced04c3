"""Rolegraph in Python: what `import rolegraph as rg` gives, and all that the command line is made of.

The stub beside this file says what there is and where each name comes from. A name is imported when it is
first used, so that importing this costs next to nothing.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
