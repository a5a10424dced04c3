"""Walks over JSON values: mappings, lists, texts, numbers, booleans and None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

DataPath = tuple[str | int, ...]
"""Keys and list positions from the top of a value to a part of it."""


def walk_paths(value: Any, path: DataPath = ()) -> Iterator[tuple[DataPath, Any]]:
    """Yield (path, value) of a JSON value and of everything inside it, in its order.

    Args:
        value: The value.
        path: Path of the value.
    """
    yield path, value
    inside: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        inside = cast("Mapping[str, Any]", value).items()
    elif isinstance(value, list):
        inside = enumerate(cast("list[Any]", value))
    for key, inner in inside:
        yield from walk_paths(inner, (*path, key))


def rewritten(value: Any, write: Callable[[str], str]) -> Any:
    """Return a copy of a JSON value with `write` applied to every text in it, keys included."""
    match value:
        case str():
            return write(value)
        case dict():
            fields = cast("dict[str, Any]", value)
            return {rewritten(key, write): rewritten(field, write) for key, field in fields.items()}
        case list() | tuple():
            return [rewritten(part, write) for part in cast("Sequence[Any]", value)]
        case _:
            return value
