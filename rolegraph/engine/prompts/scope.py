"""The context of one rendering: its variables, and a budget for its work.

Work is counted without a clock, so that a template comes to the same end on every machine. Whatever grows is
paid for before it is made. A unit of work takes at most some 8 ns and 6 bytes; `benchmarks/metering.py`
measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, cast

from jinja2 import Environment, Undefined, pass_context
from jinja2.nodes import EvalContext
from jinja2.sandbox import SandboxedEnvironment, safe_range
from jinja2.tests import TESTS as JINJA_TESTS  # pyright: ignore[reportUnknownVariableType]
from jinja2.utils import missing

from rolegraph.engine.limits.prompts import PROMPT_BITS, PROMPT_ITEMS, PROMPT_TEXT, PROMPT_WORK
from rolegraph.engine.vocabulary import UNKNOWN, SelfView, Unknown, View, Views

ITEM = 20
"""Units for an item of a list that is made or read."""
NODE = 16
"""Units for evaluating a node of the syntax tree."""
RECORDS: frozenset[type] = frozenset({View, Views, SelfView})
"""Types that templates see of roles. They have fields and cannot be written as text."""
GLOBALS: dict[str, Any] = {"range": safe_range}
"""Functions that a template may call."""
_MEASURED = 4 * ITEM
"""Units for measuring one value inside another."""
_WRITTEN = 24 * ITEM
"""Units for writing a value other than text, whatever its size."""
_SCALAR = 32
"""Largest number of characters of a value that is neither text, a whole number, a list nor a mapping."""
_LISTS = (list, tuple, Views)
# Module constants, because reading a limit's attribute costs more than the arithmetic it guards.
_MOST_TEXT, _MOST_ITEMS, _MOST_BITS, _WORK = (
    limit.most for limit in (PROMPT_TEXT, PROMPT_ITEMS, PROMPT_BITS, PROMPT_WORK)
)


class PromptError(ValueError):
    """Failure of a template to render for one task."""


class RenderScope:
    """Jinja2 context of one rendering: its variables, and a budget of work that bounds the rendering.

    It replaces `jinja2.runtime.Context`, without the inheritance and exports that prompts cannot use. Every
    method raises PromptError where it passes a limit.
    """

    __slots__ = ("exported_vars", "left", "vars")
    environment: Environment
    eval_ctx: EvalContext
    name = None

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.left = _WORK
        self.vars = {**GLOBALS, **variables}
        self.exported_vars: set[str] = set()

    def resolve_or_missing(self, key: str) -> Any:
        """Return a variable's value, or Jinja2's `missing`."""
        return self.vars.get(key, missing)

    def call(
        self, function: Any, *args: Any, _loop_vars: Any = None, _block_vars: Any = None, **kwargs: Any
    ) -> Any:
        """Call a function that the sandbox allows, without the variables that Jinja2 adds in a loop."""
        return function(*args, **kwargs)

    @property
    def spent(self) -> int:
        """Units of the rendering budget that have been used."""
        return _WORK - self.left

    def spend(self, units: int) -> None:
        """Subtract units of work from the rendering budget; raises PromptError once it is spent."""
        self.left -= units
        if self.left < 0:
            raise PromptError(PROMPT_WORK.exceeded("the template takes"))

    def make_text(self, size: int) -> None:
        """Charge the budget for a text of `size` characters; raises PromptError for a text that is too
        long."""
        if size > _MOST_TEXT:
            raise PromptError(PROMPT_TEXT.exceeded("the template makes a text of"))
        self.spend(size)

    def make_list(self, size: int) -> None:
        """Charge the budget for a list of `size` items; raises PromptError for a list that is too long."""
        if size > _MOST_ITEMS:
            raise PromptError(PROMPT_ITEMS.exceeded("the template makes a list of"))
        self.spend(ITEM * size)

    def make_number(self, bits: int) -> None:
        """Raise PromptError for a whole number of more bits than the limit allows."""
        if bits > _MOST_BITS:
            raise PromptError(PROMPT_BITS.exceeded("the template makes a number of"))

    def each(self, items: Iterable[Any] | Unknown, units: int) -> Iterator[Any]:
        """Yield the items of a template's loop, and charge `units` of the rendering budget for each; none for
        an unknown list."""
        for item in () if isinstance(items, Unknown) else items:
            self.left -= units  # as `spend`, without its call for each item
            if self.left < 0:
                self.spend(0)
            yield item

    def items(self, value: Iterable[Any]) -> list[Any]:
        """Return the items of an iterable as a list, and charge them to the template's work budget."""
        if isinstance(value, Collection):
            self.make_list(len(value))
            return list(value)
        items: list[Any] = []
        for item in value:
            self.make_list(1)
            items.append(item)
        return items

    def measure(self, value: object, *, written: bool = False) -> int:
        """Estimate the characters that a value takes as text, and charge the estimate's own work.

        Args:
            value: Any value of a template.
            written: True for a value that is to become text, which must hold no instance of a role.
        """
        if isinstance(value, str):
            return len(value)
        size = 0
        values_left: list[object] = [value]
        while values_left:
            current = values_left.pop()
            if isinstance(current, str):
                size += len(current) + 2
            elif type(current) is int:
                size += current.bit_length() // 3 + 2
            elif isinstance(current, dict):
                inner_mapping = cast("dict[object, object]", current)
                self.spend(2 * _MEASURED * len(inner_mapping))
                values_left += [*inner_mapping, *inner_mapping.values()]
            elif written and type(current) in RECORDS:
                raise PromptError("an instance of a role is not text; write .action behind it")
            elif isinstance(current, _LISTS):
                inner_sequence = cast("Sequence[object]", current)
                self.spend(_MEASURED * len(inner_sequence))
                values_left += inner_sequence
            else:
                size += _SCALAR
        return size

    def text(self, value: object) -> str:
        """Return a value as text, charged to the budget by its length."""
        if type(value) is str:
            self.left -= len(value)  # as `spend`: every piece of a template comes here
            if self.left < 0:
                self.spend(0)
            return value
        if value is None or isinstance(value, (int, float)):  # `prompt_bits` bounds whole numbers
            self.spend(value.bit_length() // 2 if isinstance(value, int) else _SCALAR)
            return str(value)
        self.spend(_WRITTEN)
        if not isinstance(value, Undefined):
            self.make_text(self.measure(value, written=True))
        text = str(value)
        self.make_text(len(text))
        return text


Operation = Callable[..., Any]
_BITS_PER_UNIT = 1_024
"""Product of the bit lengths of two numbers whose multiplication or division costs one unit."""
_SIZED = (str, list, tuple)
_JINJA_TESTS = cast("Mapping[str, Operation]", JINJA_TESTS)


def binary(scope: RenderScope, sign: str, left: Any, right: Any) -> Any:
    """Compute `left sign right`; raises PromptError where the result would pass a limit."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if isinstance(left, int) and isinstance(right, int):
        _pay_for_numbers(scope, sign, left.bit_length(), right.bit_length())
    elif isinstance(left, _SIZED) or isinstance(right, _SIZED):
        _pay_for_sequences(scope, sign, cast("object", left), cast("object", right))
    return SandboxedEnvironment.default_binop_table[sign](left, right)


def _pay_for_numbers(scope: RenderScope, sign: str, left: int, right: int) -> None:
    """Charge arithmetic on two whole numbers of `left` and `right` bits to the rendering budget."""
    if sign in ("+", "-"):
        scope.make_number(max(left, right))
        return
    if sign == "*":
        scope.make_number(left + right)
    scope.spend(left * right // _BITS_PER_UNIT)


def _pay_for_sequences(scope: RenderScope, sign: str, left: object, right: object) -> None:
    """Charge the budget for `+` or `*` of texts or lists, by the size of the result; raises PromptError for
    `%`."""
    if sign == "%":
        raise PromptError("% cannot format text here; use the filter format")
    sized_operands = [cast("Sequence[object]", side) for side in (left, right) if isinstance(side, _SIZED)]
    times = next((side for side in (left, right) if isinstance(side, int)), 1) if sign == "*" else 1
    size = sum(map(len, sized_operands)) * max(times, 0)
    if isinstance(sized_operands[0], str):
        scope.make_text(size)
    else:
        scope.make_list(size)


def compare(scope: RenderScope, sign: str, left: Any, right: Any) -> Any:
    """Return the result of a Jinja2 comparison, such as `eq` or `in`, after charging the budget for its
    size."""
    if sign != "in":
        if isinstance(left, str) and isinstance(right, str):
            scope.spend(min(len(left), len(right)))
        elif isinstance(left, list | tuple | dict) and isinstance(right, list | tuple | dict):
            scope.spend(scope.measure(cast("object", left)))
    elif isinstance(right, range):
        scope.spend(ITEM * len(right))
    else:
        scope.spend(scope.measure(left if isinstance(right, dict) else right))  # of a mapping the key's hash
    return _JINJA_TESTS[sign](left, right)


def compare_chain(scope: RenderScope, left: Any, signs: Sequence[str], *others: Any) -> Any:
    """Compute `left sign right sign right …`, with a sign before each of the `others`.

    The result is false if a comparison is false, else UNKNOWN if a comparison is unknown.
    """
    result: Any = True
    for sign, right in zip(signs, others, strict=True):
        holds = _compared(scope, sign, left, right)
        if holds is UNKNOWN:
            result = UNKNOWN
        elif not holds:
            return holds
        left = right
    return result


def _compared(scope: RenderScope, sign: str, left: Any, right: Any) -> Any:
    """Return the result of one comparison, UNKNOWN where a side is unknown.

    `in` is true if the value is among the known items of a list, else UNKNOWN if an item is unknown.
    """
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if sign not in ("in", "notin"):
        return compare(scope, {"lteq": "le", "gteq": "ge"}.get(sign) or sign, left, right)
    items = cast("Sequence[Any]", right) if isinstance(right, list | tuple) else ()
    has_unknown = any(it is UNKNOWN for it in items)
    is_member = compare(
        scope, "in", left, [it for it in items if it is not UNKNOWN] if has_unknown else right
    )
    if has_unknown and not is_member:
        return UNKNOWN
    return is_member if sign == "in" else not is_member


def negated(_: RenderScope, value: Any) -> Any:
    """Return `not value`; UNKNOWN for an unknown value."""
    return UNKNOWN if value is UNKNOWN else not value


def concat(scope: RenderScope, parts: Sequence[object]) -> Any:
    """Return the joined texts of `parts`, as Jinja2's `a ~ b ~ …`; UNKNOWN if a part is unknown."""
    if any(part is UNKNOWN for part in parts):
        return UNKNOWN
    texts = [scope.text(part) for part in parts]
    scope.make_text(sum(map(len, texts)))
    return "".join(texts)


def slice_(scope: RenderScope, value: Sequence[object], start: Any, stop: Any, step: Any) -> Any:
    """Return `value[start:stop:step]`, charged to the budget as if it were the whole text or list."""
    if any(it is UNKNOWN for it in (value, start, stop, step)):
        return UNKNOWN
    if isinstance(value, str):
        scope.make_text(len(value))
    elif isinstance(value, list | tuple):
        scope.make_list(len(value))
    return value[start:stop:step]


def _spread(scope: RenderScope, value: Any) -> Any:
    """Return the value of a call's `*value` or `**value`, after charging the rendering budget for its
    items."""
    if isinstance(value, Mapping):
        scope.make_list(len(cast("Mapping[str, object]", value)))
        return cast("Mapping[str, object]", value)
    return scope.items(value)


def key(_: RenderScope, value: Any) -> Any:
    """Return a scalar key of a mapping in a template; raises PromptError for a list, mapping or object."""
    if isinstance(value, str | int | float | None):
        return value
    raise PromptError("a list, mapping or object cannot be a key of a mapping")


OPERATIONS: Mapping[str, Operation] = {
    "_each": pass_context(RenderScope.each),
    "_compare": pass_context(compare_chain),
    "_not": pass_context(negated),
    "_concat": pass_context(concat),
    "_slice": pass_context(slice_),
    "_spread": pass_context(_spread),
    "_key": pass_context(key),
}
"""Filters that the sandbox writes into the syntax tree; templates cannot name them, since their names begin
with `_`."""


def number_for(name: str, value: Any) -> Any:
    """Return a number unchanged; raises PromptError for another value, with the `name` of the filter or
    test."""
    if isinstance(value, int | float):
        return value
    kind = "text" if isinstance(value, str) else type(value).__name__
    raise PromptError(f"{name} takes a number, not {kind}")


_COMPARING: Sequence[str] = "eq == equalto ne != gt > greaterthan ge >= lt < lessthan le <= in".split()
_OF_TYPES: Sequence[str] = (
    "boolean callable defined escaped false filter float integer iterable mapping none number sameas "
    "sequence string test true undefined"
).split()


def _comparison_test(sign: str, scope: RenderScope, left: object, right: object) -> bool:
    return bool(compare(scope, sign, left, right))


def _number_test(name: str, value: object, *args: object) -> bool:
    return bool(_JINJA_TESTS[name](*(number_for(f"is {name}", operand) for operand in (value, *args))))


def _text_test(name: str, scope: RenderScope, value: object) -> bool:
    return bool(_JINJA_TESTS[name](scope.text(value)))


def of_known(function: Operation) -> Operation:
    """Return a filter or test that gives UNKNOWN where its value or an argument is unknown."""

    @wraps(function)
    def of_these(*given: Any, **named: Any) -> Any:
        is_unknown = any(it is UNKNOWN for it in given) or any(it is UNKNOWN for it in named.values())
        return UNKNOWN if is_unknown else function(*given, **named)

    return of_these


def _is_defined(value: object) -> bool:
    return value is not UNKNOWN and not isinstance(value, Undefined)


def _is_undefined(value: object) -> bool:
    return not _is_defined(value)


TESTS: Mapping[str, Operation] = {
    **{name: of_known(_JINJA_TESTS[name]) for name in _OF_TYPES},
    **{name: of_known(partial(_number_test, name)) for name in ("odd", "even", "divisibleby")},
    **{name: pass_context(of_known(partial(_text_test, name))) for name in ("lower", "upper")},
    **{name: pass_context(of_known(partial(_comparison_test, name))) for name in _COMPARING},
    "defined": _is_defined,
    "undefined": _is_undefined,
}
"""Jinja2 tests that templates may use, by the name after `is`."""
