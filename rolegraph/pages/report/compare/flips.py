"""Tasks of two sides: tasks that only one side solves, with an episode of each side, and the values of all
tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from rolegraph.engine.records import Episode, Trajectory
from rolegraph.engine.records.means import EqualFigures
from rolegraph.engine.records.numbers import number
from rolegraph.pages.report.charts import share_bar
from rolegraph.pages.report.digest import instance, question
from rolegraph.pages.sides import SideResults

SOLVED = 0.5
"""Share of correct rollouts above which a task counts as solved."""
MOST_TASKS = 200
"""Largest number of tasks in a comparison's table, the flipped tasks first."""
REWARD = "reward/"
"""Beginning of the names of roles' rewards."""


class SideActions(NamedTuple):
    """Trajectories of one role instance in the episodes of both sides; None for a side without one."""

    instance: str
    first: Trajectory | None
    other: Trajectory | None


@dataclass(frozen=True, slots=True)
class TaskFlip:
    """Task that one of two sides solves and the other does not, with an episode of each side."""

    task: str
    question: str
    was: float
    """Share of correct rollouts on the first side, from 0 to 1."""
    now: float
    first: Episode
    """Episode of the first side; a correct one if that side solves the task."""
    other: Episode

    def beside(self) -> list[SideActions]:
        """Return the trajectories of both episodes, paired by the name of the role instance."""
        one, two = (
            {instance(episode, trajectory): trajectory for trajectory in episode.trajectories}
            for episode in (self.first, self.other)
        )
        return [SideActions(name, one.get(name), two.get(name)) for name in {**one, **two}]

    @property
    def last(self) -> list[Trajectory | None]:
        """Trajectory that ran last in each side's episode, whose answer a list of tasks shows; None without
        one."""
        return [next(reversed(episode.trajectories), None) for episode in (self.first, self.other)]


class TaskChange(NamedTuple):
    """Task on both sides, with its means over the rollouts."""

    task: str
    question: str
    was: Mapping[str, float]
    """`correct` and the reward of each role by its name, on the first side."""
    now: Mapping[str, float]
    flipped: bool
    """True if only one side solves the task."""

    @property
    def names(self) -> list[str]:
        """Names of the values that either side has."""
        return [*{**self.was, **self.now}]

    @property
    def change(self) -> float:
        """Sum of the absolute changes of the task's means."""
        return sum(abs(self.now[name] - value) for name, value in self.was.items() if name in self.now)

    def cell(self, name: str) -> str:
        """Return a value on both sides as text, such as `0.5 → 1`; a single number where both are the
        same."""
        old_text, new_text = (number(of[name]) if name in of else "–" for of in (self.was, self.now))
        return old_text if old_text == new_text else f"{old_text} → {new_text}"


@dataclass(frozen=True, slots=True)
class TaskFlips:
    """Tasks that only one of two sides solves: the first side or `side`.

    `gains` and `losses` count all such tasks; `gained` and `lost` hold those to show. `shared` tasks are on
    both sides, `alone` tasks on one side only.
    """

    side: str
    shared: int
    """Number of tasks with the same id and row on both sides."""
    alone: int
    """Number of tasks that only one side has, or whose rows differ."""
    gained: Sequence[TaskFlip]
    """Tasks that only the other side solves, the largest change first, up to the requested number."""
    lost: Sequence[TaskFlip]
    gains: int
    """Number of all tasks that only the other side solves."""
    losses: int
    both: int
    """Number of the shared tasks that both sides solve."""
    neither: int
    """Number of the shared tasks that neither side solves."""
    columns: Sequence[Sequence[str]]
    """Names of the values in `tasks`: `correct` and the roles with rewards; names with equal values share an
    item."""
    tasks: Sequence[TaskChange] = ()
    """Tasks on both sides, the flipped ones first, then by the size of the change, up to MOST_TASKS."""

    @property
    def bar(self) -> str:
        """Bar of the shared tasks by the sides that solve them, as SVG; its parts are in `parts`."""
        return share_bar("Tasks by the sides that solve them", [(kind, n) for kind, _, n in self.parts])

    @property
    def parts(self) -> list[tuple[str, str, int]]:
        """CSS class, name and number of each part of the shared tasks."""
        return [
            ("good", "gained", self.gains),
            ("hard", "lost", self.losses),
            ("small", "solved by both", self.both),
            ("rest", "solved by neither", self.neither),
        ]

    def directions(self, first: str) -> list[tuple[str, int, Sequence[TaskFlip]]]:
        """Return (name of the side that alone solves the tasks, number of the tasks, tasks to show) for both
        sides.

        Args:
            first: Name of the first side.
        """
        return [(self.side, self.gains, self.gained), (first, self.losses, self.lost)]

    @property
    def pairing(self) -> str:
        """Text that says how the differences of this side are computed: paired over common tasks, or not."""
        if not self.shared:
            return f"{self.side}: no task is the same; the difference of means, each side by itself"
        left_out_note = f"; {self.alone} others are left out" if self.alone else ""
        return f"{self.side}: differences paired over {self.shared} tasks that are the same{left_out_note}"


