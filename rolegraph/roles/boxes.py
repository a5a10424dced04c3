r"""Answers in LaTeX's `\boxed{…}`; the last box counts, as in tinker-cookbook's math_rl."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\f?box(?:ed)?\b\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(?:[.,][0-9]+)*")
_PLACEHOLDER = re.compile(r"[\s.…]*|\\(?:ldots|dots|cdots)")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf)\{([^{}]*)\}")


def last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}` or `\fbox{…}` of a text; None without such a box.

    A box that is empty or contains dots only mentions the form and does not count.

    Raises:
        ValueError: The last box has no end.
    """
    for match in reversed([*_BOX.finditer(text)]):
        content = _content(text, match.end())
        if content is not None and not _PLACEHOLDER.fullmatch(content):
            inner = _TEXT.fullmatch(content)
            return inner[1].strip() if inner else content
    return None


def _content(text: str, start: int) -> str | None:
    r"""Return the text between balanced braces at `start`, or a bare number as in `\boxed 5`; None if `start`
    has neither."""
    if text[start : start + 1] != "{":
        bare = _NUMBER.match(text, start)
        return None if bare is None else bare[0]
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start + 1 : brace.start()].strip()
    raise ValueError("the last box has no end")
