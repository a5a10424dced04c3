"""Regular expressions from a spec, in an engine whose time and memory are bounded (RE2).

A spec may come from a stranger and the text from a model: no pattern may take the process down, neither when
it is compiled nor when it searches. RE2's time is linear in the text, and at worst in the pattern's size,
too: each search here is paid for with `pay`. In exchange RE2 has no lookarounds and no backreferences.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

from rolegraph.engine.limits.answers import PATTERN_BYTES, PATTERN_GROUPS, PATTERN_TEXT, PATTERN_WORK

_MATCH = 500
"""Units that it takes to say what a match is."""


class Match(Protocol):
    """What a pattern found."""

    def group(self, group: int | str = 0, /) -> str | None:
        """The text of a group; None where the group took no part."""
        ...

    def start(self) -> int:
        """Where it begins in the text."""
        ...

    def end(self) -> int:
        """Where it ends."""
        ...


class Pattern(Protocol):
    """A compiled pattern. Text that is not valid Unicode raises UnicodeEncodeError."""

    groups: int
    groupindex: dict[str, int]
    programsize: int
    """The steps that it was compiled to; repetitions are written out."""

    def search(self, text: str, /) -> Match | None:
        """The first match."""
        ...

    def fullmatch(self, text: str, /) -> Match | None:
        """The match of all of the text."""
        ...

    def finditer(self, text: str, pos: int = 0, /) -> Iterator[Match]:
        """The matches from left to right, from a place of the text on."""
        ...


class TooMuchText(ValueError):
    """A text that a pattern may take too long to search."""


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


def pay(pattern: Pattern, text: str, spent: int = 0) -> int:
    """Units of work, of some 17 ns each, that are spent at most once the text is searched, too.

    Raises TooMuchText where that is too much, and UnicodeEncodeError.
    """
    spent += pattern.programsize * len(text.encode())
    if spent > PATTERN_WORK.most:
        many = f"a pattern of {pattern.programsize:,} steps on {len(text):,} characters of text"
        raise TooMuchText(PATTERN_WORK.exceeded(f"{many} may take"))
    return spent


def last_match(pattern: Pattern, text: str) -> Match | None:
    """The last of the matches from left to right; raises TooMuchText, and UnicodeEncodeError.

    Each match may take a search of all that is left, as `a(.*z)?` does. Where that comes to too much, the
    last one is looked for from the end, in ever longer parts of the text: then a match may not begin such a
    part, for it may have begun before.
    """
    per_character = pay(pattern, text) / max(1, len(text))
    found, left = None, PATTERN_WORK.most // 2

    def through(begin: int) -> bool:
        """Whether the matches from a place on are all looked at."""
        nonlocal found, left
        for match in pattern.finditer(text, begin):
            found = match
            left -= _MATCH + int(per_character * (len(text) - match.end()))
            if left < 0:
                return False
        return True

    if through(0):
        return found
    looked_at = found.start() if found is not None else 0
    length, left = 500, PATTERN_WORK.most // 2
    while looked_at < (begin := len(text) - length):
        found = None
        if not through(begin):
            break
        if found is not None and found.start() > begin:
            return found
        left -= int(per_character * length)
        length *= 2
    raise TooMuchText(PATTERN_WORK.exceeded(f"to find the last match in {len(text):,} characters may take"))
