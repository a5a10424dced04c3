"""The filters of templates. Each is paid for by the sizes of its arguments before it runs.

Filters behave as Jinja2's, but return plain text and lists, never `Markup` or generators. Fields that a
filter looks up by name go through the sandbox, as a dot does.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from math import log2
from operator import not_, truth
from typing import Any, cast

from jinja2 import Undefined, pass_context, pass_environment
from jinja2 import filters as jinja
from markupsafe import escape

from rolegraph.engine.limits.prompts import PROMPT_DIGITS, PROMPT_INDENT
from rolegraph.engine.prompts.scope import ITEM, PromptError, RenderScope, binary, number_for
from rolegraph.engine.vocabulary import UNKNOWN

Filter = Callable[..., Any]
FILTERS: dict[str, Filter] = {
    **dict.fromkeys(("count", "length"), len),
    "first": jinja.sync_do_first,
    "last": jinja.do_last,
    "list": pass_context(RenderScope.items),
}
"""Filters whose cost does not depend on their arguments, by the names that templates use."""
_WORD = 60
"""Units for a character in a filter that makes an object of each word."""
_CALL = 20 * ITEM
"""Units for calling another filter or a test on one item."""
_FIELD = 10 * ITEM
"""Units for looking up a field of one item."""
_SET_UP = 40 * ITEM
"""Units for a filter that resolves its arguments before it reads any item."""
_READ_AT_ONCE = 8
"""Number of characters of two texts that are compared for one unit."""
_NUMBER = 400
"""Largest number of characters of a float in `format`, without its width and precision."""


def _filter(name: str) -> Callable[[Filter], Filter]:
    """Return a decorator that registers a Jinja2 filter, whose first argument is the RenderScope."""

    def register(function: Filter) -> Filter:
        FILTERS[name] = pass_context(function)
        return function

    return register


def _change_text(change: Callable[[str], Any], units: int, scope: RenderScope, s: object) -> object:
    """Return `change(text)` for a value as text, after charging `units` of the rendering budget per
    character."""
    text = scope.text(s)
    scope.spend(units * len(text))
    result = change(text)
    if isinstance(result, str):
        scope.make_text(len(result))
    return result


def _escaped(text: str) -> str:
    return str(escape(text))


for _name, _change, _units in (
    ("lower", str.lower, 1),
    ("upper", str.upper, 1),
    ("capitalize", str.capitalize, 1),
    ("string", str, 0),
    ("title", jinja.do_title, _WORD),
    ("wordcount", jinja.do_wordcount, _WORD),
    ("escape", _escaped, 6),  # a character becomes 6 at most
    ("e", _escaped, 6),
):
    _filter(_name)(partial(_change_text, _change, _units))


@_filter("trim")
def _trim(scope: RenderScope, value: object, chars: str | None = None) -> str:
    text = scope.text(value)
    scope.spend(len(text) * len(chars or " "))
    return text.strip(chars)


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
        message = f"truncate cannot make a text of {length!r} characters: its end alone has {len(end):,}"
        raise PromptError(message)
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
    repeats = len(fields) if kwargs else 1
    scope.make_text(size + scope.measure(kwargs or args, written=True) * repeats)
    text = pattern % (kwargs or args)
    scope.make_text(len(text))
    return text


@_filter("tojson")
def _tojson(
    scope: RenderScope,
    value: object,
    indent: int | None = None,
    *,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON with the defaults and options of transformers' chat templates.

    Jinja's own filter escapes for HTML (`<` as `\\u003c`), which a model would read."""
    if indent is not None and not 0 <= indent <= PROMPT_INDENT.most:
        raise PromptError(f"tojson indents by 0 to {PROMPT_INDENT}, not {indent}")
    scope.spend(_SET_UP)
    if isinstance(value, Undefined):
        str(value)  # raises the error that names it
    size = scope.measure(value, written=True)
    size *= 1 + sum(map(len, separators or ()))  # at most one of each behind a character
    scope.make_text(size)
    scope.spend(2 * size)
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    text = json.dumps(value, ensure_ascii=ensure_ascii, **options)
    scope.make_text(len(text))
    return text


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
        scope.spend(4 * len(value))  # for each digit Python takes time in proportion to the others
    number = jinja.do_int(value, default, base)
    scope.make_number(number.bit_length() if isinstance(number, int) else 0)  # pyright: ignore[reportUnnecessaryIsInstance]
    return number


