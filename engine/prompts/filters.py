"""The filters of templates. Each is paid for by the sizes of its arguments before it runs.

Filters behave as Jinja2's, but return plain text and lists, never `Markup` or generators. Fields that a
filter looks up by name go through the sandbox, as a dot does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import log2
from typing import Any, cast

from jinja2 import filters as jinja
from jinja2 import pass_context
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import escape

from rolegraph.engine.limits.prompts import PROMPT_DIGITS, PROMPT_INDENT
from rolegraph.engine.prompts.operations import binary, number_for
from rolegraph.engine.prompts.scope import ITEM, PromptError, RenderScope

Filter = Callable[..., Any]
FILTERS: dict[str, Filter] = {}
"""Filters by the names that templates use."""
_TEXT_GROWS = 6
"""Characters that escaping for HTML or JSON makes of one at most, but for the rarest."""
_WORD = 60
"""Units for a character in a filter that makes an object of each word."""
_CALL = 20 * ITEM
"""Units for calling another filter or a test on one item."""
_SET_UP = 40 * ITEM
"""Units for a filter that resolves its arguments before it reads any item."""
_READ_AT_ONCE = 8
"""Characters of two texts that a unit compares."""
_NUMBER = 400
"""Characters of a float in `format` at most, without its width and precision."""


def _filter(*names: str) -> Callable[[Filter], Filter]:
    """Register a filter that takes the rendering's scope first."""

    def register(function: Filter) -> Filter:
        FILTERS.update(dict.fromkeys(names, pass_context(function)))
        return function

    return register


def _made(scope: RenderScope, text: str) -> str:
    scope.make_text(len(text))
    return text


def _text_filter(name: str, change: Callable[[str], str], units: int) -> None:
    """Register a filter that changes a text, for `units` a character."""

    @_filter(name)
    def _(scope: RenderScope, s: object) -> str:
        text = scope.text(s)
        scope.spend(units * len(text))
        return _made(scope, change(text))


for _name, _change, _units in (
    ("lower", str.lower, 1),
    ("upper", str.upper, 1),
    ("capitalize", str.capitalize, 1),
    ("string", str, 0),
    ("title", jinja.do_title, _WORD),
):
    _text_filter(_name, _change, _units)


@_filter("escape", "e")
def _escape(scope: RenderScope, s: object) -> str:
    text = scope.text(s)
    scope.spend(_TEXT_GROWS * len(text))
    return _made(scope, str(escape(text)))


@_filter("trim")
def _trim(scope: RenderScope, value: object, chars: str | None = None) -> str:
    text = scope.text(value)
    scope.spend(len(text) * len(chars or " "))
    return text.strip(chars)


@_filter("wordcount")
def _wordcount(scope: RenderScope, s: object) -> int:
    text = scope.text(s)
    scope.spend(_WORD * len(text))
    return jinja.do_wordcount(text)


@_filter("replace")
def _replace(scope: RenderScope, s: object, old: object, new: object, count: int | None = None) -> str:
    text, old, new = scope.text(s), scope.text(old), scope.text(new)
    limit = -1 if count is None else count
    times = text.count(old)
    times = times if limit < 0 else min(times, limit)  # below 0 means all of them
    scope.make_text(len(text) + times * len(new))
    return text.replace(old, new, limit)


@_filter("truncate")
def _truncate(
    scope: RenderScope,
    s: object,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int | None = None,
) -> str:
    text = scope.text(s)
    if length < len(end) or (leeway or 0) < 0:
        raise PromptError(
            f"truncate cannot make a text of {length!r} characters: its end alone has {len(end):,}"
        )
    return jinja.do_truncate(scope.environment, text, length, killwords, end, leeway)


_FORMAT = re.compile(r"%(?:\(\w+\))?[-+ #0]*(\d{0,3})(?:\.(\d{0,3}))?([sdifgex%])")


