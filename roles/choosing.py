"""Picking from actions: the commonest, or those with the best scores. Pure; knows no role and no tool."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

Same = Callable[[Any, Any], bool]
"""Whether two actions are the same."""


def commonest(actions: Sequence[Any], same: Same) -> Any:
    """The action that most of them are the same as; of equally common ones, the first."""
    groups: list[list[Any]] = []
    for action in actions:
        group = next((group for group in groups if same(action, group[0])), None)
        if group is None:
            groups.append([action])
        else:
            group.append(action)
    return max(groups, key=len)[0]


def best(actions: Sequence[Any], scored: Sequence[Sequence[Any]], path: Sequence[str]) -> list[Any]:
    """The actions by their scores, the highest first; of equal ones the first, those without one last.

    `scored` holds for each what was said of it, with a number at a path; the mean of several counts.
    """
    means: list[float] = []
    for said in scored:
        numbers = [number for each in said if (number := number_at(each, path)) is not None]
        means.append(sum(numbers) / len(numbers) if numbers else -math.inf)
    order = sorted(range(len(actions)), key=lambda place: -means[place])
    return [actions[place] for place in order]


def number_at(value: Any, path: Sequence[str]) -> float | None:
    """The number at a path into an action, which may be written as text; None where there is none.

    True and false are 1 and 0, as they are for rewards.
    """
    for key in path:
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(key)
        elif isinstance(value, list) and key.isdecimal():
            items = cast("list[Any]", value)
            value = items[int(key)] if int(key) < len(items) else None
        else:
            return None
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