@_filter("float")
def _float(scope: RenderScope, value: object, default: float = 0.0) -> float:
    if isinstance(value, str):
        scope.spend(len(value))
    return jinja.do_float(value, default)


@_filter("items")
def _items(scope: RenderScope, value: object) -> list[Any]:
    items = list(jinja.do_items(cast("Any", value)))
    scope.make_list(2 * len(items))
    return items


@_filter("reverse")
def _reverse(scope: RenderScope, value: Any) -> object:
    if isinstance(value, str):
        return scope.text(value)[::-1]
    return scope.items(value)[::-1]


@_filter("join")
def _join(scope: RenderScope, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    texts = [scope.text(item) for item in _fields(scope, value, attribute) if item is not UNKNOWN]
    separator = scope.text(d)
    scope.make_text(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


@_filter("sum")
def _sum(
    scope: RenderScope, iterable: Iterable[Any], attribute: str | int | None = None, start: object = 0
) -> object:
    for item in _fields(scope, iterable, attribute):
        scope.spend(5 * ITEM)
        start = binary(scope, "+", start, item)
    return start


def _fields(scope: RenderScope, value: Iterable[Any], attribute: str | int | None) -> Iterable[Any]:
    """Return the items of an iterable, or `attribute` of each, after charging the render budget for them."""
    items = scope.items(value)
    if attribute is None:
        return items
    scope.spend(_lookups(attribute) * len(items))
    return map(jinja.make_attrgetter(scope.environment, attribute), items)


@_filter("map")
def _map(scope: RenderScope, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
    if args and args[0] not in FILTERS:
        raise PromptError(f"no filter {str(args[0])[:80]!r}")
    items = scope.items(value)
    scope.spend(_SET_UP + (_CALL + _lookups(kwargs.get("attribute"))) * len(items))
    change = jinja.prepare_map(cast("Any", scope), args, kwargs)
    return [change(item) for item in items]


def _select(name: str, scope: RenderScope, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
    by_field, is_kept = name.endswith("attr"), truth if name.startswith("select") else not_
    items = scope.items(value)
    scope.spend(_SET_UP + (_CALL + _lookups(*args[:1] if by_field else ())) * len(items))
    holds = jinja.prepare_select_or_reject(cast("Any", scope), args, kwargs, is_kept, by_field)
    return [item for item in items if holds(item)]


for _name in ("select", "reject", "selectattr", "rejectattr"):
    _filter(_name)(partial(_select, _name))


@pass_environment
def _unique(
    environment: Any, items: Sequence[Any], case_sensitive: bool = False, attribute: str | int | None = None
) -> list[Any]:
    """Return items without repeated values, as Jinja2's filter `unique`, in time linear in their number."""
    postprocess = None if case_sensitive else jinja.ignore_case
    value_of = jinja.make_attrgetter(environment, attribute, postprocess)
    first_items: dict[object, Any] = {}
    for item in items:
        value = value_of(item)
        # Whole numbers that are far apart may have one hash; many such would be compared with one another.
        is_far = isinstance(value, int) and value.bit_length() > 60
        first_items.setdefault(("far", str(value)) if is_far else value, item)
    return list(first_items.values())


def _compared(
    scope: RenderScope, value: Iterable[Any], *options: object, sorts: bool, set_ups: int
) -> list[Any]:
    """Return an iterable's items as a list, after charging the rendering budget for sorting or comparing
    them.

    Options that are texts or whole numbers may name fields to compare by.
    """
    scope.spend(set_ups * _SET_UP)
    items = scope.items(value)
    times = int(log2(len(items) + 1) + 1) if sorts else 4
    scope.spend((scope.measure(items) // _READ_AT_ONCE + ITEM * len(items)) * times)
    scope.spend((3 * ITEM + _lookups(*options)) * len(items))
    return items


def _compare(name: str, scope: RenderScope, value: Iterable[Any], *args: Any, **kwargs: Any) -> object:
    """Call Jinja2's filter `name`, which compares items (`sort`, `max`, …), after charging the rendering
    budget."""
    finder, sorts, set_ups = _COMPARING[name]
    items = _compared(scope, value, *args, *kwargs.values(), sorts=sorts, set_ups=set_ups)
    return finder(scope.environment, items, *args, **kwargs)


_COMPARING: Mapping[str, tuple[Filter, bool, int]] = {
    "sort": (jinja.do_sort, True, 1),
    "min": (jinja.do_min, False, 1),
    "max": (jinja.do_max, False, 1),
    "unique": (_unique, False, 1),
    "groupby": (jinja.sync_do_groupby, True, 3),
}
"""For each filter: Jinja2's function, True if it sorts, and the number of times that it resolves its
arguments."""
for _name in _COMPARING:
    _filter(_name)(partial(_compare, _name))


@_filter("dictsort")
def _dictsort(scope: RenderScope, value: Mapping[Any, Any], *args: Any, **kwargs: Any) -> list[Any]:
    _compared(scope, value.items(), sorts=True, set_ups=3)
    return jinja.do_dictsort(value, *args, **kwargs)


def _lookups(*options: object) -> int:
    """Return the cost, in units of the render budget, of the field names in a filter's options: 2 for
    `a.b`."""
    names = [str(option) for option in options if type(option) in (str, int)]
    return _FIELD * sum(1 + name.count(".") + name.count(",") for name in names)


def _of_known(name: str, function: Filter) -> Filter:
    """Return a filter that returns UNKNOWN if its value or an argument is unknown.

    If a list has unknown items, the filter reads only the known items; the length and the sum of such a list
    are UNKNOWN.
    """
    value_index = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def of_these(*given: Any, **named: Any) -> Any:
        if any(it is UNKNOWN for it in (*given, *named.values())):
            return UNKNOWN
        value = given[value_index]
        if type(value) is list and any(it is UNKNOWN for it in cast("list[Any]", value)):
            if name in ("sum", "count", "length"):
                return UNKNOWN
            items = [it for it in cast("list[Any]", value) if it is not UNKNOWN]
            given = (*given[:value_index], items, *given[value_index + 1 :])
        result = function(*given, **named)
        return UNKNOWN if isinstance(result, Undefined) else result

    return of_these


FILTERS.update({name: _of_known(name, function) for name, function in FILTERS.items()})


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if value is UNKNOWN else jinja.do_default(value, default_value, boolean)


FILTERS.update(default=_default, d=_default)


def wrong_arguments(function: Callable[..., Any], positional: int, keywords: Sequence[str]) -> str:
    """Return the fault of a filter's or test's arguments, such as "missing a required argument: 'old'".

    Args:
        function: Function of a filter, from `TAKING`, or of a test of Jinja2.
        positional: Number of positional arguments after the value.
        keywords: Names of the keyword arguments.

    Returns:
        The fault; empty where the arguments fit.
    """
    placeholders = (1 + hasattr(function, "jinja_pass_arg") + positional) * (None,)
    try:
        inspect.signature(function).bind(*placeholders, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return ""


TAKING: Mapping[str, Filter] = {
    **FILTERS,
    **{name: find for name, (find, _, _) in _COMPARING.items()},
    "dictsort": jinja.do_dictsort,
}
"""For each filter, a function with the filter's parameters."""
