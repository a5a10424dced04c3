"""Faults and warnings: `Finding` at a path of a spec, `Diagnostic` at a line and column of a file.

Checks report findings at paths such as `("roles", "judge", "needs")`; the loader, which knows the position of
each path, turns them into diagnostics.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Literal

import yaml

from rolegraph.engine.errors import Suggestion, printable, printable_line
from rolegraph.engine.limits.records import LINE_SHOWN, MESSAGE_TEXT
from rolegraph.engine.secrets import without_secrets

Path = tuple[str | int, ...]
"""Path of a value in a spec: keys and list positions from the top."""

Severity = Literal["error", "warning"]
Code = Literal[
    "yaml",  # the text is not YAML, or not the YAML of a spec: a duplicate key, a tag
    "version",  # a file of an earlier version of the language
    "override",  # not an override of the command line
    "unknown-key",
    "missing-key",
    "wrong-value",  # not a value that the key takes
    "unknown-name",  # no role, loop, policy, item, field, filter or file has the name
    "template",  # a prompt or an expression
    "item",  # a parser, reward, estimator, tool, environment or data set, and its options
    "data",  # rows and fields
    "workflow",  # edges, loops, tools, metrics and what only holds for the spec as a whole
    "answer",  # the form of answers: what a parser, a `stop` or a reader of the action needs
    "reward",  # rewards, hidden fields and who may read them
    "policy",  # models, policies and checkpoints
    "training",  # credit, groups, stages, validation and numbers of a training
    "permission",  # something that needs --allow
    "engine",  # what another engine cannot obey
]
"""Kind of a fault or warning."""


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
    """Further paths at which the finding's fault lies, such as the other edges of a cycle."""
    rests_on: tuple[Path, ...] = ()
    """Paths of values from which the finding was concluded: a fault at or around such a path suppresses the
    finding."""
    looked_in: Path = ()
    """Path of the mapping that lacks the name: the finding is left out if the whole mapping is at fault."""
    code: Code | None = None
    """Kind of the finding; None for `unknown-name` with a Suggestion, otherwise for the kind of the check
    that found it."""

    def at(self, place: Place, patch: Patch | None = None) -> Diagnostic:
        """Return the diagnostic of this finding at `place`."""
        code = self.code or ("unknown-name" if isinstance(self.hint, Suggestion) else "workflow")
        return Diagnostic(
            self.message, place, self.expected, self.hint, self.severity, code, self.path, patch
        )


