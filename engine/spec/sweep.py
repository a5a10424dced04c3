"""Overrides with several values each, `roles.solver.count=1,2,4`, to the points of their grid. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import product

from rolegraph.engine.errors import UsageError

_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""
SEED = "seed="
"""How the word begins that is no override, but the seed of a point."""
_LONGEST = 120
"""Characters of a point's name."""


def split_values(word: str) -> list[str]:
    """One override for each value of a word: commas part values, but in brackets and in quotes.

    Raises UsageError for an empty value.
    """
    key, equals, written = word.partition("=")
    values = list(dict.fromkeys(_values(written)))
    if len(values) > 1 and not all(values):
        raise UsageError(f"{word} has an empty value; write each between commas, or the comma in quotes")
    return [f"{key}{equals}{value}" for value in values]


def grid_points(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of the words' values, the last word's going round first.

    Raises UsageError where no word has several.
    """
    choices = [split_values(word) for word in words]
    if not any(len(values) > 1 for values in choices):
        raise UsageError("-m runs over values with commas between them, as in roles.solver.count=1,2,4")
    return list(product(*choices))


def split_seed(point: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """A point's overrides, and the seed that the word `seed=…` gives it, if it is there.

    Raises UsageError for a seed that is no whole number.
    """
    overrides = tuple(word for word in point if not word.startswith(SEED))
    seeds = [word.removeprefix(SEED) for word in point if word.startswith(SEED)]
    try:
        return overrides, int(seeds[-1]) if seeds else None
    except ValueError:
        raise UsageError(f"{SEED}{seeds[-1]} is no whole number; write them as in seed=0,1,2") from None


def varied_overrides(words: Sequence[str], point: Sequence[str]) -> tuple[str, ...]:
    """What sets a point apart: its overrides, less those that all points have."""
    return tuple(own for word, own in zip(words, point, strict=True) if own != word)


def point_name(overrides: Sequence[str]) -> str:
    """A folder's name for what sets a point apart, the same every time."""
    whole = ",".join(overrides)
    name = re.sub(r"[^\w.,+=-]", "_", whole)[:_LONGEST]
    return name if name == whole else f"{name}-{hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()}"


def _values(written: str) -> Iterator[str]:
    start, depth, quote, before = 0, 0, "", ","
    for at, character in enumerate(written):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES and before in f",:{_OPENING}":  # an apostrophe within a word opens nothing
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth <= 0:
            yield written[start:at].strip()
            start = at + 1
        before = before if character.isspace() else character
    yield written[start:].strip()