def shared_tasks(first: SideResults, other: SideResults) -> set[str]:
    """Return the ids of tasks whose rows are equal on both sides; the data behind an id may have changed."""
    return {task for task, row in first.tasks.items() if other.tasks.get(task) == row}


def task_flips(name: str, first: SideResults, other: SideResults, shown: int) -> TaskFlips:
    """Return the tasks that only one of two sides solves.

    Args:
        name: Name of the other side.
        first: Results of the first side.
        other: Results of the other side.
        shown: Largest number of tasks in each direction whose episodes are read.

    Raises:
        DataError: An episode of a flipped task cannot be read.
    """
    shared_task_ids = shared_tasks(first, other)
    first_means, other_means = (side.figures.get("correct", {}) for side in (first, other))
    judged_tasks = shared_task_ids & first_means.keys() & other_means.keys()
    flipped = [task for task in judged_tasks if (first_means[task] > SOLVED) != (other_means[task] > SOLVED)]
    flipped.sort(key=lambda task: (-abs(other_means[task] - first_means[task]), task))
    won, lost_ = ([task for task in flipped if (other_means[task] > SOLVED) is up] for up in (True, False))
    unshared_count = len(first.tasks.keys() | other.tasks.keys()) - len(shared_task_ids)
    read_flips = [[_flip(task, first, other) for task in tasks[:shown]] for tasks in (won, lost_)]
    changes = _changes(shared_task_ids, {*flipped}, first, other)
    solved_by_both = sum(first_means[task] > SOLVED and other_means[task] > SOLVED for task in judged_tasks)
    return TaskFlips(
        side=name,
        shared=len(shared_task_ids),
        alone=unshared_count,
        gained=read_flips[0],
        lost=read_flips[1],
        gains=len(won),
        losses=len(lost_),
        both=solved_by_both,
        neither=len(judged_tasks) - solved_by_both - len(flipped),
        columns=_columns(changes),
        tasks=changes[:MOST_TASKS],
    )


def _columns(changes: Sequence[TaskChange]) -> list[tuple[str, ...]]:
    """Group the names of the values: those with equal values on every task of both sides share a tuple."""
    names = dict.fromkeys(name for task in changes for name in task.names)
    return EqualFigures(names, (row for task in changes for row in (task.was, task.now))).groups


def _changes(
    shared: Collection[str], flipped: Collection[str], first: SideResults, other: SideResults
) -> list[TaskChange]:
    """Return the tasks of both sides with their values, the flipped ones and the largest changes first."""

    def values(side: SideResults, task: str) -> dict[str, float]:
        figures = side.figures.items()
        return {
            name.removeprefix(REWARD): of[task]
            for name, of in figures
            if task in of and (name == "correct" or name.startswith(REWARD))
        }

    tasks = [
        TaskChange(
            task,
            question(first.rule.visible(first.tasks[task]), task, 160),
            values(first, task),
            values(other, task),
            task in flipped,
        )
        for task in shared
    ]
    return sorted(tasks, key=lambda it: (not it.flipped, -it.change, it.task))


def _flip(task: str, first: SideResults, other: SideResults) -> TaskFlip:
    """Return the TaskFlip of a task, with an episode of each side; the episodes have the same rollout number
    if possible.
    """
    old_value, new_value = first.figures["correct"][task], other.figures["correct"][task]
    is_solved = new_value > SOLVED
    first_key, other_key = min(
        (
            (first_key, other_key)
            for first_key, other_key in product(first.rollouts(task), other.rollouts(task))
            if first_key.is_correct is not is_solved and other_key.is_correct is is_solved
        ),
        key=lambda pair: (pair[0].rollout != pair[1].rollout, pair[0].rollout),
    )
    first_ep, other_ep = first.read(first_key), other.read(other_key)
    return TaskFlip(task, question(first_ep.task, task), old_value, new_value, first_ep, other_ep)
