"""Values that no JSON has, as a package's own code may give them: written as JSON for an input, then made.

`{"$": "bytes"}` in an input stands for a value of `ODD`; `{"$": "raises ValueError"}` for what is raised in
place of giving anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rolegraph.engine.vocabulary import EnvironmentFailure, ToolError


class Silent:
    """It has no words for itself."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def _cycle() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


ODD: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"\xff\x00",
    "set": lambda: {1, "a"},
    "object": object,
    "silent": Silent,
    "cycle": _cycle,
    "deep": _deep,
    "tuple": lambda: (1, (2,)),
    "complex": lambda: 1j,
    "keys": lambda: {1: 2, None: 3, (4, 5): 6},
    "generator": lambda: (x for x in "ab"),
    "class": lambda: dict,
    "long": lambda: "x" * 3_000_000,
    "wide": lambda: [[]] * 100_000,
}
RAISED: dict[str, Callable[[], BaseException]] = {
    "raises ValueError": lambda: ValueError("no \x1b[31m \ud800"),
    "raises KeyError": KeyError,
    "raises ToolError": lambda: ToolError("x" * 9_000),
    "raises EnvironmentFailure": lambda: EnvironmentFailure("the end"),
    "raises RecursionError": RecursionError,
    "raises StopIteration": StopIteration,
    "raises StopAsyncIteration": StopAsyncIteration,
    "raises TimeoutError": TimeoutError,
    "raises MemoryError": MemoryError,
    "raises Silent": lambda: ValueError(Silent()),
    "raises ExceptionGroup": lambda: ExceptionGroup("two", [ValueError(), KeyError("a")]),
}
ODD_ATOMS: list[Any] = [{"$": name} for name in (*ODD, *RAISED)]


def made(text: str) -> Any:
    """The value that a text of JSON stands for; an exception is among what it may hold."""
    return json.loads(text, object_hook=_made)


def _made(value: dict[str, Any]) -> Any:
    name = value.get("$")
    table: dict[str, Callable[[], Any]] = {**ODD, **RAISED}
    return table[name]() if isinstance(name, str) and name in table and len(value) == 1 else value


def given(value: Any) -> Any:
    """The value; raises it where it is an exception."""
    if isinstance(value, BaseException):
        raise value
    return value
