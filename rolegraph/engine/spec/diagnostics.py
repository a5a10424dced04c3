"""Faults and warnings: `Finding` at a path of a spec, `Diagnostic` at a line and column of a file.

Checks report findings at paths such as `("roles", "judge", "needs")`; the loader, which knows the position of
each path, turns them into diagnostics.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import yaml

from rolegraph.engine.errors import printable, printable_line
from rolegraph.engine.limits.records import LINE_SHOWN, MESSAGE_TEXT

Path = tuple[str | int, ...]
"""Keys and list positions from the top of a spec."""

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault or warning at a path of the spec."""

    path: Path
    message: str
    expected: str = ""
    hint: str = ""
    severity: Severity = "error"
    word: str = ""
    """Scalar or key at or below `path` to point at; empty to point at `path` itself."""
    offset: int | None = None
    """Position, from 0, in the string at `path`, at or after which the first `word` is at fault."""
    at_key: bool = False
    """True to point at the key, False at its value."""
    place: Place | None = None
    """Place outside the spec, such as a line of a template; None to look up `path`."""
    covers: tuple[Path, ...] = ()
    """For a fault: further paths at fault, such as the other edges of a cycle."""
    rests_on: tuple[Path, ...] = ()
    """Paths that the finding was concluded from: with a fault at or around one it is left out."""

    def at(self, place: Place) -> Diagnostic:
        """Return the diagnostic of this finding at `place`."""
        return Diagnostic(self.message, place, self.expected, self.hint, self.severity)


@dataclass(frozen=True, slots=True)
class Place:
    """A range of one line of a file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    text: str
    """Text of the whole line."""
    width: int = 1
    """Number of characters that the carets underline."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault or warning with its place."""

    message: str
    place: Place
    expected: str = ""
    hint: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        """Return several lines: place and message, the line with carets, the expected value, a hint."""
        place = self.place
        number = str(place.line)
        gutter = " " * len(number)
        shown, before = _excerpt(place)
        width = max(1, min(place.width, len(shown) - before))
        lines = [
            f"{_shortened(place.file)}:{place.line}:{place.column}: "
            f"{self.severity}: {_shortened(self.message)}",
            f"  {number} | {shown}",
            f"  {gutter} | {' ' * before}{'^' * width}",
        ]
        if self.expected:
            lines.append(f"  {gutter} = expected: {_shortened(self.expected)}")
        if self.hint:
            lines.append(f"  {gutter} = hint: {_shortened(self.hint)}")
        return "\n".join(lines)


def _shortened(text: str) -> str:
    """Return a text with control characters escaped, and cut to the length limit of a message."""
    text = printable(text)
    return text if len(text) <= MESSAGE_TEXT.most else f"{text[: MESSAGE_TEXT.most - 1]}…"


def _excerpt(place: Place) -> tuple[str, int]:
    """Return the part of a place's line to show, and the offset of the place in that part."""
    start = max(0, place.column - 1 - LINE_SHOWN.most // 2) if len(place.text) > LINE_SHOWN.most else 0
    end = start + LINE_SHOWN.most
    before, after = "…" if start else "", "…" if end < len(place.text) else ""
    shown = printable_line(place.text[start:end])
    return f"{before}{shown}{after}", place.column - 1 - start + len(before)


class SourceLines:
    """Lines of a file, split at newlines only, as editors do; positions count from 0."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = text.removesuffix("\n").split("\n")
        self.starts = [0, *accumulate(len(line) + 1 for line in self.lines[:-1])]

    def place(self, position: int, width: int = 1) -> Place:
        """Return the place of `width` characters at `position`, cut at the end of the line."""
        line = bisect_right(self.starts, position) - 1
        text = self.lines[line]
        column = min(position - self.starts[line], len(text))
        return Place(self.file, line + 1, column + 1, text, max(1, min(width, len(text) - column)))

    def position(self, place: Place) -> int:
        """Return the position in the file, from 0, at which a place of the same file begins."""
        return self.starts[place.line - 1] + place.column - 1


def point_at(file: str, source: str, offset: int, word: str) -> Place:
    """Return the place of the first `word` at or after position `offset` of the text `source`.

    Without such a word it is the place of the first character in the line at `offset`.
    """
    lines = SourceLines(file, source)
    position = source.find(word, offset) if word else -1
    if position >= 0:
        return lines.place(position, len(word))
    place = lines.place(offset)
    return replace(place, column=len(place.text) - len(place.text.lstrip()) + 1)


_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""Pattern of an anchor and a tag before the value."""
_HEADER = re.compile(r"[|>].*\n?")
_CHARACTER = re.compile(r"\S")
_IN_QUOTES = {
    "'": re.compile(r"''|\S"),
    '"': re.compile(r"\\(?:x..|u[dD][89abAB]..\\u[dD][c-fC-F]..|u.{4}|U.{8}|\s+|.)|\S", re.DOTALL),
}


def place_within(value: Place, source: str, text: str, offset: int, word: str) -> Place:
    """Return the place in a file of the first `word` at or after position `offset` of a scalar.

    Without such a word it is the place of the scalar's text in the line at `offset`.

    Args:
        value: Place of the scalar in the file.
        source: Text of the file.
        text: Value of the scalar.
        offset: Position in `text`, from 0.
        word: Word to look for.
    """
    index = text.find(word, offset) if word else -1
    nth = sum(not character.isspace() for character in text[: index if index >= 0 else offset])
    lines = SourceLines(value.file, source)
    position = start = lines.position(value)
    for count, position in enumerate(_characters(source, start)):  # noqa: B007  # ends at the last where there are fewer
        if count == nth:
            break
    place = lines.place(position, len(word))
    if index >= 0:
        return place
    if place.line == value.line:
        return value
    shown = place.text.strip()
    return replace(place, column=place.text.index(shown) + 1, width=len(shown))


def _characters(source: str, start: int) -> Iterator[int]:
    """Yield the positions in the file of each character of a YAML scalar that is not white space.

    An escaped character is at the position of its escape.
    """
    start = _end_of(_PROPERTIES, source, start)
    quote = source[start : start + 1]
    if quote in _IN_QUOTES:
        for unit in _IN_QUOTES[quote].finditer(source, start + 1):
            escaped = quote == '"' and unit[0].startswith("\\")
            if not escaped or yaml.safe_load(f'"{unit[0]}"').strip():
                yield unit.start()
        return
    yield from (unit.start() for unit in _CHARACTER.finditer(source, _end_of(_HEADER, source, start)))


def _end_of(pattern: re.Pattern[str], source: str, start: int) -> int:
    match = pattern.match(source, start)
    return match.end() if match else start
