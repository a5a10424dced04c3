"""Every limit on what others' input may cost: its name, its size, and why it stands where it does.

A limit is data, so that a message can name the one that was hit and a person can read them all. Sizes are
chosen to let the largest honest input through several times over. One file for each thing that comes from
others; what an option of an item may be is said by its own type, and how much of a run a page has room for
is the page's own.
"""

from rolegraph.engine.limits import answers, prompts, records, service, specs, tools
from rolegraph.engine.limits.limit import Limit, limits_of_module

LIMITS: tuple[Limit, ...] = tuple(
    limit
    for module in (specs, prompts, answers, tools, records, service)
    for limit in limits_of_module(vars(module))
)
"""All of them, file by file."""

__all__ = ["LIMITS", "Limit"]
