"""JSON of servers, decoded into typed records in one pass.

msgspec builds no objects for fields that a record lacks. An answer of 1,000 tokens has some 30,000 JSON
values of which 2,000 are kept; Python's garbage collector would walk a tree of all of them again and again.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from pydantic_core import from_json

T = TypeVar("T")


def decode(content: bytes, kind: type[T]) -> T:
    """Decode a JSON text into a record; fields that the record does not have are skipped.

    Args:
        content: The text, in UTF-8. Beyond JSON it may have NaN and infinities, which Python's servers write.
        kind: A msgspec Struct.

    Raises:
        ValueError: The text is no JSON, or a field has another type than the record says.
    """
    try:
        content.decode()  # msgspec does not check what it skips
        return cast("T", _decoder(kind).decode(content))
    except (ValueError, RecursionError):
        return converted(from_json(content), kind)


def converted(value: object, kind: type[T]) -> T:
    """Convert a decoded JSON value to a record; raises ValueError with the place of the field at fault."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fault, _, path = str(error).partition(" - at `$")
        path = path.strip(".`").replace("[", ".").replace("]", "")
        raise ValueError(f"{path}: {fault}" if path else fault) from error


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
