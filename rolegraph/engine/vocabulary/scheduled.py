"""Numbers of a spec that may be expressions over the training step. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rolegraph.engine.json_values import DataPath, walk_paths

SCHEDULED_KEYS = frozenset({"weight", "coefficient", "temperature"})
"""Keys whose number may be an expression."""
STEP_NUMBER = "a number, or an expression over `step`, such as ramp(0.1, 0, 100)"
"""Description of a number that may follow the step, for messages."""
_EXPRESSION = re.compile(r"^step$|[^\w.+-]|\w[+-]")
"""Pattern of texts that are expressions: `step`, or a text with an operator or a call; not a word, not a
number in quotes."""


class _Scheduled:
    """Annotation of a number that a spec may give as an expression over the step."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the JSON Schema of the number or an expression."""
        description = "Expression over `step`, such as ramp(0.1, 0, 100)."
        expression = {"type": "string", "pattern": _EXPRESSION.pattern, "description": description}
        return {"anyOf": [handler(schema), expression]}


SCHEDULED = _Scheduled()
"""Annotation of a number that a spec may give as an expression over the step."""


def written_numbers(data: Mapping[str, Any]) -> Iterator[tuple[DataPath, str]]:
    """Yield (path, text) of each number that a spec's data writes as an expression, valid or not, in order.

    Args:
        data: Resolved data of the spec.
    """
    for path, value in walk_paths(data):
        if path and path[-1] in SCHEDULED_KEYS and isinstance(value, str) and _EXPRESSION.search(value):
            yield path, value


def values_at(data: Mapping[str, Any], values: Mapping[DataPath, float]) -> dict[str, Any]:
    """Return a copy of a spec's data with the given numbers at their paths; other parts are shared."""
    copy = {**data}
    for path, number in values.items():
        container: Any = copy
        for key in path[:-1]:
            container[key] = container[key].copy()
            container = container[key]
        container[path[-1]] = number
    return copy
