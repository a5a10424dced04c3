"""Points of a grid of overrides, such as `roles.solver.count=1,2,4`. Pure functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from rolegraph.engine.errors import UsageError
from rolegraph.engine.limits.specs import SWEEP_POINTS

_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""
SEED = "seed="
"""Prefix of the argument that sets the seed of a point; it is not an override."""
_LONGEST = 120
"""Largest number of characters in the name of a point, without its digest."""


def split_values(word: str) -> list[str]:
    """Return one override for each value of `word`, split at commas outside of brackets and quotes.

    Args:
        word: An override such as `roles.solver.count=1,2,4`.

    Raises:
        UsageError: One of several values is empty.
    """
    key, equals, text = word.partition("=")
    values = list(dict.fromkeys(_values(text)))
    if len(values) > 1 and not all(values):
        expected = "a value between commas, or quotes around a comma"
        raise UsageError(f"{word} has an empty value; expected {expected}")
    return [f"{key}{equals}{value}" for value in values]


def grid_points(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every combination of the values of `words`; the values of the last word vary fastest.

    Raises:
        UsageError: No word has several values, or there are too many combinations.
    """
    choices = [split_values(word) for word in words]
    if prod(map(len, choices)) > SWEEP_POINTS.most:
        raise UsageError(SWEEP_POINTS.exceeded("the values have") + " in all their combinations")
    if not any(len(values) > 1 for values in choices):
        expected = "an override with several values, separated by commas: roles.solver.count=1,2,4"
        raise UsageError(f"-m needs {expected}")
    return list(product(*choices))


def split_seed(point: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """Split a point into its overrides and its seed, which is None without `seed=…`.

    Raises:
        UsageError: The seed is not a whole number.
    """
    overrides = tuple(word for word in point if not word.startswith(SEED))
    seeds = [word.removeprefix(SEED) for word in point if word.startswith(SEED)]
    try:
        return overrides, int(seeds[-1]) if seeds else None
    except ValueError:
        message = f"{SEED}{seeds[-1]} is not a whole number; expected seeds such as seed=0,1,2"
        raise UsageError(message) from None


def varied_overrides(words: Sequence[str], point: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of a point whose values vary over the grid.

    Args:
        words: The overrides of the grid, with all values.
        point: The overrides of the point, in the same order.
    """
    return tuple(override for word, override in zip(words, point, strict=True) if override != word)


def point_name(overrides: Sequence[str]) -> str:
    """Return the folder name of a point: its overrides; if these cannot be a name, a part and a digest."""
    joined = ",".join(overrides)
    name = re.sub(r"[^\w.,+=-]", "_", joined)[:_LONGEST]
    return name if name == joined else f"{name}-{hashlib.blake2b(joined.encode(), digest_size=4).hexdigest()}"


def _values(written: str) -> Iterator[str]:
    start, depth, quote, before = 0, 0, "", ","
    for index, character in enumerate(written):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES and before in f",:{_OPENING}":  # an apostrophe within a word opens nothing
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth <= 0:
            yield written[start:index].strip()
            start = index + 1
        before = before if character.isspace() else character
    yield written[start:].strip()
