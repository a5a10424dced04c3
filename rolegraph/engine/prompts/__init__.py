"""Prompts: lookup of templates, checks of their syntax trees, rendering in a sandbox, and chat formats.

The stub beside this file lists the names. Each is imported when it is first used, because checking a spec
needs few of them.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
