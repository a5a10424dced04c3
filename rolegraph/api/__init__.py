"""The Python API: jobs, results and settings, which the command line is built on.

The stub beside this file lists the names. A name is imported when it is first used.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
