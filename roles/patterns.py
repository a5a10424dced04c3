"""Regular expressions from a spec, in an engine whose time and memory are bounded (RE2).

A spec may come from a stranger and the text from a model: no pattern may take the process down, neither when
it is compiled nor when it searches. RE2's time is linear in the text; in exchange it has no lookarounds and
no backreferences.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

from engine.limits.answers import PATTERN_BYTES, PATTERN_GROUPS, PATTERN_TEXT


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
    if len(text) > PATTERN_TEXT.most:
        raise ValueError(f"a pattern of {len(text):,} characters is too long; at most {PATTERN_TEXT}")
    re2: Any = import_module("re2")  # it has no type stubs
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES.most
    options.dot_nl = True
    options.case_sensitive = not ignore_case
    try:
        compiled = cast("Pattern", re2.compile(text, options))
    except re2.error as error:
        said = error.args[0]
        said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        hint = "; RE2 has no lookarounds" if "perl operator" in said else ""
        hint += f"; at most {PATTERN_BYTES}" if "too large" in said else ""
        raise ValueError(f"{text!r} is not a regular expression: {said}{hint}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not valid Unicode") from error
    if compiled.groups > PATTERN_GROUPS.most:
        raise ValueError(f"{text!r} has {compiled.groups} groups; at most {PATTERN_GROUPS}")
    return compiled
