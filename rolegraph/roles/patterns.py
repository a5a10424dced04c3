"""Regular expressions of a spec, in an engine with bounded time and memory (RE2).

The pattern comes from an untrusted spec and the text from a model, so no pattern may crash or block the
process, neither when it is compiled nor when it searches. RE2's time is linear in the text, and at worst in
the pattern's size, too; `pay` counts each search. RE2 has no lookarounds and no backreferences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol, cast

from rolegraph.engine.limits.answers import PATTERN_BYTES, PATTERN_GROUPS, PATTERN_TEXT, PATTERN_WORK

_MATCH = 500
"""Units of work for making a match object."""


Match = re.Match[str]


class Pattern(Protocol):
    """Compiled pattern of RE2, whose methods are those of `re.Pattern`.

    Searches raise UnicodeEncodeError for text that is not valid Unicode.
    """

    groups: int
    groupindex: dict[str, int]
    programsize: int
    """Number of steps of the compiled pattern, with repetitions written out."""
    search: Callable[[str], Match | None]
    fullmatch: Callable[[str], Match | None]
    finditer: Callable[[str, int], Iterator[Match]]
    """Function from a text and a start position to the matches, from left to right."""


class TooMuchText(ValueError):
    """Error of a text that is too long to search with a pattern."""


def compile_pattern(text: str, *, ignore_case: bool = False) -> Pattern:
    """Compile a pattern; `.` matches line ends, too.

    Args:
        text: The regular expression, in RE2's syntax.
        ignore_case: True to ignore case.

    Raises:
        ValueError: The pattern is invalid or exceeds a limit.
    """
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
        reason = error.args[0]
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        hint = "; RE2 has no lookarounds" if "perl operator" in reason else ""
        hint += f"; at most {PATTERN_BYTES}" if "too large" in reason else ""
        raise ValueError(f"{text!r} is not a regular expression: {reason}{hint}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not valid Unicode") from error
    if compiled.groups > PATTERN_GROUPS.most:
        raise ValueError(f"{text!r} has {compiled.groups} groups; at most {PATTERN_GROUPS}")
    return compiled


def pay(pattern: Pattern, text: str, spent: int = 0) -> int:
    """Add the largest possible work of one search to the work spent before.

    Args:
        pattern: The pattern.
        text: The text to search.
        spent: The work spent before, in units of some 17 ns.

    Returns:
        The sum, in units.

    Raises:
        TooMuchText: The sum exceeds `pattern_work`.
        UnicodeEncodeError: The text is not valid Unicode.
    """
    spent += pattern.programsize * len(text.encode())
    if spent > PATTERN_WORK.most:
        work_text = f"a pattern of {pattern.programsize:,} steps on {len(text):,} characters of text"
        raise TooMuchText(PATTERN_WORK.exceeded(f"{work_text} may take"))
    return spent


def last_match(pattern: Pattern, text: str) -> Match | None:
    """Return the last of the matches from left to right.

    Each match may search the whole rest of the text, as `a(.*z)?` does. If finding all matches exceeds half
    of `pattern_work`, the search continues from the end, in longer and longer parts of the text. A match at
    the very beginning of a part does not count then, because it may have begun earlier.

    Args:
        pattern: The pattern.
        text: The text to search.

    Returns:
        The match; None without a match.

    Raises:
        TooMuchText: The search exceeds `pattern_work`.
        UnicodeEncodeError: The text is not valid Unicode.
    """
    work_per_character = pay(pattern, text) / max(1, len(text))
    match, work_left = None, PATTERN_WORK.most // 2

    def through(begin: int) -> bool:
        """Set `match` to the last match from `begin` on; return False if `pattern_work` is used up before."""
        nonlocal match, work_left
        for match in pattern.finditer(text, begin):
            work_left -= _MATCH + int(work_per_character * (len(text) - match.end()))
            if work_left < 0:
                return False
        return True

    if through(0):
        return match
    search_start = match.start() if match is not None else 0
    length, work_left = 500, PATTERN_WORK.most // 2
    while search_start < (begin := len(text) - length):
        match = None
        if not through(begin):
            break
        if match is not None and match.start() > begin:
            return match
        work_left -= int(work_per_character * length)
        length *= 2
    raise TooMuchText(PATTERN_WORK.exceeded(f"to find the last match in {len(text):,} characters may take"))
