"""Numbers of a spec that change over the steps of a training. Pure.

A schedule, `{from: 0.1, to: 0, steps: 100}`, may stand for a number under one of `SCHEDULED_KEYS`. The data
of a spec is read as of one step: each schedule is replaced by its value there, so later code reads numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

SCHEDULED_KEYS = frozenset({"weight", "coefficient", "temperature"})
"""Keys whose number may be a schedule."""
DataPath = tuple[str | int, ...]
"""Keys and positions from the top of a spec to a value."""


class NumberSchedule(BaseModel):
    """Number that moves linearly from one value to another, and is constant before and after."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    first: Annotated[FiniteFloat, Field(alias="from")]
    """Value in the first step."""
    last: Annotated[FiniteFloat, Field(alias="to")]
    """Value after `steps` steps, and where nothing is trained."""
    steps: Annotated[int, Field(ge=1)]
    """Number of steps from the first value to the last."""
    after: Annotated[int, Field(ge=0)] = 0
    """Number of steps that keep the first value before it moves."""

    def at(self, step: int | None) -> float:
        """Return the value in a training step, from 1; None for a run, an evaluation or a validation."""
        if step is None or step > self.after + self.steps:
            return self.last
        return self.first + (self.last - self.first) * max(0, step - 1 - self.after) / self.steps

    @property
    def corners(self) -> list[tuple[int, float]]:
        """Steps and values at which the curve begins, leaves the first value and reaches the last."""
        return [(step, self.at(step)) for step in sorted({1, 1 + self.after, 1 + self.after + self.steps})]


class _Scheduled:
    """Annotation of a number that a spec may give as a schedule."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the JSON Schema of the number or a schedule."""
        return {"anyOf": [handler(schema), handler(NumberSchedule.__pydantic_core_schema__)]}


SCHEDULED = _Scheduled()
"""Annotation of a number that a spec may give as a schedule."""


def written_schedules(data: Mapping[str, Any]) -> Iterator[tuple[DataPath, Mapping[str, Any]]]:
    """Return the path and the mapping of each schedule in a spec's data, valid or not, in order.

    Args:
        data: Resolved data of the spec.
    """
    return _written((), data)


def _written(path: DataPath, value: object) -> Iterator[tuple[DataPath, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        if path and path[-1] in SCHEDULED_KEYS and {"from", "to", "steps"} & mapping.keys():
            yield path, mapping
        else:
            for key, inner in mapping.items():
                yield from _written((*path, key), inner)
    elif isinstance(value, list):
        for place, inner in enumerate(cast("list[object]", value)):
            yield from _written((*path, place), inner)


def values_at(data: Mapping[str, Any], values: Mapping[DataPath, float]) -> dict[str, Any]:
    """Return a copy of a spec's data with the given numbers at their paths; other parts are shared."""
    copy = {**data}
    for path, number in values.items():
        here: Any = copy
        for key in path[:-1]:
            here[key] = here[key].copy()
            here = here[key]
        here[path[-1]] = number
    return copy
