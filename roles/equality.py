"""When two answers are the same: as text, or as mathematics."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from typing import Any, Literal

from rolegraph.engine.vocabulary import UsageError

Equal = Literal["text", "math"]
MATH_SECONDS = 10.0


def as_text(action: object) -> str:
    """An action as text: itself, or its JSON."""
    return action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, default=str)


def same_text(one: object, other: object) -> bool:
    """Whether two actions read the same, but for space at the ends and the order of a mapping's keys."""
    return _compared(one) == _compared(other)


def _compared(action: object) -> str:
    return action.strip() if isinstance(action, str) else json.dumps(action, sort_keys=True, default=str)


def require_math() -> None:
    """Raise UsageError where the library that compares mathematics is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise UsageError("comparing mathematics needs the library math-verify: pip install 'rolegraph[math]'")


def math_library() -> Any:
    """The library; it takes a while to load."""
    import logging  # for this alone

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it remarks on limits that are off
    return importlib.import_module("math_verify")


def same_math(gold: object, answer: object) -> bool:
    """Whether an answer is mathematically equal to another; it may take long, and be stopped from outside."""
    library = math_library()
    # Its own limits are signals, which only work in a main thread; ours stops the whole process.
    read = (library.parse(_marked(value), parsing_timeout=None) for value in (gold, answer))
    return bool(library.verify(*read, timeout_seconds=None))


class SameMath:
    """Compares mathematics. A worker that receives it loads the library before its time starts."""

    def __reduce__(self) -> tuple[Callable[[], SameMath], tuple[()]]:
        return _loaded, ()

    def __call__(self, one: object, other: object) -> bool:
        """Whether both are equal."""
        return same_math(one, other)


def _loaded() -> SameMath:
    math_library()
    return SameMath()


def _marked(value: object) -> str:
    text = str(value)
    return text if "$" in text or "\\boxed" in text else f"${text}$"
