"""Equality of two answers: as text, or as mathematics."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast
from unicodedata import normalize

from pydantic import Field

from rolegraph.engine.vocabulary import require_library
from rolegraph.engine.vocabulary.imports import Loaded
from rolegraph.roles.boxes import last_box

Equal = Literal["text", "math"]
"""Ways to compare answers."""
Seconds = Annotated[float, Field(gt=0)]
"""Time limit of a comparison of mathematics, or another score."""
MATH_SECONDS = 10.0


def as_text(action: object) -> str:
    """Return an action as text: a text unchanged, any other value as JSON."""
    return action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, default=str)


def same_text(one: object, other: object) -> bool:
    """Return True if two actions are equal as text, ignoring space at the ends and the order of mappings'
    keys."""
    return canonical(one) == canonical(other)


def canonical(action: object) -> str:
    """Return the text by which actions are compared: stripped and in Unicode's NFC form; JSON for other
    values."""
    if isinstance(action, str):
        return normalize("NFC", action.strip())
    return json.dumps(action, sort_keys=True, default=str)


def same_json(one: object, other: object) -> bool:
    """Return True if two JSON values are equal; unlike in Python, true is not 1 at any depth, while 1 is
    1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        ones, others = cast("list[object]", one), cast("list[object]", other)
        return len(ones) == len(others) and all(map(same_json, ones, others))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        first, second = cast("Mapping[str, object]", one), cast("Mapping[str, object]", other)
        return first.keys() == second.keys() and all(same_json(first[key], second[key]) for key in first)
    return one == other


def require_math() -> None:
    """Raise UsageError where the library that compares mathematics is not installed."""
    require_library("math_verify", "math", "comparisons of mathematics")


def same_math(gold: object, answer: object) -> bool:
    r"""Return True if two answers are mathematically equal (math-verify), by the last `\boxed` of each text.

    The comparison may take seconds.
    """
    try:
        gold, answer = _boxed(gold), _boxed(answer)
    except ValueError:  # a box without an end is no answer
        return False
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its limits are off
    library: Any = importlib.import_module("math_verify")
    # The library's own limits are signals, which only work in a main thread; the caller's limit is the
    # worker process.
    read = (library.parse(_marked(value), parsing_timeout=None) for value in (gold, answer))
    return bool(library.verify(*read, timeout_seconds=None))


SAME_MATH = Loaded(same_math, "math_verify")


def _boxed(value: object) -> object:
    box = last_box(value) if isinstance(value, str) else None
    return value if box is None else f"\\boxed{{{box}}}"


def _marked(value: object) -> str:
    """Return a mathematical expression between dollar signs, as math-verify reads it, unless it has a
    mark."""
    text = str(value)
    return text if "$" in text or "\\boxed" in text else f"${text}$"
