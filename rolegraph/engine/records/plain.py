"""Checks that a value can be written as JSON and read back, and differences of texts."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import cast

from pydantic_core import to_jsonable_python

from rolegraph.engine.limits.answers import JSON_DEPTH, JSON_DIGITS

LARGEST = 1e100
"""Largest absolute value of a reward or metric in a file; sums and squares of larger ones may overflow."""
LARGEST_GIVEN = 1e90
"""Largest absolute value that a reward, a metric or an environment may return. Sums, differences and weighted
values of such numbers are at most `LARGEST`, so that files with them can be read."""
_BITS = int(JSON_DIGITS.most * math.log2(10))


def check_plain(value: object, levels: int = JSON_DEPTH.most) -> None:
    """Check that a value consists of JSON's types.

    Args:
        value: Value to check.
        levels: Permitted depth of nested lists and mappings.

    Raises:
        ValueError: A number is not finite or too long, a text is not valid Unicode, or the nesting too deep.
        TypeError: A value or key has another type.
    """
    kind = type(value)
    if kind is str:
        cast("str", value).encode()  # a lone surrogate raises
    elif kind is int:
        if cast("int", value).bit_length() > _BITS:
            raise ValueError(f"a whole number is too long; at most {JSON_DIGITS}")
    elif kind is float:
        if not math.isfinite(cast("float", value)):
            raise ValueError(f"{value} is not a number in JSON")
    elif kind is dict or kind is list:
        if levels == 0:
            raise ValueError(f"it is nested too deeply; at most {JSON_DEPTH}")
        members: Iterable[object] = cast("list[object]", value)
        if not members:
            return
        if kind is dict:
            pairs = cast("dict[object, object]", value)
            if other_keys := [key for key in pairs if type(key) is not str]:
                raise TypeError(f"a key is {type(other_keys[0]).__name__}")
            "".join(cast("dict[str, object]", value)).encode()
            members = pairs.values()
        for member in members:
            check_plain(member, levels - 1)
    elif value is not None and kind is not bool:
        raise TypeError(f"{kind.__name__} is not a JSON type")


def check_recordable(value: object) -> None:
    """Raise ValueError unless a value can be written to a record.

    Every text can: an unpaired surrogate is written as a question mark. Tuples are written as lists,
    dataclasses as mappings, dates as text.
    """
    if isinstance(value, str):
        return
    try:
        try:
            check_plain(value)
        except TypeError:
            check_plain(to_jsonable_python(value, inf_nan_mode="constants"))
    except UnicodeError:
        raise ValueError("a text in it is not valid Unicode") from None
    except TypeError as error:
        raise ValueError(str(error)) from None


_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def in_xml(value: object) -> str:
    """Return a value as text in which U+FFFD replaces characters that XML forbids; `<` and `&` are not
    escaped."""
    return _NOT_XML.sub("\ufffd", str(value))


def text_difference(was: str, now: str, name: str, other: str) -> str:
    """Return a unified diff of two texts; empty if they are equal."""
    lines = difflib.unified_diff(was.splitlines(), now.splitlines(), name, other, n=2, lineterm="")
    return "\n".join(lines)
