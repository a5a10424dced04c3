"""What somebody else's code gave or raised, made fit for a record and for a message."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits.records import LINE_SHOWN, MESSAGE_TEXT
from rolegraph.engine.records import check_recordable
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.records.plain import LARGEST

FOREIGN_ERRORS = (Exception, SystemExit)
"""What somebody else's code may raise and end no more than its own part; `sys.exit` in it ends no run."""


def describe_error(error: BaseException) -> str:
    """Type and words of an error; only its type where it has no words. As much of them as a person reads."""
    try:
        said = str(error)[: MESSAGE_TEXT.most]
    except Exception:  # their code again
        said = ""
    said = said.encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def short_repr(value: object) -> str:
    """A value from elsewhere as it stands in a message."""
    text = repr(value)
    return text if len(text) <= LINE_SHOWN.most else f"{text[: LINE_SHOWN.most - 1]}…"


def plain_json(value: object, limit: Limit) -> Any:
    """The value as JSON has it, as an episode holds it: a tuple is a list, a date is text.

    Raises ValueError for what has no such form, such as an object of their own or a list in itself, and for
    what is longer than the limit, in characters of text or bytes of JSON.
    """
    if isinstance(value, str):
        if len(value) > limit.most:
            raise ValueError(limit.exceeded("its text has"))
        return str(value)
    try:
        found = to_jsonable_python(value, inf_nan_mode="constants")
        check_recordable(found)
        length = len(json_line(found))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if length > limit.most:
        raise ValueError(limit.exceeded("its JSON has"))
    return found


def finite_number(value: Any, what: str) -> float:
    """A number that sums and means can be made of; raises ValueError, whose message `what` begins."""
    if type(value) is float and -LARGEST <= value <= LARGEST:
        return value
    try:
        if isinstance(value, str | bytes):  # which float() would read
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what} {type(value).__name__}, which is no number") from None
    if not abs(found) <= LARGEST:
        raise ValueError(f"{what} {found}")
    return found