@_filter("format")
def _format(scope: RenderScope, value: object, *args: object, **kwargs: object) -> str:
    pattern = scope.text(value)
    if "%" in _FORMAT.sub("", pattern):
        raise PromptError(f"format cannot use the pattern {pattern[:80]!r}")
    if args and kwargs:
        raise PromptError("format takes values by position or by name, not both")
    fields: list[tuple[str, str, str]] = _FORMAT.findall(pattern)
    scope.spend(_SET_UP + ITEM * len(fields))
    size = len(pattern) + sum(
        int(width or 0) + int(places or 0) + (_NUMBER if kind not in "s%" else 0)
        for width, places, kind in fields
    )
    # A named value may be written by every field, a positional one by one field.
    values = (
        scope.measure(kwargs, written=True) * len(fields) if kwargs else scope.measure(args, written=True)
    )
    scope.make_text(size + values)
    return _made(scope, pattern % (kwargs or args))


@_filter("tojson")
def _tojson(scope: RenderScope, value: object, indent: int | None = None) -> str:
    if indent is not None and not 0 <= indent <= PROMPT_INDENT.most:
        raise PromptError(f"tojson indents by 0 to {PROMPT_INDENT}, not {indent}")
    scope.spend(_SET_UP)
    size = scope.measure(value, written=True)
    scope.make_text(size)
    scope.spend(2 * size)
    return _made(scope, str(htmlsafe_json_dumps(value, indent=indent)))


@_filter("abs")
def _abs(_: Any, number: object) -> object:
    return abs(number_for("abs", number))


@_filter("round")
def _round(_: Any, value: object, precision: int = 0, method: str = "common") -> float:
    if not isinstance(precision, int) or abs(precision) > PROMPT_DIGITS.most:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PromptError(f"round keeps or drops at most {PROMPT_DIGITS}")
    return jinja.do_round(number_for("round", value), precision, cast("Any", method))


@_filter("int")
def _int(scope: RenderScope, value: object, default: int = 0, base: int = 10) -> int:
    if isinstance(value, str):
        scope.spend(len(value))
    number = jinja.do_int(value, default, base)
    scope.make_number(number.bit_length() if isinstance(number, int) else 0)  # pyright: ignore[reportUnnecessaryIsInstance]
    return number


@_filter("float")
def _float(scope: RenderScope, value: object, default: float = 0.0) -> float:
    if isinstance(value, str):
        scope.spend(len(value))
    return jinja.do_float(value, default)


@_filter("default", "d")
def _default(_: Any, value: object, default_value: object = "", boolean: bool = False) -> object:
    return jinja.do_default(value, default_value, boolean)


@_filter("count", "length")
def _length(_: Any, value: Any) -> int:
    return len(value)


@_filter("first")
def _first(scope: RenderScope, seq: Iterable[object]) -> object:
    return next(iter(seq), scope.environment.undefined("No first item, sequence was empty."))


@_filter("last")
def _last(scope: RenderScope, seq: Any) -> object:
    return next(iter(reversed(seq)), scope.environment.undefined("No last item, sequence was empty."))


@_filter("list")
def _list(scope: RenderScope, value: Iterable[Any]) -> list[Any]:
    return scope.items(value)


@_filter("items")
def _items(scope: RenderScope, value: object) -> list[Any]:
    found = list(jinja.do_items(cast("Any", value)))
    scope.make_list(2 * len(found))
    return found


@_filter("reverse")
def _reverse(scope: RenderScope, value: Any) -> object:
    if isinstance(value, str):
        return scope.text(value)[::-1]
    return scope.items(value)[::-1]


