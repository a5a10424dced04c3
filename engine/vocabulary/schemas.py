"""Holds values against a JSON Schema for counted work: the one, the other or both come from strangers.

A unit is a keyword that is asked of a part of a value, or an item or a name that the keyword looks through.
Nothing is fetched. Knows nothing of where schemas come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

from engine.limits.answers import SCHEMA_WORK

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | Sequence[Any] | None]
"""Validator, what the schema says, the value and the schema around, to what is wrong."""
UNBOUNDED = ("unevaluatedProperties", "unevaluatedItems")
"""Keywords of which the library follows references itself, over and over, where nobody counts."""
_COMPARE = ("const", "enum", "uniqueItems")
"""Keywords that look at all that is in what they compare."""


class Problem(NamedTuple):
    """What does not fit: where in the value, and what is said of it."""

    path: str
    message: str


class TooMuchWork(ValueError):
    """To check a value takes more work than there may be, or goes deeper than Python does."""


def checker(
    schema: Mapping[str, Any], own: Mapping[str, Keyword], registry: Any = None
) -> Callable[[object], Problem | None]:
    """What finds the worst problem of a value, None where it fits. `own` are keywords in place of the usual.

    `registry` is where references lead, by default nowhere but into the schema. The check raises TooMuchWork,
    and what the library does where the schema is none.
    """
    # Imported here, because they are slow to load; as Any, because their types are partial.
    library: Any = import_module("jsonschema")
    draft: Any = library.Draft202012Validator
    left = 0

    def counted(name: str, keyword: Keyword) -> Keyword:
        def count(validator: Any, wanted: Any, value: Any, around: Any) -> Any:
            nonlocal left
            left -= 1 + (_nodes(wanted, value) if name in _COMPARE else _size(wanted) + _size(value))
            if left < 0:
                raise TooMuchWork(SCHEMA_WORK.past("to check it against the schema takes"))
            return keyword(validator, wanted, value, around)

        return count

    usual: Mapping[str, Keyword] = draft.VALIDATORS
    keywords = {name: counted(name, keyword) for name, keyword in {**usual, **own}.items()}
    kind = library.validators.extend(draft, keywords)
    nowhere = import_module("referencing").Registry()
    validator = kind(schema, registry=nowhere if registry is None else registry)

    def check(value: object) -> Problem | None:
        nonlocal left
        left = SCHEMA_WORK.most
        try:
            problem = library.exceptions.best_match(validator.iter_errors(value))
        except RecursionError:
            raise TooMuchWork("it is beyond what the schema can check") from None
        return None if problem is None else Problem(problem.json_path, problem.message)

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


def _size(value: object) -> int:
    """Units for what a keyword may look through."""
    if isinstance(value, str):
        return len(value) // 64
    return len(cast("list[object]", value)) if isinstance(value, dict | list) else 0
