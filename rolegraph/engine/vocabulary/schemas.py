"""Checks of values against JSON Schemas with a bounded amount of work; both may be untrusted.

A unit of work is a keyword applied to a part of a value, or an item or name that the keyword inspects.
References are resolved without fetching anything.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.json_values import walk_paths
from rolegraph.engine.limits.answers import SCHEMA_WORK

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | Sequence[Any] | None]
"""`keyword(validator, wanted, value, schema)` returns a value's errors; `wanted` is the keyword's value."""
UNBOUNDED_KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")
"""Keywords for which the library follows references without counting the work."""
UNCHECKED_KEYWORDS = ("pattern", "patternProperties", "$ref", "$dynamicRef", *UNBOUNDED_KEYWORDS)
"""Keywords that the JSON Schema of a role's argument may not have."""
_ANNOTATIONS = frozenset(
    "title description examples deprecated readOnly writeOnly then else minContains maxContains "
    "contentEncoding contentMediaType contentSchema definitions".split()
)
"""Keywords that check nothing by themselves."""
_COMPARING = ("const", "enum", "uniqueItems")
"""Keywords that compare values including everything inside them."""
_WEIGHTS = {
    **{"$ref": 10, "$dynamicRef": 10},
    **dict.fromkeys(("anyOf", "oneOf", "not", "if", "multipleOf"), 4),
    **dict.fromkeys(("items", "prefixItems", "contains", "propertyNames", "uniqueItems"), 4),
}
"""Factor of the work of slow keywords, measured by benchmarks/holding.py; 1 for all others."""
_ERROR_UNITS = 8
"""Units of work for an error, besides one unit for each value that its message quotes."""


class SchemaProblem(NamedTuple):
    """Error of a value that does not fit a schema."""

    path: str
    """JSON path of the part that does not fit."""
    message: str


class TooMuchWork(ValueError):
    """Raised where a schema check exceeds the limit `schema_work` or Python's depth of recursion."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise ValueError if a mapping is no JSON Schema (2020-12), with the reason.

    An unknown keyword is also an error.
    """
    library: Any = import_module("jsonschema")
    draft: Any = library.Draft202012Validator
    try:
        draft.check_schema(schema)
    except library.SchemaError as error:
        raise ValueError(error.message) from error
    keywords = {*draft.VALIDATORS, *_ANNOTATIONS}
    for key in schema:
        if key not in keywords and not key.startswith(("$", "x-")):
            hint = did_you_mean(key, keywords)
            raise ValueError(f"there is no keyword {key!r}{'; ' if hint else ''}{hint}")


def keywords_in(schema: object, names: Container[str]) -> Iterator[tuple[str, object]]:
    """Yield (key, value) for each key in `names`, at any depth of a JSON Schema.

    Parts that are no schemas are searched as well, since a reference may use them as one.
    """
    for path, value in walk_paths(schema):
        if path and isinstance(key := path[-1], str) and key in names:
            yield key, value


def schema_checker(
    schema: Mapping[str, Any], overrides: Mapping[str, Keyword]
) -> Callable[[object, bool], SchemaProblem | None]:
    """Return a function that returns the most relevant problem of a value, or None if the value fits.

    The function's second argument is True to count the work together with that of the previous value. It
    raises TooMuchWork, and if `schema` is not a JSON Schema, the errors of jsonschema.

    Args:
        schema: The schema, in draft 2020-12.
        overrides: Implementations of keywords that replace jsonschema's.
    """
    # Imported here, because they are slow to load; as Any, because their types are partial.
    library: Any = import_module("jsonschema")
    draft: Any = library.Draft202012Validator
    left = 0

    def spend(units: int) -> None:
        nonlocal left
        left -= units
        if left < 0:
            raise TooMuchWork(SCHEMA_WORK.exceeded("to check it against the schema takes"))

    def counted(name: str, keyword: Keyword) -> Keyword:
        weight = _WEIGHTS.get(name, 1)
        size = _count_nodes if name in _COMPARING else _length

        def count(validator: Any, wanted: Any, value: Any, around: Any) -> Iterator[Any]:
            spend(weight * (1 + size(wanted) + size(value)))
            for fault in keyword(validator, wanted, value, around) or ():
                spend(_ERROR_UNITS + _count_nodes(wanted) + _count_nodes(value))
                yield fault

        return count

    usual: Mapping[str, Keyword] = draft.VALIDATORS
    keywords = {name: counted(name, keyword) for name, keyword in {**usual, **overrides}.items()}
    kind = library.validators.extend(draft, keywords)
    # An empty registry: references may lead into the schema only.
    validator = kind(schema, registry=import_module("referencing").Registry())

    def check(value: object, further: bool) -> SchemaProblem | None:
        nonlocal left
        left = left if further else SCHEMA_WORK.most
        try:
            problem = library.exceptions.best_match(validator.iter_errors(value))
        except RecursionError:
            raise TooMuchWork("it is beyond what the schema can check") from None
        return None if problem is None else SchemaProblem(problem.json_path, problem.message)

    return check


def _count_nodes(value: object) -> int:
    """Return the number of values in nested lists and mappings, the value itself included."""
    count, values_left = 0, [value]
    while values_left:
        current = values_left.pop()
        count += 1
        if isinstance(current, dict):
            values_left += cast("dict[object, object]", current).values()
        elif isinstance(current, list):
            values_left += cast("list[object]", current)
    return count


def _length(value: object) -> int:
    """Return the cost of checking a value: the number of its items, or its characters / 64; 0 for scalars."""
    if isinstance(value, str):
        return len(value) // 64
    return len(cast("list[object]", value)) if isinstance(value, dict | list) else 0
