"""Sides to what a person asks of them: where the specs differ, by how much the figures, which tasks flipped.

The first side is the one that the others are held against. Nothing is averaged over sides. A figure is the
mean over tasks, the rollouts of a task averaged first; `METHOD` says what its interval is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode, Trajectory
from rolegraph.engine.records.episodes import IndexEntry
from rolegraph.engine.report.compare.differences import (
    KeyDifference,
    TemplateChange,
    setting_differences,
    spec_differences,
    template_differences,
)
from rolegraph.engine.report.compare.sides import Side, SideResults
from rolegraph.engine.report.digest import instance, question
from rolegraph.engine.training.compare import (
    LEVEL,
    RESAMPLES,
    Interval,
    difference,
    difference_apart,
    interval,
)

METHOD = (
    f"{LEVEL} % intervals: percentile bootstrap over tasks, {RESAMPLES} resamples, "
    "the rollouts of a task averaged first"
)
SOLVED = 0.5
"""A task is solved where more than this share of its rollouts is correct."""


class SideActions(NamedTuple):
    """What one role instance did on each side, as far as it took part there."""

    instance: str
    first: Trajectory | None
    other: Trajectory | None


class FigureRow(NamedTuple):
    """A figure on every side, and each other side's difference from the first."""

    figure: str
    sides: Sequence[Interval | None]
    """None where a side does not have it."""
    differences: Sequence[Interval | None]
    """One fewer than sides."""

    def is_sure(self, at: int) -> bool:
        """Whether the interval of a difference leaves out 0."""
        gap = self.differences[at]
        return gap is not None and gap.n > 0 and (gap.low > 0 or gap.high < 0)


@dataclass(frozen=True, slots=True)
class TaskFlip:
    """A task that one side solves and the other does not."""

    task: str
    question: str
    was: float
    """The share of correct rollouts on the first side."""
    now: float
    first: Episode
    """One that shows it: correct where its side solves the task."""
    other: Episode

    def beside(self) -> list[SideActions]:
        """The role instances of both episodes, those of one name together."""
        one, two = (
            {instance(episode, trajectory): trajectory for trajectory in episode.trajectories}
            for episode in (self.first, self.other)
        )
        return [SideActions(name, one.get(name), two.get(name)) for name in {**one, **two}]


@dataclass(frozen=True, slots=True)
class TaskFlips:
    """How the tasks of another side went beside the first's."""

    side: str
    shared: int
    """Tasks that are the same on both sides: their ids and their rows."""
    alone: int
    """Tasks of either side that are not."""
    gained: Sequence[TaskFlip]
    """Those that only the other side solves, the clearest first, at most as many as were asked for."""
    lost: Sequence[TaskFlip]
    gains: int
    """How many there are in all."""
    losses: int

    @property
    def pairing(self) -> str:
        """How the differences of this side were made."""
        if not self.shared:
            return f"{self.side}: no task is the same; the difference of means, each side resampled alone"
        left = f"; {self.alone} others are left out" if self.alone else ""
        return f"{self.side}: differences paired over {self.shared} tasks that are the same{left}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between sides, and what came of it."""

    sides: Sequence[Side]
    spec: Sequence[KeyDifference]
    settings: Sequence[KeyDifference]
    templates: Sequence[TemplateChange]
    rows: Sequence[FigureRow]
    """Nothing where fewer than two sides have episodes."""
    flips: Sequence[TaskFlips]
    """For each side with episodes, but the first of them."""

    @property
    def method(self) -> str:
        """What the intervals are."""
        return METHOD

    @property
    def measured(self) -> Sequence[Side]:
        """The sides that have episodes, in order: those that rows are of."""
        return [side for side in self.sides if side.results is not None]

    @property
    def same_words(self) -> bool:
        """Whether only the code of what the specs name, or nothing at all, tells them apart."""
        return not (self.spec or self.templates)

    @property
    def other_code(self) -> bool:
        """Whether it is the code: the same words, and another hash."""
        return self.same_words and len({side.hash for side in self.sides}) > 1


def compare(sides: Sequence[Side], shown: int = 3) -> Comparison:
    """Hold sides against the first; at most `shown` flipped tasks each way have their episodes read.

    Raises UsageError for fewer than two sides.
    """
    if len(sides) < 2:
        raise UsageError("a comparison needs two: folders of runs or trainings, or specs")
    results = [(side.name, side.results) for side in sides if side.results is not None]
    return Comparison(
        sides,
        spec_differences([side.spec for side in sides]),
        setting_differences([side.settings for side in sides]),
        template_differences([side.name for side in sides], [side.templates for side in sides]),
        _rows([of for _, of in results]) if len(results) > 1 else (),
        [_flips(name, results[0][1], of, shown) for name, of in results[1:]],
    )


def _rows(results: Sequence[SideResults]) -> list[FigureRow]:
    first, *others = results
    names = dict.fromkeys(figure for of in results for figure in of.figures)
    rows: list[FigureRow] = []
    for name in names:
        sides = [interval(of.figures[name]) if name in of.figures else None for of in results]
        rows.append(FigureRow(name, sides, [_gap(name, first, other) for other in others]))
    return rows


def _gap(figure: str, first: SideResults, other: SideResults) -> Interval | None:
    if figure not in first.figures or figure not in other.figures:
        return None
    was, now = first.figures[figure], other.figures[figure]
    if not (same := _shared(first, other)):
        return difference_apart(now, was)
    return difference({task: value for task, value in now.items() if task in same}, was)


def _shared(first: SideResults, other: SideResults) -> set[str]:
    """The tasks that are the same on both sides: an id alone says nothing where the data has changed."""
    return {task for task, row in first.tasks.items() if other.tasks.get(task) == row}


def _flips(name: str, first: SideResults, other: SideResults, shown: int) -> TaskFlips:
    shared = _shared(first, other)
    was, now = first.figures["correct"], other.figures["correct"]
    turned = [task for task in shared if (was[task] > SOLVED) != (now[task] > SOLVED)]
    turned.sort(key=lambda task: (-abs(now[task] - was[task]), task))
    gained, lost = ([task for task in turned if (now[task] > SOLVED) is up] for up in (True, False))
    return TaskFlips(
        name,
        len(shared),
        len(first.tasks.keys() | other.tasks.keys()) - len(shared),
        [_flip(task, first, other) for task in gained[:shown]],
        [_flip(task, first, other) for task in lost[:shown]],
        len(gained),
        len(lost),
    )


def _flip(task: str, first: SideResults, other: SideResults) -> TaskFlip:
    was, now = first.figures["correct"][task], other.figures["correct"][task]
    row: Mapping[str, Any] = first.tasks[task]
    one, two = _telling(first.rollouts(task), other.rollouts(task), gained=now > SOLVED)
    return TaskFlip(task, question(row, task), was, now, first.file.read(one), other.file.read(two))


def _telling(
    first: Sequence[IndexEntry], other: Sequence[IndexEntry], *, gained: bool
) -> tuple[IndexEntry, IndexEntry]:
    """An episode of each side that shows the flip, of the same rollout if one does."""
    fitting = [
        (one, two)
        for one, two in product(first, other)
        if one.is_correct is not gained and two.is_correct is gained
    ]
    return min(fitting, key=lambda pair: (pair[0].rollout != pair[1].rollout, pair[0].rollout))
