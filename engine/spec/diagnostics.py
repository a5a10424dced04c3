"""Faults as a person should read them: where, what, what was expected, and how to mend it.

Checks report a `Finding` at a path of the spec (`("roles", "judge", "needs")`); the loader, which knows
where each path was written, turns it into a `Diagnostic` with file, line and column.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from rolegraph.engine.errors import printable, printable_line
from rolegraph.engine.limits.records import LINE_SHOWN, MESSAGE_TEXT

Path = tuple[str | int, ...]
"""Keys and list positions from the top of a spec."""

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a check found at a path of the spec."""

    path: Path
    message: str
    expected: str = ""
    hint: str = ""
    severity: Severity = "error"
    word: str = ""
    """A word at or below `path` to point at, where one scalar among several is at fault."""
    offset: int | None = None
    """Inside the text that is the value at `path`: `word` is the first at or behind this position, from 0."""
    at_key: bool = False
    """Point at the key, not at its value."""
    place: Place | None = None
    """Where it stands, if not at `path`: a template has lines of its own."""

    def at(self, place: Place) -> Diagnostic:
        """The same, ready to be shown."""
        return Diagnostic(self.message, place, self.expected, self.hint, self.severity)


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of one line of a file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    text: str
    """The whole line."""
    width: int = 1
    """How many characters the caret underlines."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault or warning, ready to be shown."""

    message: str
    place: Place
    expected: str = ""
    hint: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        """Several lines: the place and message, the line with a caret, what was expected, a hint."""
        place = self.place
        number = str(place.line)
        gutter = " " * len(number)
        shown, before = _around(place)
        width = max(1, min(place.width, len(shown) - before))
        lines = [
            f"{_told(place.file)}:{place.line}:{place.column}: {self.severity}: {_told(self.message)}",
            f"  {number} | {shown}",
            f"  {gutter} | {' ' * before}{'^' * width}",
        ]
        if self.expected:
            lines.append(f"  {gutter} = expected: {_told(self.expected)}")
        if self.hint:
            lines.append(f"  {gutter} = hint: {_told(self.hint)}")
        return "\n".join(lines)


def _told(text: str) -> str:
    """As much of a text as a person reads."""
    text = printable(text)
    return text if len(text) <= MESSAGE_TEXT.most else f"{text[: MESSAGE_TEXT.most - 1]}…"


def _around(place: Place) -> tuple[str, int]:
    """What is shown of a place's line, and how much of that stands before the place."""
    start = max(0, place.column - 1 - LINE_SHOWN.most // 2) if len(place.text) > LINE_SHOWN.most else 0
    end = start + LINE_SHOWN.most
    before, after = "…" if start else "", "…" if end < len(place.text) else ""
    shown = printable_line(place.text[start:end])
    return f"{before}{shown}{after}", place.column - 1 - start + len(before)


class SourceLines:
    """A file's text by its lines, which end where an editor ends them. Positions in it count from 0."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = text.removesuffix("\n").split("\n")
        self.starts = [0, *accumulate(len(line) + 1 for line in self.lines[:-1])]

    def place(self, position: int, width: int = 1) -> Place:
        """The place of as much of a stretch of the text as stands in its first line."""
        line = bisect_right(self.starts, position) - 1
        text = self.lines[line]
        column = min(position - self.starts[line], len(text))
        return Place(self.file, line + 1, column + 1, text, max(1, min(width, len(text) - column)))

    def position(self, place: Place) -> int:
        """Where a place of this file begins."""
        return self.starts[place.line - 1] + place.column - 1


def point_at(file: str, source: str, offset: int, word: str) -> Place:
    """The place of the first `word` at or behind a position of a text.

    Where it is not found, that of the first character in the line.
    """
    lines = SourceLines(file, source)
    found = source.find(word, offset) if word else -1
    if found >= 0:
        return lines.place(found, len(word))
    place = lines.place(offset)
    return replace(place, column=len(place.text) - len(place.text.lstrip()) + 1)
