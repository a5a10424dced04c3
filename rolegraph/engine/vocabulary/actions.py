"""Actions as items declare them before a run: their shape, and the values that others read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Shape = Mapping[str, Any]
"""JSON Schema of an action; empty if the item declares none."""
ACTION_OF = "x-rolegraph-action-of"
"""Key of a shape that equals the shape of another role's action. Its value is the role's name in `needs`, or
None for all needed roles."""
TEXT: Shape = {"type": "string"}
NUMBER: Shape = {"type": "number"}
BOOLEAN: Shape = {"type": "boolean"}


def with_word(shape: Shape, word: object) -> Shape:
    """Return the shape of some words with one more word; any other shape is returned unchanged."""
    if "enum" not in shape or not isinstance(word, str) or not word:
        return shape
    return {**shape, "enum": [*dict.fromkeys((*shape["enum"], word))]}


class ActionRead(NamedTuple):
    """Value that a reward or a tool reads from an action."""

    role: str | None
    """Role of the action; for a tool, the role's name in `needs`. None for the action that is rewarded."""
    path: str = ""
    """Keys and list positions, such as `scores.0`; empty for the whole action."""
    is_number: bool = False
    """True if the value must be a number."""
    place: tuple[int | str, ...] = ()
    """Path inside the item's call to the part that reads the value, such as a term of a sum."""
