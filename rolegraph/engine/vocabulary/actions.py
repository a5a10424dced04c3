"""Actions as items declare them before a run: their shape, and the values that others read in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Shape = Mapping[str, Any]
"""JSON Schema of an action; empty where nothing is known of it."""
ACTION_OF = "x-rolegraph-action-of"
"""Key of a shape that equals another role's: the role's name among the `needs`, or None for all needed
roles."""
TEXT: Shape = {"type": "string"}
NUMBER: Shape = {"type": "number"}
BOOLEAN: Shape = {"type": "boolean"}


def with_word(shape: Shape, word: object) -> Shape:
    """Return the shape of some words with a further one; any other shape as it is."""
    if "enum" not in shape or not isinstance(word, str) or not word:
        return shape
    return {**shape, "enum": [*dict.fromkeys((*shape["enum"], word))]}


class ActionRead(NamedTuple):
    """Value that a reward or a tool reads in an action."""

    role: str | None
    """Role of the action, for a tool its name among the `needs`; None for the action that is rewarded."""
    path: str = ""
    """Keys and list positions, such as `scores.0`; empty for the whole action."""
    is_number: bool = False
    """True where it must be a number."""
    place: tuple[int | str, ...] = ()
    """Place, inside of the item's call, of the part that reads the value, such as a term of a sum."""
