"""Public Python API of Rolegraph: the names of `import rolegraph as rg`. The command line is built on them.

The stub beside this file lists each name with its module. A name is imported when it is first used, so that
importing the package costs almost nothing.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
