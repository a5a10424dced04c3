"""Operators and tests of templates. Each is paid for by the sizes of its operands before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jinja2 import pass_context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS  # pyright: ignore[reportUnknownVariableType]

from rolegraph.engine.prompts.scope import ITEM, PromptError, RenderScope

Operation = Callable[..., Any]
_BITS_PER_UNIT = 1_024
"""Bits squared of long multiplication and division that cost a unit."""
_SIZED = (str, list, tuple)
_JINJA_TESTS = cast("Mapping[str, Operation]", JINJA_TESTS)


def binary(scope: RenderScope, sign: str, left: Any, right: Any) -> Any:
    """Compute `left sign right`; raises PromptError where the result would pass a limit."""
    if isinstance(left, int) and isinstance(right, int):
        _pay_for_numbers(scope, sign, left.bit_length(), right.bit_length(), right)
    elif isinstance(left, _SIZED) or isinstance(right, _SIZED):
        _pay_for_sequences(scope, sign, cast("object", left), cast("object", right))
    return SandboxedEnvironment.default_binop_table[sign](left, right)


def _pay_for_numbers(scope: RenderScope, sign: str, left: int, right: int, power: int) -> None:
    """Charge arithmetic on two whole numbers of `left` and `right` bits to the rendering budget."""
    if sign in ("+", "-"):
        scope.make_number(max(left, right))
        return
    if sign == "*":
        scope.make_number(left + right)
    elif sign == "**" and power > 0:
        scope.make_number(left * power)
    scope.spend(left * right // _BITS_PER_UNIT)


def _pay_for_sequences(scope: RenderScope, sign: str, left: object, right: object) -> None:
    """Pay for joining or repeating texts or lists."""
    if sign == "%":
        raise PromptError("% cannot format text here; use the filter format")
    sized = [cast("Sequence[object]", side) for side in (left, right) if isinstance(side, _SIZED)]
    times = next((side for side in (left, right) if isinstance(side, int)), 1) if sign == "*" else 1
    size = sum(map(len, sized)) * max(times, 0)
    if isinstance(sized[0], str):
        scope.make_text(size)
    else:
        scope.make_list(size)


def compare(scope: RenderScope, sign: str, left: Any, right: Any) -> Any:
    """Apply a comparison of Jinja2, such as `eq` or `in`, and charge the rendering budget for its size."""
    if sign != "in":
        if isinstance(left, str) and isinstance(right, str):
            scope.spend(min(len(left), len(right)))
        elif isinstance(left, list | tuple | dict) and isinstance(right, list | tuple | dict):
            scope.spend(scope.measure(cast("object", left)))
    elif isinstance(right, str):
        scope.spend(len(right))
    elif isinstance(right, range):
        scope.spend(ITEM * len(right))
    elif isinstance(right, dict):
        scope.spend(scope.measure(left))  # the hash of the key
    else:
        scope.spend(scope.measure(right))
    return _JINJA_TESTS[sign](left, right)


def _compare_chain(scope: RenderScope, left: Any, *further: Any) -> Any:
    """Compute `left sign right sign right …` as Python does, with the signs of the syntax tree."""
    result: Any = True
    for sign, right in zip(further[::2], further[1::2], strict=True):
        if sign == "notin":
            result = not compare(scope, "in", left, right)
        else:
            result = compare(scope, {"lteq": "le", "gteq": "ge"}.get(sign) or sign, left, right)
        if not result:
            return result
        left = right
    return result


def _concat(scope: RenderScope, parts: Sequence[object]) -> str:
    """Compute `a ~ b ~ …`."""
    texts = [scope.text(part) for part in parts]
    scope.make_text(sum(map(len, texts)))
    return "".join(texts)


def _slice(scope: RenderScope, value: Sequence[object], start: Any, stop: Any, step: Any) -> Any:
    """Compute `value[start:stop:step]`."""
    if isinstance(value, str):
        scope.make_text(len(value))
    elif isinstance(value, list | tuple):
        scope.make_list(len(value))
    return value[start:stop:step]


def _spread(scope: RenderScope, value: Any) -> Any:
    """Return the arguments of a call's `*value` or `**value`, charged to the rendering budget."""
    if isinstance(value, Mapping):
        scope.make_list(len(cast("Mapping[str, object]", value)))
        return cast("Mapping[str, object]", value)
    return scope.items(value)


def _key(_: RenderScope, value: Any) -> Any:
    """Return a key of a mapping that a template writes; raises PromptError for one that is slow to hash."""
    if isinstance(value, str | int | float | None):
        return value
    raise PromptError("a list, mapping or object cannot be a key of a mapping")


OPERATIONS: Mapping[str, Operation] = {
    name: pass_context(function)
    for name, function in {
        "_each": RenderScope.each,
        "_compare": _compare_chain,
        "_concat": _concat,
        "_slice": _slice,
        "_spread": _spread,
        "_key": _key,
    }.items()
}
"""Filters that the sandbox writes into the syntax tree; no template can name one with an underscore."""


def number_for(name: str, value: Any) -> Any:
    """Return a number; raises PromptError for anything else, naming the filter or test that takes it."""
    if isinstance(value, int | float):
        return value
    kind = "text" if isinstance(value, str) else type(value).__name__
    raise PromptError(f"{name} takes a number, not {kind}")


_COMPARING: Sequence[str] = "eq == equalto ne != gt > greaterthan ge >= lt < lessthan le <= in".split()
_OF_TYPES: Sequence[str] = (
    "boolean callable defined escaped false filter float integer iterable mapping none number sameas "
    "sequence string test true undefined"
).split()


def _comparison_test(sign: str) -> Operation:
    def test(scope: RenderScope, left: object, right: object) -> bool:
        return bool(compare(scope, sign, left, right))

    return pass_context(test)


def _number_test(name: str) -> Operation:
    def test(value: object, *args: object) -> bool:
        return bool(_JINJA_TESTS[name](*(number_for(f"is {name}", one) for one in (value, *args))))

    return test


def _text_test(name: str) -> Operation:
    def test(scope: RenderScope, value: object) -> bool:
        return bool(_JINJA_TESTS[name](scope.text(value)))

    return pass_context(test)


TESTS: Mapping[str, Operation] = {
    **{name: _JINJA_TESTS[name] for name in _OF_TYPES},
    **{name: _number_test(name) for name in ("odd", "even", "divisibleby")},
    **{name: _text_test(name) for name in ("lower", "upper")},
    **{name: _comparison_test(name) for name in _COMPARING},
}
"""Tests by the names that a template uses after `is`."""
