"""Means of named values, each over the episodes that have the value. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolegraph.engine.records.episode import Episode

TOKENS_IN, TOKENS_OUT = "tokens in", "tokens out"
"""Names of the metrics that count the tokens of an episode's prompts and of its answers."""


class Means:
    """Running means of values by name, each over the rows that have the value.

    Only sums are kept, so that the memory does not depend on the length of a run.
    """

    def __init__(self, rows: Iterable[Mapping[str, float]] = ()) -> None:
        """Create running means over `rows`."""
        self._sums: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        """Number of rows with each value, by name."""
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, float], times: int = 1) -> None:
        """Add a row to the means, `times` times; means of values that the row lacks are unchanged."""
        for name, value in row.items():
            self._sums[name] = self._sums.get(name, 0.0) + times * value
            self.counts[name] += times

    def means(self) -> dict[str, float]:
        """Return the mean of each value, by name."""
        return {name: total / self.counts[name] for name, total in self._sums.items()}

    def partial(self, rows: int) -> dict[str, int]:
        """Return the number of rows with each value that is missing in some of `rows` rows, by name."""
        return {name: n for name, n in self.counts.items() if n < rows}


class EqualFigures:
    """Names of values in groups: the names of a group have equal values in every row.

    Only names are kept, so that the memory does not depend on the length of a run. A name without a value in
    any row is a group of its own.
    """

    def __init__(self, names: Iterable[str], rows: Iterable[Mapping[str, Hashable]] = ()) -> None:
        """Create the groups of `names` over `rows`."""
        self._place = {name: position for position, name in enumerate(names)}
        self._groups = [tuple(self._place)]
        self._present: set[str] = set()
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Hashable]) -> None:
        """Split each group whose names have different values in a row; a missing value counts as None."""
        self._present.update(row)
        new_groups: list[tuple[str, ...]] = []
        for group in self._groups:
            by_value: dict[Hashable, tuple[str, ...]] = {}
            for name in group:
                by_value[row.get(name)] = (*by_value.get(row.get(name), ()), name)
            new_groups += by_value.values()
        self._groups = new_groups

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Groups of names with equal values in every row, in the order in which the names were passed."""
        name_groups = [
            names
            for group in self._groups
            for names in ([group] if group and group[0] in self._present else zip(group))
        ]
        return sorted(name_groups, key=lambda names: self._place[names[0]])

    @property
    def distinct(self) -> list[str]:
        """First name of each group."""
        return [first_name for first_name, *_ in self.groups]


def means_by_task(rows: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the mean of each value over the episodes of each task, by name, then task id.

    Args:
        rows: (id of the task, values by name) of each episode.
    """
    # Plain sums: a `Means` for each figure takes five times as long on a list of 10,000 episodes.
    sums: dict[str, dict[str, tuple[float, int]]] = {}
    for task, figures in rows:
        for name, value in figures.items():
            by_task = sums.setdefault(name, {})
            total, n = by_task.get(task, (0.0, 0))
            by_task[task] = total + value, n + 1
    return {name: {task: total / n for task, (total, n) in by_task.items()} for name, by_task in sums.items()}


def figures_with_rewards(episode: Episode) -> dict[str, float]:
    """Return an episode's averaged metrics, and `reward/{role}`, the mean reward over the instances of the
    role."""
    rewards = Means({f"reward/{t.name}": t.reward} for t in episode.trajectories if t.reward is not None)
    return {**episode.figures, **rewards.means()}
