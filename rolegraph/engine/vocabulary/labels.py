"""Task fields that a reward compares with, and their check: a missing label must never pay.

A label is missing if it is null, not a number (NaN), or text without a visible character; a list of accepted
answers is also missing if it is empty or a member is missing. Every `Reward` checks its tasks, in whatever
package it is defined, and files are checked before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, cast


class MissingLabel(ValueError):
    """Error of a task whose label is missing; the turn fails with `reward_error`."""


@dataclass(frozen=True, slots=True)
class LabelCheck:
    """Check that each task has the required fields."""

    fields: tuple[str, ...]
    """Fields with an answer, or with a list of accepted answers."""
    values: tuple[str, ...] = ()
    """Fields among `fields` that hold one JSON value; a list in them may hold anything."""

    def faults(self, task: Mapping[str, Any]) -> Iterator[str]:
        """Yield a clause for each missing field, such as `task.answer is null`."""
        for name in self.fields:
            problem = _lack(task[name], name in self.values) if name in task else "is not in the row"
            if problem:
                yield f"task.{name} {problem}"


@dataclass(frozen=True, slots=True)
class CheckedScore:
    """Score function of a reward that raises MissingLabel for a task without its label."""

    score: Callable[..., Any]
    check: LabelCheck

    def __call__(self, task: Mapping[str, Any], *others: Any) -> Any:
        """Return the score of an action; raises MissingLabel, before computing it, if the task lacks a
        label."""
        for fault in self.check.faults(task):
            raise MissingLabel(f"{fault}, so the row has no label to compare with")
        return self.score(task, *others)


def _lack(value: object, is_value: bool) -> str:
    """Return a clause, such as `is null`, about a missing label or missing member of a list; empty if nothing
    is missing.

    `is_value` is True for a field that holds one JSON value, whose lists are not checked.
    """
    if is_value or not isinstance(value, list | tuple):
        return _emptiness(value)
    members = cast("Sequence[object]", value)
    if not members:
        return "is an empty list"
    problem = next((lack for lack in map(_emptiness, members) if lack), "")
    return problem and f"holds a member that {problem}"


def _emptiness(value: object) -> str:
    """Return a clause, `is null`, `is NaN` or `is empty`, about one value; empty for any other value."""
    if value is None:
        return "is null"
    if isinstance(value, float) and isnan(value):
        return "is NaN"
    return "is empty" if isinstance(value, str) and not value.strip() else ""
