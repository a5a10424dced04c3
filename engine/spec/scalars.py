"""Positions in a YAML file of the characters of a scalar: block, quoted or plain.

YAML folds white space, so a character is found by the number of other characters before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from rolegraph.engine.spec.diagnostics import Place, SourceLines

_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""Pattern of an anchor and a tag before the value."""
_HEADER = re.compile(r"[|>].*\n?")
_CHARACTER = re.compile(r"\S")
_IN_QUOTES = {
    "'": re.compile(r"''|\S"),
    '"': re.compile(r"\\(?:x..|u.{4}|U.{8}|\s+|.)|\S", re.DOTALL),
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
    found = text.find(word, offset) if word else -1
    nth = sum(not character.isspace() for character in text[: found if found >= 0 else offset])
    lines = SourceLines(value.file, source)
    at = start = lines.position(value)
    for count, at in enumerate(_characters(source, start)):  # noqa: B007  # ends at the last where there are fewer
        if count == nth:
            break
    place = lines.place(at, len(word))
    if found >= 0:
        return place
    if place.line == value.line:
        return value
    shown = place.text.strip()
    return replace(place, column=place.text.index(shown) + 1, width=len(shown))


def _characters(source: str, start: int) -> Iterator[int]:
    """Yield the positions in the file of the scalar's characters that are not white space."""
    at = _end_of(_PROPERTIES, source, start)
    quote = source[at : at + 1]
    if quote in _IN_QUOTES:
        for unit in _IN_QUOTES[quote].finditer(source, at + 1):
            escaped = quote == '"' and unit[0].startswith("\\")
            if not escaped or yaml.safe_load(f'"{unit[0]}"').strip():
                yield unit.start()
        return
    yield from (unit.start() for unit in _CHARACTER.finditer(source, _end_of(_HEADER, source, at)))


def _end_of(pattern: re.Pattern[str], source: str, start: int) -> int:
    match = pattern.match(source, start)
    return match.end() if match else start
