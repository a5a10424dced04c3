"""Regular expressions from a spec, in an engine whose time and memory are bounded (RE2).

A spec may come from a stranger and the text from a model: no pattern may take the process down, neither when
it is compiled nor when it searches. RE2's time is linear in the text; in exchange it has no lookarounds and
no backreferences.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

MAX_PATTERN = 1000
"""Characters of a pattern."""
MAX_GROUPS = 20
MAX_MEMORY = 1 << 20
"""Bytes for the compiled pattern; RE2 refuses one that needs more."""


class Match(Protocol):
    """What a pattern found."""

    def group(self, group: int | str = 0, /) -> str | None:
        """The text of a group; None where the group took no part."""
        ...


class Pattern(Protocol):
    """A compiled pattern. Text that is not valid Unicode raises UnicodeEncodeError."""

    groups: int
    groupindex: dict[str, int]

    def search(self, text: str, /) -> Match | None:
        """The first match."""
        ...

    def fullmatch(self, text: str, /) -> Match | None:
        """The match of all of the text."""
        ...

    def finditer(self, text: str, /) -> Iterator[Match]:
        """The matches from left to right."""
        ...


def compile_pattern(text: str, *, ignore_case: bool = False) -> Pattern:
    """The pattern, with `.` matching line ends too; raises ValueError with what is wrong with it."""
    if len(text) > MAX_PATTERN:
        raise ValueError(f"a pattern of {len(text):,} characters is too long; the limit is {MAX_PATTERN:,}")
    re2: Any = import_module("re2")  # it has no type stubs
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    options.dot_nl = True
    options.case_sensitive = not ignore_case
    try:
        compiled = cast("Pattern", re2.compile(text, options))
    except re2.error as error:
        said = error.args[0]
        said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        hint = "; RE2 has no lookarounds" if "perl operator" in said else ""
        raise ValueError(f"{text!r} is not a regular expression: {said}{hint}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not valid Unicode") from error
    if compiled.groups > MAX_GROUPS:
        raise ValueError(f"{text!r} has {compiled.groups} groups; the limit is {MAX_GROUPS}")
    return compiled
