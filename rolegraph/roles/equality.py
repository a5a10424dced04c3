"""Equality of two answers: as text, or as mathematics."""

from __future__ import annotations

import importlib
import json
import logging
from typing import Annotated, Any, Literal

from pydantic import Field

from rolegraph.engine.vocabulary import require_library
from rolegraph.engine.vocabulary.imports import Loaded

Equal = Literal["text", "math"]
"""Ways to compare answers."""
Seconds = Annotated[float, Field(gt=0)]
"""Time limit of a comparison of mathematics, or another score."""
MATH_SECONDS = 10.0


def as_text(action: object) -> str:
    """Return an action as text: the action itself, or its JSON."""
    return action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, default=str)


def same_text(one: object, other: object) -> bool:
    """Compare two actions as text, without space at the ends and the order of a mapping's keys."""
    return canonical(one) == canonical(other)


def canonical(action: object) -> str:
    """Return a text that is the same for actions that are the same as text."""
    return action.strip() if isinstance(action, str) else json.dumps(action, sort_keys=True, default=str)


def require_math() -> None:
    """Raise UsageError where the library that compares mathematics is not installed."""
    require_library("math_verify", "math", "comparisons of mathematics")


def same_math(gold: object, answer: object) -> bool:
    """Compare two answers as mathematics; that may take seconds."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its limits are off
    library: Any = importlib.import_module("math_verify")
    # The library's own limits are signals, which only work in a main thread; the caller's limit is the
    # worker process.
    read = (library.parse(_marked(value), parsing_timeout=None) for value in (gold, answer))
    return bool(library.verify(*read, timeout_seconds=None))


SAME_MATH = Loaded(same_math, "math_verify")


def _marked(value: object) -> str:
    """Put mathematics between dollar signs, unless it is marked already."""
    text = str(value)
    return text if "$" in text or "\\boxed" in text else f"${text}$"
