"""The operations of a template on values, each paid for by the sizes of what it is given, before it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jinja2 import pass_context
from jinja2.runtime import Context

from rolegraph.engine.prompts.meter import ITEM, Meter, PromptError

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    sign: getattr(operator, name)
    for sign, name in {
        "+": "add",
        "-": "sub",
        "*": "mul",
        "/": "truediv",
        "//": "floordiv",
        "%": "mod",
        "**": "pow",
    }.items()
}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda item, among: item in among,
    "notin": lambda item, among: item not in among,
}
_BITS_PER_UNIT = 1_024
"""Digits of long multiplication and division, in bits squared, that cost a unit."""
_SIZED = (str, list, tuple)


def binary(meter: Meter, sign: str, left: Any, right: Any) -> Any:
    """`left sign right`."""
    if isinstance(left, int) and isinstance(right, int):
        _numbers(meter, sign, left.bit_length(), right.bit_length(), right)
    elif isinstance(left, _SIZED) or isinstance(right, _SIZED):
        _sequences(meter, sign, cast("object", left), cast("object", right))
    return _BINARY[sign](left, right)


def _numbers(meter: Meter, sign: str, left: int, right: int, power: int) -> None:
    if sign in ("+", "-"):
        meter.make_number(max(left, right))
        return
    if sign == "*":
        meter.make_number(left + right)
    elif sign == "**" and power > 0:
        meter.make_number(left * power)
    meter.spend(left * right // _BITS_PER_UNIT)


def _sequences(meter: Meter, sign: str, left: object, right: object) -> None:
    """Texts and lists: joined, or repeated."""
    if sign == "%":
        raise PromptError("% cannot format text here; use the filter format")
    sized = [cast("Sequence[object]", side) for side in (left, right) if isinstance(side, _SIZED)]
    times = next((side for side in (left, right) if isinstance(side, int)), 1) if sign == "*" else 1
    size = sum(map(len, sized)) * max(times, 0)
    if isinstance(sized[0], str):
        meter.make_text(size)
    else:
        meter.make_list(size)


def compare(meter: Meter, sign: str, left: Any, right: Any) -> Any:
    """`left sign right`."""
    if type(left) is int and type(right) is int:
        return _COMPARE[sign](left, right)
    if sign in ("in", "notin"):
        _look_through(meter, left, right)
    else:
        pay_for_comparing(meter, left, right)
    return _COMPARE[sign](left, right)


def pay_for_comparing(meter: Meter, left: object, right: object) -> None:
    """Comparing reads as much as the smaller of two has."""
    if isinstance(left, str) and isinstance(right, str):
        meter.spend(min(len(left), len(right)))
    elif isinstance(left, list | tuple | dict) and isinstance(right, list | tuple | dict):
        meter.spend(meter.measure(cast("object", left)))


def _look_through(meter: Meter, item: object, among: object) -> None:
    if isinstance(among, str):
        meter.spend(len(among))
    elif isinstance(among, range):
        meter.spend(ITEM * len(among))
    elif isinstance(among, dict):
        meter.spend(meter.measure(item))  # its hash
    else:
        meter.spend(meter.measure(among))


def compare_each(meter: Meter, left: Any, *further: Any) -> Any:
    """`left sign right sign right …`, as Python has it."""
    if len(further) == 2:
        return compare(meter, further[0], left, further[1])
    result: Any = True
    for sign, right in zip(further[::2], further[1::2], strict=True):
        result = compare(meter, sign, left, right)
        if not result:
            return result
        left = right
    return result


def concat(meter: Meter, parts: Sequence[object]) -> str:
    """`a ~ b ~ …`."""
    texts = [meter.text(part) for part in parts]
    meter.make_text(sum(map(len, texts)))
    return "".join(texts)


def part(meter: Meter, value: Sequence[object], start: Any, stop: Any, step: Any) -> Any:
    """`value[start:stop:step]`."""
    if isinstance(value, str):
        meter.make_text(len(value))
    elif isinstance(value, list | tuple):
        meter.make_list(len(value))
    return value[start:stop:step]


def spread(meter: Meter, value: Any) -> Any:
    """What `*` and `**` pass on as arguments."""
    if isinstance(value, Mapping):
        meter.make_list(len(cast("Mapping[str, object]", value)))
        return cast("Mapping[str, object]", value)
    return meter.items(value)


def key(_: Context, value: Any) -> Any:
    """The key of a mapping that a template writes: plain, so that its hash costs nothing."""
    if isinstance(value, str | int | float | None):
        return value
    raise PromptError(f"{type(value).__name__} cannot be a key")


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    name: pass_context(function)
    for name, function in {
        "_each": Meter.each,
        "_compare": compare_each,
        "_concat": concat,
        "_part": part,
        "_spread": spread,
        "_key": key,
    }.items()
}
"""Filters that the syntax tree is rewritten to, under names that no template can say."""