def coded(code: Code, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings; findings without a code and without a Suggestion get `code`."""
    for finding in findings:
        yield finding if finding.code or isinstance(finding.hint, Suggestion) else replace(finding, code=code)


@dataclass(frozen=True, slots=True)
class Place:
    """A range of one line of a file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    text: str
    """Text of the line, from its beginning to its end."""
    width: int = 1
    """Number of characters that the carets underline."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Replacement of a range of a file; lines and columns count from 1, and the range excludes its end."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    """Text that the patch replaces."""
    replacement: str

    def __str__(self) -> str:
        """Return the place and both texts, as `rolegraph validate --fix` prints them."""
        return f"{self.file}:{self.line}:{self.column}: {self.before!r} is now {self.replacement!r}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault or warning with its place."""

    message: str
    place: Place
    expected: str = ""
    hint: str = ""
    severity: Severity = "error"
    code: Code = "yaml"
    path: Path = field(default=(), compare=False)
    """Path in the spec, as keys and list positions; empty for a fault without a key."""
    patch: Patch | None = field(default=None, compare=False)
    """Edit that corrects the fault; None if no correction is certain."""

    @property
    def nearest(self) -> str | None:
        """Valid name that is nearest to a misspelt name; None without a misspelt name."""
        return self.hint.right if isinstance(self.hint, Suggestion) else None

    def to_dict(self) -> dict[str, object]:
        """Return the diagnostic as `rolegraph validate --json` prints it."""
        return {**asdict(self), "path": list(self.path), "nearest": self.nearest}

    def __str__(self) -> str:
        """Return several lines: place and message, the line with carets, the expected value, a hint."""
        place = self.place
        number = str(place.line)
        gutter = " " * len(number)
        excerpt, text_before = _excerpt(place)
        width = max(1, min(place.width, len(excerpt) - text_before))
        lines = [
            f"{_shortened(place.file)}:{place.line}:{place.column}: "
            f"{self.severity}: {_shortened(self.message)}",
            f"  {number} | {excerpt}",
            f"  {gutter} | {' ' * text_before}{'^' * width}",
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
    """Return (part of a place's line to show, column of the place in that part, from 0)."""
    text = without_secrets(place.text)
    position = min(len(without_secrets(place.text[: place.column - 1])), len(text))
    start = max(0, position - LINE_SHOWN.most // 2) if len(text) > LINE_SHOWN.most else 0
    end = start + LINE_SHOWN.most
    text_before, text_after = "…" if start else "", "…" if end < len(text) else ""
    excerpt = printable_line(text[start:end])
    return f"{text_before}{excerpt}{text_after}", position - start + len(text_before)


_WRITABLE = re.compile(r"[\w./-]+")
"""Pattern of names that need no quotes anywhere in a spec."""


def rename(place: Place, wrong: str, right: str) -> Patch | None:
    """Return the patch that replaces a name at a place of a file.

    Args:
        place: Place of the name, or of the text around it.
        wrong: Name to replace.
        right: Name in its place.

    Returns:
        The patch; None if the place does not hold the name exactly once, or if YAML would not read the new
        name as a text.
    """
    start, end = place.column - 1, place.column - 1 + place.width
    matches = re.finditer(rf"(?<![\w-]){re.escape(wrong)}(?![\w-])", place.text)
    spans = [match.span() for match in matches if start <= match.start() and match.end() <= end]
    if len(spans) != 1 or not _WRITABLE.fullmatch(right) or yaml.safe_load(right) != right:
        return None
    return Patch(place.file, place.line, spans[0][0] + 1, place.line, spans[0][1] + 1, wrong, right)


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

    If there is no such word, return the place of the first character in the line at `offset`.
    """
    lines = SourceLines(file, source)
    position = source.find(word, offset) if word else -1
    if position >= 0:
        return lines.place(position, len(word))
    place = lines.place(offset)
    return replace(place, column=len(place.text) - len(place.text.lstrip()) + 1)


_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""Pattern of YAML's anchors and tags before a value."""
_HEADER = re.compile(r"[|>].*\n?")
_CHARACTER = re.compile(r"\S")
_IN_QUOTES = {
    "'": re.compile(r"''|\S"),
    '"': re.compile(r"\\(?:x..|u[dD][89abAB]..\\u[dD][c-fC-F]..|u.{4}|U.{8}|\s+|.)|\S", re.DOTALL),
}


def place_within(value: Place, source: str, text: str, offset: int, word: str) -> Place:
    """Return the place in a file of the first `word` at or after position `offset` of a scalar.

    If there is no such word, return the place of the scalar's text in the line at `offset`.

    Args:
        value: Place of the scalar in the file.
        source: Text of the file.
        text: Value of the scalar.
        offset: Position in `text`, from 0.
        word: Word to look for.
    """
    index = text.find(word, offset) if word else -1
    character_number = sum(not character.isspace() for character in text[: index if index >= 0 else offset])
    lines = SourceLines(value.file, source)
    position = start = lines.position(value)
    for count, position in enumerate(_characters(source, start)):  # noqa: B007  # ends at the last where there are fewer
        if count == character_number:
            break
    place = lines.place(position, len(word))
    if index >= 0:
        return place
    if place.line == value.line:
        return value
    stripped_line = place.text.strip()
    return replace(place, column=place.text.index(stripped_line) + 1, width=len(stripped_line))


def _characters(source: str, start: int) -> Iterator[int]:
    """Yield the position in the file of each character of a YAML scalar except white space.

    An escaped character has the position of its escape.
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
