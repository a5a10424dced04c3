"""Equality of two answers: as text, or as mathematics."""

from __future__ import annotations

import importlib
import json
import logging
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast
from unicodedata import normalize

from pydantic import Field

from rolegraph.engine.limits.tools import CALL_MEMORY
from rolegraph.engine.vocabulary import require_library
from rolegraph.engine.vocabulary.imports import Loaded
from rolegraph.engine.vocabulary.isolation import CallLimit
from rolegraph.roles.boxes import last_box

Equal = Literal["text", "math"]
"""Ways to compare answers."""
Seconds = Annotated[float, Field(gt=0)]
"""Time limit in seconds of a comparison of mathematics, or of another score."""
MATH_SECONDS = 10.0
_ARITHMETIC = re.compile(r"(?:\\boxed|\\left|\\right|\\cdot|\\times|\\d?frac|[\d\s+\-*/^{}()])*")
"""Pattern of a text with only numbers and operations, which a reader of mathematics computes completely."""
_POWER = re.compile(r"(?<![\d}])(\d{1,4000})\s*\^\s*\{\s*(\d{1,4000})\s*\}")
"""Pattern of a power whose base and exponent are natural numbers."""


def as_text(action: object) -> str:
    """Return an action as text: a text unchanged, any other value as JSON."""
    return action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, default=str)


def same_text(one: object, other: object) -> bool:
    """Return True if two actions are equal as text; space at the ends and the order of mappings' keys do not
    count."""
    return canonical(one) == canonical(other)


def canonical(action: object) -> str:
    """Return the text by which an action is compared: stripped and in Unicode's NFC form; JSON for a value
    that is no text."""
    if isinstance(action, str):
        return normalize("NFC", action.strip())
    return json.dumps(action, sort_keys=True, default=str)


def same_json(one: object, other: object) -> bool:
    """Return True if two JSON values are equal; 1 equals 1.0, but unlike in Python, true does not equal 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        own_items, other_items = cast("list[object]", one), cast("list[object]", other)
        return len(own_items) == len(other_items) and all(map(same_json, own_items, other_items))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        first, second = cast("Mapping[str, object]", one), cast("Mapping[str, object]", other)
        return first.keys() == second.keys() and all(same_json(first[key], second[key]) for key in first)
    return one == other


def require_math() -> None:
    """Raise UsageError if the library that compares mathematics is not installed."""
    require_library("math_verify", "math", "comparisons of mathematics")


def same_math(gold: object, answer: object) -> bool:
    r"""Return True if two answers are mathematically equal (math-verify), by the last `\boxed` of each text.

    The comparison may take seconds.
    """
    try:
        gold, answer = _boxed(gold), _boxed(answer)
    except ValueError:  # a box without an end is no answer
        return False
    if is_beyond_memory(str(answer)):
        # The library would compute it until the deadline, in a worker that other answers wait for.
        raise CallLimit(f"took more than {CALL_MEMORY.most:,} bytes of memory ({CALL_MEMORY.label})")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its limits are off
    library: Any = importlib.import_module("math_verify")
    # The library's own limits are signals, which only work in a main thread; the caller's limit is the
    # worker process.
    parsed_values = (library.parse(_marked(value), parsing_timeout=None) for value in (gold, answer))
    return bool(library.verify(*parsed_values, timeout_seconds=None))


def is_beyond_memory(text: str) -> bool:
    """Return True for arithmetic with a power of more bits than the memory of a worker, `call_memory`.

    Computing the value of a text such as `9^{9^{9^{9}}}` exhausts memory or time. Towers of powers are
    computed from the inside, as long as the number can be an exponent.
    """
    largest_bits = 8 * CALL_MEMORY.most
    text = text.strip(" $")
    if not _ARITHMETIC.fullmatch(text):
        return False
    while power := _POWER.search(text):
        base, exponent = int(power[1]), int(power[2])
        bits = exponent * (base.bit_length() - 1)  # at least
        if bits > largest_bits:
            return True
        value = largest_bits + 1 if bits > largest_bits.bit_length() else base**exponent
        text = f"{text[: power.start()]}{value}{text[power.end() :]}"
    return False


SAME_MATH = Loaded(same_math, "math_verify")


def _boxed(value: object) -> object:
    box = last_box(value) if isinstance(value, str) else None
    return value if box is None else f"\\boxed{{{box}}}"


def _marked(value: object) -> str:
    """Return a mathematical expression between dollar signs, which math-verify needs, unless it is already
    marked."""
    text = str(value)
    return text if "$" in text or "\\boxed" in text else f"${text}$"
