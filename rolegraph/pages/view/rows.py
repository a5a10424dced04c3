"""Episodes of a run in some order, as columns of their index.

A million rows take 40 MB. Values that depend only on the task or the outcome are computed once for each task
id or outcome.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from rolegraph.engine.records.episodes import EpisodeFile, IndexEntry
from rolegraph.engine.records.folder import RunPart
from rolegraph.engine.records.index import IndexNumbers
from rolegraph.engine.records.means import EqualFigures
from rolegraph.engine.training.analysis.intervals import ByTask

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


class EpisodeLocation(NamedTuple):
    """Location of an episode: its number in a file, from 0, and its index entry."""

    part: RunPart
    number: int
    entry: IndexEntry

    @property
    def rewards(self) -> dict[str, float]:
        """Mean reward of each role that has rewards, by its name."""
        return self.entry.rewards


@dataclass(slots=True)
class EpisodeCounts:
    """Numbers of episodes by outcome, and by the failures in them."""

    right: int = 0
    wrong: int = 0
    """Number of episodes that are not correct, with or without a failure."""
    undecided: int = 0
    failed: int = 0
    """Number of episodes with a failure of any role."""
    wrong_by_failure: int = 0
    """Number of the wrong episodes that have a failure."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Number of episodes by role and name of a failure in them."""

    @property
    def total(self) -> int:
        """Number of all episodes."""
        return self.right + self.wrong + self.undecided


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRows(Sequence[EpisodeLocation]):
    """Rows of a run's episodes in some order; an EpisodeLocation is built on access."""

    numbers: IndexNumbers
    """Tables that give each task id and each outcome a number, shared by the files of a run."""
    parts: Sequence[RunPart]
    starts: Sequence[int]
    """Position in the columns of each file's first episode, then the end of the columns."""
    columns: Sequence[Ints]
    """Columns of `IndexBlock`, over all episodes of the files."""
    chosen: Ints
    """Positions in the columns of the rows, in the order of the rows."""

    @classmethod
    def read(cls, part: RunPart, numbers: IndexNumbers) -> Self:
        """Return the rows of a file in its order, without damaged lines; raises DataError."""
        columns = [array("q") for _ in range(5)]
        for block in EpisodeFile(part.path).blocks(lambda fault: None, lambda: numbers):
            for column, values in zip(columns, block[1:], strict=True):
                column.extend(values)
        count = len(columns[0])
        arrays = [np.frombuffer(column, np.int64, count) for column in columns]
        return cls(numbers, [part], [0, count], arrays, np.arange(count))

    @classmethod
    def joined(cls, files: Sequence[EpisodeRows], numbers: IndexNumbers) -> EpisodeRows:
        """Return the rows of several files, one file after the other."""
        if len(files) == 1:
            return files[0]
        starts = [*accumulate(map(len, files), initial=0)]
        no_rows = np.empty(0, np.int64)
        columns = [np.concatenate([no_rows, *(file.columns[index] for file in files)]) for index in range(5)]
        return cls(numbers, [file.parts[0] for file in files], starts, columns, np.arange(starts[-1]))

    def take(self, which: Mask | Ints | slice) -> EpisodeRows:
        """Return a part of the rows: those where a mask is True, at the given positions, or in a slice."""
        return replace(self, chosen=self.chosen[which])

    def __len__(self) -> int:
        return self.chosen.size

    @overload
    def __getitem__(self, index: int) -> EpisodeLocation: ...
    @overload
    def __getitem__(self, index: slice) -> EpisodeRows: ...
    def __getitem__(self, index: int | slice) -> EpisodeLocation | EpisodeRows:
        return self.take(index) if isinstance(index, slice) else self._location(int(self.chosen[index]))

    def __iter__(self) -> Iterator[EpisodeLocation]:
        return map(self._location, map(int, self.chosen))

    def _location(self, place: int) -> EpisodeLocation:
        offset, length, task, rollout, outcome = (int(column[place]) for column in self.columns)
        index_entry = self.numbers.outcomes[outcome].located(
            offset, length, self.numbers.tasks[task], rollout
        )
        part = bisect_right(self.starts, place) - 1
        return EpisodeLocation(self.parts[part], place - self.starts[part], index_entry)

    def position(self, row: EpisodeLocation) -> int | None:
        """Return the position of an episode among these rows; None where it is not one of them."""
        if row.part not in self.parts:
            return None
        row_index = self.starts[self.parts.index(row.part)] + row.number
        return next(map(int, np.flatnonzero(self.chosen == row_index)), None)

    @property
    def files(self) -> Ints:
        """Position in `parts` of each row's file."""
        return np.searchsorted(self.starts, self.chosen, "right") - 1

    @property
    def tasks(self) -> Ints:
        """Number of each row's task id."""
        return self.columns[2][self.chosen]

    @property
    def rollouts(self) -> Ints:
        """Rollout of each row."""
        return self.columns[3][self.chosen]

    @property
    def outcomes(self) -> Ints:
        """Number of each row's outcome."""
        return self.columns[4][self.chosen]

    def of_task(self, task: str) -> EpisodeRows:
        """Return the rows of a task id."""
        return self.take(self.tasks == self.numbers.number(task))

    def by_task(self) -> EpisodeRows:
        """Return the rows grouped by file and task, in order of first occurrence; within a task, by
        rollout."""
        groups = self.files * len(self.numbers.tasks) + self.tasks
        # Where an index is repeated, NumPy assigns the last value: that of the first row.
        first_rows = np.empty(len(self.parts) * len(self.numbers.tasks), np.int64)
        first_rows[groups[::-1]] = np.arange(groups.size)[::-1]
        return self.take(np.lexsort((self.rollouts, first_rows[groups])))

    def only(self, rows: Iterable[EpisodeLocation]) -> EpisodeRows:
        """Return a selection of the rows, which must be from the same files."""
        starts = dict(zip(self.parts, self.starts, strict=False))
        return replace(self, chosen=np.array([starts[row.part] + row.number for row in rows], np.int64))

    def counted(self) -> list[tuple[IndexEntry, int]]:
        """Return the distinct outcomes in order of first occurrence, each with its number of rows."""
        counts = np.bincount(self.outcomes, minlength=len(self.numbers.outcomes))
        return [(self.numbers.outcomes[number], int(counts[number])) for number in self._outcome_numbers()]

    def _outcome_numbers(self) -> list[int]:
        outcomes = self.outcomes
        first_rows = np.full(len(self.numbers.outcomes), outcomes.size)
        first_rows[outcomes[::-1]] = np.arange(outcomes.size)[::-1]
        order = np.argsort(first_rows)
        return [*map(int, order[first_rows[order] < outcomes.size])]

    def counts(self, role: str = "") -> EpisodeCounts:
        """Count the episodes by outcome, and the failures of a role.

        Args:
            role: The role; empty for the failures of all roles.
        """
        counts = EpisodeCounts()
        for outcome, count in self.counted():
            roles = {name: of for name, of in outcome.roles.items() if role in ("", name)}
            failures = {(name, failure): count for name, of in roles.items() for failure in of.failures}
            is_wrong = not (outcome.undecided or outcome.is_correct)
            counts.undecided += count * outcome.undecided
            counts.right += count * (outcome.is_correct and not outcome.undecided)
            counts.wrong += count * is_wrong
            counts.failed += count * bool(failures)
            counts.wrong_by_failure += count * (is_wrong and bool(failures))
            counts.failures.update(failures)
        return counts

    def splits(self) -> Counter[str]:
        """Count the episodes by split."""
        counts = Counter[str]()
        for part, count in zip(self.parts, np.bincount(self.files, minlength=len(self.parts)), strict=True):
            counts[part.split] += int(count)
        return +counts

    @property
    def right(self) -> int:
        """Number of rows that are correct."""
        return sum(count * outcome.is_correct for outcome, count in self.counted())

    def task_count(self) -> int:
        """Return the number of distinct task ids."""
        return int(np.count_nonzero(np.bincount(self.tasks)))

    def values(self, names: Collection[str]) -> dict[str, ByTask]:
        """Return the episodes' metrics with these names, each with its mean over the rollouts of each task.

        The rewards of roles follow as `reward/{role}`.
        """
        outcome_metrics = self._figures(names)
        tasks, outcomes, size = self.tasks, self.outcomes, len(self.numbers.outcomes)

        def means(by_outcome: dict[int, float]) -> ByTask:
            values, has_value, numbers = np.zeros(size), np.zeros(size), [*by_outcome]
            values[numbers], has_value[numbers] = [*by_outcome.values()], 1.0
            sums, counts = np.bincount(tasks, values[outcomes]), np.bincount(tasks, has_value[outcomes])
            task_numbers = map(int, np.flatnonzero(counts))
            return {self.numbers.tasks[task]: float(sums[task] / counts[task]) for task in task_numbers}

        return {
            name: means({number: of[name] for number, of in outcome_metrics.items() if name in of})
            for name in _names(outcome_metrics.values())
        }

    def equal_figures(self, names: Collection[str]) -> list[tuple[str, ...]]:
        """Group the names of `values`: names with equal values in every episode share a tuple."""
        rows = self._figures(names).values()
        return EqualFigures(_names(rows), rows).groups

    def _figures(self, names: Collection[str]) -> dict[int, dict[str, float]]:
        """Return the metrics with these names and the rewards of roles, by the index of the episode outcome
        that has these values."""
        outcomes = {number: self.numbers.outcomes[number] for number in self._outcome_numbers()}
        return {
            number: {
                name: value
                for name, value in outcome.figures_with_rewards.items()
                if name in names or name.startswith("reward/")
            }
            for number, outcome in outcomes.items()
        }


def _names(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the names of metrics in order of first occurrence in the rows, rewards of roles last."""
    return sorted(
        dict.fromkeys(name for row in rows for name in row), key=lambda it: it.startswith("reward/")
    )
