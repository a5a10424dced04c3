"""Limits on the cost of input from others: each with its name, its size and the reason for it.

A limit is data, so that a message can name it. Sizes let the largest honest input through several times over.
One file for each kind of input; the bounds of an item's option are part of the option's type.
"""

from rolegraph.engine.limits import answers, prompts, records, service, specs, tools
from rolegraph.engine.limits.limit import Limit

LIMITS: tuple[Limit, ...] = tuple(
    value
    for module in (specs, prompts, answers, tools, records, service)
    for value in vars(module).values()
    if isinstance(value, Limit)
)
"""All limits, file by file."""

__all__ = ["LIMITS", "Limit"]