@_filter("join")
def _join(scope: RenderScope, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = scope.items(value)
    if attribute is not None:
        _pay_for_fields(scope, attribute, len(items))
        items = map(jinja.make_attrgetter(scope.environment, attribute), items)
    texts, between = [scope.text(item) for item in items], scope.text(d)
    scope.make_text(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


@_filter("map")
def _map(scope: RenderScope, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
    items = scope.items(value)
    if args and args[0] not in FILTERS:
        raise PromptError(f"no filter {str(args[0])[:80]!r} in prompts")
    _pay_for_fields(scope, kwargs.get("attribute"), len(items))
    scope.spend(_SET_UP + _CALL * len(items))
    change = jinja.prepare_map(cast("Any", scope), args, kwargs)
    return [change(item) for item in items]


def _selection(name: str, *, by_field: bool, keep: bool) -> None:
    @_filter(name)
    def _(scope: RenderScope, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        items = scope.items(value)
        _pay_for_fields(scope, args[0] if by_field and args else None, len(items))
        scope.spend(_SET_UP + _CALL * len(items))

        def kept(passes: object) -> bool:
            return bool(passes) is keep

        holds = jinja.prepare_select_or_reject(cast("Any", scope), args, kwargs, kept, by_field)
        return [item for item in items if holds(item)]


_selection("select", by_field=False, keep=True)
_selection("reject", by_field=False, keep=False)
_selection("selectattr", by_field=True, keep=True)
_selection("rejectattr", by_field=True, keep=False)


def _compared(
    scope: RenderScope, value: Iterable[Any], attribute: object, *, sorts: bool = True
) -> list[Any]:
    """Return a list's items after paying for comparing each with one other, or for sorting them."""
    scope.spend(_SET_UP)
    items = scope.items(value)
    _pay_for_fields(scope, attribute, len(items))
    times = int(log2(len(items) + 1) + 1) if sorts else 4
    scope.spend((scope.measure(items) // _READ_AT_ONCE + ITEM * len(items)) * times)
    return items


@_filter("sort")
def _sort(
    scope: RenderScope,
    value: Iterable[Any],
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: str | int | None = None,
) -> list[Any]:
    items = _compared(scope, value, attribute)
    return jinja.do_sort(scope.environment, items, reverse, case_sensitive, attribute)


@_filter("groupby")
def _groupby(
    scope: RenderScope,
    value: Iterable[Any],
    attribute: str | int,
    default: object = None,
    case_sensitive: bool = False,
) -> list[Any]:
    items = _compared(scope, value, attribute)
    scope.spend(2 * _SET_UP)
    scope.make_list(3 * len(items))
    return jinja.sync_do_groupby(scope.environment, items, attribute, default, case_sensitive)


@_filter("dictsort")
def _dictsort(
    scope: RenderScope,
    value: Mapping[Any, Any],
    case_sensitive: bool = False,
    by: str = "key",
    reverse: bool = False,
) -> list[Any]:
    _compared(scope, value.items(), None)
    scope.spend(2 * _SET_UP)
    return jinja.do_dictsort(value, case_sensitive, cast("Any", by), reverse)


def _extreme(name: str, find: Callable[..., object]) -> None:
    @_filter(name)
    def _(
        scope: RenderScope,
        value: Iterable[Any],
        case_sensitive: bool = False,
        attribute: str | int | None = None,
    ) -> object:
        items = _compared(scope, value, attribute, sorts=False)
        return find(scope.environment, items, case_sensitive, attribute)


_extreme("min", jinja.do_min)
_extreme("max", jinja.do_max)


@_filter("unique")
def _unique(
    scope: RenderScope, value: Iterable[Any], case_sensitive: bool = False, attribute: str | int | None = None
) -> list[Any]:
    items = _compared(scope, value, attribute, sorts=False)
    of = (
        jinja.make_attrgetter(scope.environment, attribute)
        if attribute is not None
        else cast("Callable[[Any], Any]", _identity)
    )
    found: dict[object, Any] = {}
    for item in items:
        value_of = of(item)
        same = value_of.lower() if isinstance(value_of, str) and not case_sensitive else value_of
        # Whole numbers that are far apart may have one hash; many such would be compared with one another.
        far = isinstance(same, int) and same.bit_length() > 60
        found.setdefault(("far", str(same)) if far else same, item)
    return list(found.values())


@_filter("sum")
def _sum(
    scope: RenderScope, iterable: Iterable[Any], attribute: str | int | None = None, start: object = 0
) -> object:
    items = scope.items(iterable)
    scope.spend(5 * ITEM * len(items))
    if attribute is not None:
        _pay_for_fields(scope, attribute, len(items))
        items = map(jinja.make_attrgetter(scope.environment, attribute), items)
    for item in items:
        start = binary(scope, "+", start, item)
    return start


def _identity(value: object) -> object:
    return value


def _pay_for_fields(scope: RenderScope, attribute: object, count: int) -> None:
    """Pay for looking up a field of `count` items: `a.b` and `a,b` are two lookups for each."""
    if attribute is not None:
        text = str(attribute)
        scope.spend(10 * ITEM * count * (1 + text.count(".") + text.count(",")))
