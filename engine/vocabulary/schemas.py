"""Holds values against a JSON Schema for counted work: the one, the other or both come from strangers.

A unit is a keyword that is asked of a part of a value, or an item or a name that the keyword looks through.
Nothing is fetched. Knows nothing of where schemas come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

from rolegraph.engine.limits.answers import SCHEMA_WORK

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | Sequence[Any] | None]
"""Validator, what the schema says, the value and the schema around, to what is wrong."""
UNBOUNDED_KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")
"""Keywords of which the library follows references itself, over and over, where nobody counts."""
_COMPARE = ("const", "enum", "uniqueItems")
"""Keywords that look at all that is in what they compare."""
_ALSO = {"$ref": 10, "$dynamicRef": 10, "anyOf": 4, "oneOf": 4, "not": 4, "if": 4, "multipleOf": 4}
"""Units that keywords cost besides, which look others up, try them or calculate."""
_EACH = {"items": 4, "prefixItems": 4, "contains": 4, "propertyNames": 4, "uniqueItems": 4}
"""Units for an item or a name, where it is not 1: each is held against a schema of its own, or written."""
_SIZED = (str, dict, list)
_FAULT = 8
"""Units for a fault, beside one for each value in what is said of it: it is written out whole."""


class SchemaProblem(NamedTuple):
    """What does not fit: where in the value, and what is said of it."""

    path: str
    message: str


class TooMuchWork(ValueError):
    """To check a value takes more work than there may be, or goes deeper than Python does."""


def schema_checker(
    schema: Mapping[str, Any], own: Mapping[str, Keyword], registry: Any = None
) -> Callable[[object], SchemaProblem | None]:
    """What finds the worst problem of a value, None where it fits. `own` are keywords in place of the usual.

    `registry` is where references lead, by default nowhere but into the schema. The check raises TooMuchWork,
    and what the library does where the schema is none.
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
        also, each = 1 + _ALSO.get(name, 0), _EACH.get(name, 1)
        size = _nodes if name in _COMPARE else _sizes

        def count(validator: Any, wanted: Any, value: Any, around: Any) -> Iterator[Any]:
            spend(also + each * size(wanted, value))
            for fault in keyword(validator, wanted, value, around) or ():
                spend(_FAULT + _nodes(wanted, value))
                yield fault

        return count

    usual: Mapping[str, Keyword] = draft.VALIDATORS
    keywords = {name: counted(name, keyword) for name, keyword in {**usual, **own}.items()}
    kind = library.validators.extend(draft, keywords)
    nowhere = import_module("referencing").Registry()
    validator = kind(schema, registry=nowhere if registry is None else registry)

    def check(value: object) -> SchemaProblem | None:
        nonlocal left
        left = SCHEMA_WORK.most
        try:
            problem = library.exceptions.best_match(validator.iter_errors(value))
        except RecursionError:
            raise TooMuchWork("it is beyond what the schema can check") from None
        return None if problem is None else SchemaProblem(problem.json_path, problem.message)

    return check


def _nodes(*values: object) -> int:
    """How many values there are in all, with those inside one another."""
    found, todo = 0, [*values]
    while todo:
        value = todo.pop()
        found += 1
        if isinstance(value, dict):
            todo += cast("dict[object, object]", value).values()
        elif isinstance(value, list):
            todo += cast("list[object]", value)
    return found


def _sizes(*values: object) -> int:
    """Units for what a keyword may look through."""
    return sum(
        len(value) // 64 if isinstance(value, str) else len(cast("list[object]", value))
        for value in values
        if isinstance(value, _SIZED)
    )
