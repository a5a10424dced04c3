"""What a prompt may ask with `is`, paid for by the sizes of what is compared, before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jinja2 import pass_context
from jinja2.tests import TESTS as JINJA_TESTS  # pyright: ignore[reportUnknownVariableType]

from rolegraph.engine.prompts.filters import number_for
from rolegraph.engine.prompts.meter import Meter
from rolegraph.engine.prompts.operations import compare

Predicate = Callable[..., Any]
_JINJA_TESTS = cast("Mapping[str, Predicate]", JINJA_TESTS)
_COMPARING = {
    "eq": ("eq", "==", "equalto"),
    "ne": ("ne", "!="),
    "gt": ("gt", ">", "greaterthan"),
    "gteq": ("ge", ">="),
    "lt": ("lt", "<", "lessthan"),
    "lteq": ("le", "<="),
    "in": ("in",),
}


def _comparing(sign: str) -> Predicate:
    def test(meter: Meter, left: object, right: object) -> bool:
        return bool(compare(meter, sign, left, right))

    return pass_context(test)


def _of_number(name: str) -> Predicate:
    def test(_: Any, value: object, *args: object) -> bool:
        numbers = [number_for(f"is {name}", one) for one in (value, *args)]
        return bool(_JINJA_TESTS[name](*numbers))

    return pass_context(test)


def _of_text(name: str) -> Predicate:
    def test(meter: Meter, value: object) -> bool:
        return bool(_JINJA_TESTS[name](meter.text(value)))

    return pass_context(test)


_LOOKS_AT_THE_KIND: Sequence[str] = (
    "boolean callable defined escaped false filter float integer iterable mapping none number sameas "
    "sequence string test true undefined"
).split()
TESTS: dict[str, Predicate] = {
    **{name: _JINJA_TESTS[name] for name in _LOOKS_AT_THE_KIND},
    **{name: _of_number(name) for name in ("odd", "even", "divisibleby")},
    **{name: _of_text(name) for name in ("lower", "upper")},
    **{name: _comparing(sign) for sign, names in _COMPARING.items() for name in names},
}
"""By the names that a prompt uses after `is`."""
