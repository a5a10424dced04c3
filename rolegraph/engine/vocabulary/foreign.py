"""Values of third-party code, converted for records and messages."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits.records import LINE_SHOWN
from rolegraph.engine.records import check_recordable
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.records.plain import LARGEST_GIVEN


def short_repr(value: object) -> str:
    """Return a value's `repr`, cut to the length that a line of a message may have."""
    text = repr(value)
    return text if len(text) <= LINE_SHOWN.most else f"{text[: LINE_SHOWN.most - 1]}…"


def plain_json(value: object, limit: Limit) -> Any:
    """Convert a value to JSON values, as an episode records it: a tuple becomes a list, a date becomes text.

    Args:
        value: Any value.
        limit: Largest number of characters of a text, or of bytes of another value's JSON.

    Raises:
        ValueError: The value has no JSON form, such as an object of a package's own class or a list that
            holds itself, or it exceeds the limit.
    """
    if isinstance(value, str):
        if len(value) > limit.most:
            raise ValueError(limit.exceeded("its text has"))
        return str(value)
    try:
        data = to_jsonable_python(value, inf_nan_mode="constants")
        check_recordable(data)
        length = len(json_line(data))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if length > limit.most:
        raise ValueError(limit.exceeded("its JSON has"))
    return data


def finite_number(value: Any, subject: str) -> float:
    """Convert a value to a finite float, so that sums and means can be computed.

    Args:
        value: A number, or an object that `float` converts; text is refused.
        subject: Beginning of the error's message, such as "the reward is".

    Raises:
        ValueError: The value is no number, or is not finite.
    """
    try:
        if isinstance(value, str | bytes):  # which float() would read
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{subject} {type(value).__name__}, which is no number") from None
    if not abs(number) <= LARGEST_GIVEN:
        raise ValueError(f"{subject} {number}")
    return number
