"""Comparison of sides: differences of the specs and of the figures, and tasks that flipped.

All other sides are compared with the first. Nothing is averaged over sides. A figure is the
mean over tasks, the rollouts of a task averaged first; `intervals.METHOD` describes its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode, RunFolder, Trajectory
from rolegraph.engine.training.analysis.constants import CONSTANT, SAME
from rolegraph.engine.training.analysis.intervals import METHOD, Interval, difference, interval
from rolegraph.pages.report.charts import number
from rolegraph.pages.report.compare.differences import (
    KeyDifference,
    TemplateChange,
    setting_differences,
    spec_differences,
    template_differences,
)
from rolegraph.pages.report.compare.sides import TOKENS_IN, TOKENS_OUT, Side, SideResults
from rolegraph.pages.report.digest import clipped, instance, question, validation_bands
from rolegraph.pages.report.html import CHARTS, aligned, drawn, render, script, signed
from rolegraph.pages.report.panels import common_curves
from rolegraph.pages.report.reading import read_run

_HERE = Path(__file__).parent
SOLVED = 0.5
"""Share of correct rollouts above which a task counts as solved."""
_REWARD = "reward/"
_OF_ROLES = (_REWARD, SAME, CONSTANT)
"""Beginnings of the figures that each role has."""
MOST_TASKS = 200
"""Tasks of a comparison's table, the flipped ones first."""
FLIPS_OF_PAGE = 50
"""Flipped tasks of each way and side with their episodes in a page, at most."""


class SideActions(NamedTuple):
    """Trajectories of one role instance in the episodes of both sides; None where a side lacks it."""

    instance: str
    first: Trajectory | None
    other: Trajectory | None


class FigureRow(NamedTuple):
    """Figure of every side, with the differences from the first side."""

    figure: str
    sides: Sequence[Interval | None]
    """Mean with interval, by side; None where a side lacks the figure."""
    differences: Sequence[Interval | None]
    """Difference from the first side, for each other side."""

    def is_sure(self, column: int) -> bool:
        """Return True if the confidence interval of the difference in a column excludes 0."""
        gap = self.differences[column]
        return gap is not None and gap.n > 0 and (gap.low > 0 or gap.high < 0)

    @property
    def role(self) -> str:
        """Name of the role whose figure this is; empty for a figure of the episode."""
        start = next((start for start in _OF_ROLES if self.figure.startswith(start)), self.figure)
        return self.figure.removeprefix(start)

    @property
    def label(self) -> str:
        """Name of the figure without its role."""
        return self.figure.removesuffix(f"/{self.role}") if self.role else self.figure

    @property
    def is_score(self) -> bool:
        """True for a figure of which more is better; tokens and figures of constant answers are neither."""
        return self.figure not in (TOKENS_IN, TOKENS_OUT) and not self.figure.startswith((SAME, CONSTANT))


@dataclass(frozen=True, slots=True)
class TaskFlip:
    """Task that one of two sides solves and the other does not, with an episode of each."""

    task: str
    question: str
    was: float
    """Share of correct rollouts on the first side."""
    now: float
    first: Episode
    """Episode of the first side, correct where that side solves the task."""
    other: Episode

    def beside(self) -> list[SideActions]:
        """Return the trajectories of both episodes, paired by the name of the role instance."""
        one, two = (
            {instance(episode, trajectory): trajectory for trajectory in episode.trajectories}
            for episode in (self.first, self.other)
        )
        return [SideActions(name, one.get(name), two.get(name)) for name in {**one, **two}]


class TaskChange(NamedTuple):
    """Task on both sides, with its means over the rollouts."""

    task: str
    question: str
    was: Mapping[str, float]
    """On the first side, `correct` and the reward of each role by its name."""
    now: Mapping[str, float]
    flipped: bool
    """Whether one side alone solves the task."""

    @property
    def change(self) -> float:
        """Sum of the absolute changes."""
        return sum(abs(self.now[name] - value) for name, value in self.was.items() if name in self.now)

    def cell(self, name: str) -> str:
        """Return the change of a value as text, one number where it is the same."""
        was, now = (number(of[name]) if name in of else "–" for of in (self.was, self.now))
        return was if was == now else f"{was} → {now}"


@dataclass(frozen=True, slots=True)
class TaskFlips:
    """Tasks that only one of two sides solves: the first side or `side`.

    `gains` and `losses` count all of them; `gained` and `lost` hold the ones to show. `shared` tasks are on
    both sides, `alone` ones on one side only.
    """

    side: str
    shared: int
    """Number of tasks with the same id and row on both sides."""
    alone: int
    """Number of the other tasks of both sides."""
    gained: Sequence[TaskFlip]
    """Tasks that only the other side solves, the largest change first, up to the requested number."""
    lost: Sequence[TaskFlip]
    gains: int
    """Number of all such tasks."""
    losses: int
    tasks: Sequence[TaskChange] = ()
    """Tasks on both sides, the flipped ones first, then by the size of the change, up to MOST_TASKS."""

    @property
    def columns(self) -> list[str]:
        """Names of the values in `tasks`: `correct` and the roles with rewards."""
        return list(dict.fromkeys(name for task in self.tasks for of in (task.was, task.now) for name in of))

    def directions(self, first: str) -> list[tuple[str, int, Sequence[TaskFlip]]]:
        """Return the side that alone solves tasks, their number and those to show, for both sides.

        Args:
            first: Name of the first side.
        """
        return [(self.side, self.gains, self.gained), (first, self.losses, self.lost)]

    @property
    def pairing(self) -> str:
        """Description of how the differences of this side were computed."""
        if not self.shared:
            return f"{self.side}: no task is the same; the difference of means, each side by itself"
        left = f"; {self.alone} others are left out" if self.alone else ""
        return f"{self.side}: differences paired over {self.shared} tasks that are the same{left}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two or more runs, trainings or specs, the sides; differences are from the first side."""

    sides: Sequence[Side]
    spec: Sequence[KeyDifference]
    settings: Sequence[KeyDifference]
    templates: Sequence[TemplateChange]
    rows: Sequence[FigureRow]
    """Figures of the sides that have episodes; empty where fewer than two have."""
    flips: Sequence[TaskFlips]
    """Flipped tasks of each side with episodes, except for the first."""

    @property
    def method(self) -> str:
        """Text that explains how the confidence intervals were computed."""
        return METHOD

    @property
    def measured(self) -> Sequence[Side]:
        """Sides that have episodes, in order: the columns of `rows`."""
        return [side for side in self.sides if side.results is not None]

    @property
    def rows_by_role(self) -> dict[str, list[FigureRow]]:
        """Rows of figures by role, those of the episode (empty name) first."""
        rows: dict[str, list[FigureRow]] = {"": []}
        for row in self.rows:
            rows.setdefault(row.role, []).append(row)
        return rows

    @property
    def same_words(self) -> bool:
        """True where all sides have the same spec, templates and settings."""
        return not (self.spec or self.templates)

    @property
    def other_code(self) -> bool:
        """True where the sides differ in nothing but the code of vocabulary items: same spec, another
        hash."""
        return self.same_words and len({side.hash for side in self.sides}) > 1


def compare(sides: Sequence[Side], shown: int = 3) -> Comparison:
    """Compare sides with the first of them.

    Args:
        sides: Runs, trainings or specs, at least two.
        shown: Largest number of flipped tasks in each direction whose episodes are read.

    Raises:
        UsageError: There are fewer than two sides.
        DataError: An episode of a flipped task cannot be read.
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


def comparison_page(
    comparison: Comparison, episodes: Callable[[str, str], str] | None = None, bar: str = ""
) -> str:
    """Return the HTML of a comparison, which opens offline; raises DataError for a damaged training.

    Args:
        comparison: The comparison.
        episodes: Function that returns the URL of a task's episodes, from the side's name and the task's id.
        bar: Links of the viewer that the page begins with, as `Markup`.
    """
    code, code_hash = script(CHARTS)
    trainings = [
        (f"{letter(place)} {side.name}", read_run(side.training), validation_bands(RunFolder(side.training)))
        for place, side in enumerate(comparison.sides)
        if side.training is not None
    ]
    return render(
        _HERE / "compare.html.j2",
        _HERE / "compare.css",
        comparison=comparison,
        curves=common_curves(trainings) if len(trainings) > 1 else (),
        letters={side.name: letter(place) for place, side in enumerate(comparison.sides)},
        episodes=episodes,
        bar=bar,
        side_cells=side_cells,
        gap_cells=gap_cells,
        answer=answer,
        script=code,
        script_hash=code_hash,
    )


def letter(place: int) -> str:
    """Return the short name of a side on a page, A for the first; a number beyond Z."""
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)


class FigureCell(NamedTuple):
    """Texts and drawing of one cell in the table of figures; `interval` is empty without a figure."""

    mean: str
    interval: str = ""
    picture: str = ""
    """Drawing of the interval as SVG."""
    style: str = ""
    """CSS class: whether the interval excludes 0, and on which side."""


def side_cells(row: FigureRow, sides: Sequence[Side]) -> list[FigureCell]:
    """Return the table cells (mean, interval, drawing) of a figure, one for each side with episodes."""
    cells: list[FigureCell] = []
    for cell, picture, side in zip(row.sides, drawn(row.sides), sides, strict=True):
        if cell is None or not cell.n:
            cells.append(FigureCell("–"))
            continue
        mean, low, high = (
            aligned(end, (cell.mean, cell.low, cell.high)) for end in (cell.mean, cell.low, cell.high)
        )
        tasks = len(side.results.tasks) if side.results else 0
        of = f" of {tasks}" if cell.n != tasks else ""
        cells.append(FigureCell(mean, f"[{low}, {high}] n {cell.n}{of}", picture))
    return cells


def gap_cells(row: FigureRow) -> list[FigureCell]:
    """Return the table cells of a figure's differences from the first side, one for each other side."""
    cells: list[FigureCell] = []
    for column, gap in enumerate(row.differences):
        if gap is None or not gap.n:
            cells.append(FigureCell("–"))
            continue
        direction = ("-up" if gap.low > 0 else "-down") if row.is_score else ""
        style = f"sure{direction}" if row.is_sure(column) else ""
        cells.append(
            FigureCell(signed(gap.mean), f"[{signed(gap.low)}, {signed(gap.high)}] n {gap.n}", style=style)
        )
    return cells


def answer(trajectory: Trajectory) -> str:
    """Return the text of all responses of a trajectory, cut for display; for a tool's role, its action."""
    written = [step.model_response for step in trajectory.steps if step.model_response]
    return clipped("\n\n".join(written) or trajectory.action or "")


def _rows(results: Sequence[SideResults]) -> list[FigureRow]:
    first, *others = results
    rows: list[FigureRow] = []
    for name in dict.fromkeys(figure for of in results for figure in of.figures):
        sides = [interval(of.figures[name]) if name in of.figures else None for of in results]
        rows.append(FigureRow(name, sides, [_gap(name, first, other) for other in others]))
    return rows


def _gap(figure: str, first: SideResults, other: SideResults) -> Interval | None:
    was, now = first.figures.get(figure), other.figures.get(figure)
    if was is None or now is None:
        return None
    same = _shared(first, other)
    now = {task: value for task, value in now.items() if task in same or not same}
    return difference(now, was, paired=bool(same))


def _shared(first: SideResults, other: SideResults) -> set[str]:
    """Return the ids of tasks whose rows are equal on both sides; the data behind an id may have changed."""
    return {task for task, row in first.tasks.items() if other.tasks.get(task) == row}


def _flips(name: str, first: SideResults, other: SideResults, shown: int) -> TaskFlips:
    shared = _shared(first, other)
    was, now = (side.figures.get("correct", {}) for side in (first, other))
    judged = shared & was.keys() & now.keys()
    turned = [task for task in judged if (was[task] > SOLVED) != (now[task] > SOLVED)]
    turned.sort(key=lambda task: (-abs(now[task] - was[task]), task))
    gained, lost = ([task for task in turned if (now[task] > SOLVED) is up] for up in (True, False))
    alone = len(first.tasks.keys() | other.tasks.keys()) - len(shared)
    read = [[_flip(task, first, other) for task in tasks[:shown]] for tasks in (gained, lost)]
    changes = _changes(shared, {*turned}, first, other)
    return TaskFlips(name, len(shared), alone, read[0], read[1], len(gained), len(lost), changes)


def _changes(
    shared: Iterable[str], flipped: Collection[str], first: SideResults, other: SideResults
) -> list[TaskChange]:
    """Return the tasks of both sides with their values, the flipped ones and the largest changes first."""

    def values(side: SideResults, task: str) -> dict[str, float]:
        figures = side.figures.items()
        return {
            name.removeprefix(_REWARD): of[task]
            for name, of in figures
            if task in of and (name == "correct" or name.startswith(_REWARD))
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
    return sorted(tasks, key=lambda it: (not it.flipped, -it.change, it.task))[:MOST_TASKS]


def _flip(task: str, first: SideResults, other: SideResults) -> TaskFlip:
    """Return the TaskFlip of a task, with an episode of each side, of the same rollout if possible."""
    was, now = first.figures["correct"][task], other.figures["correct"][task]
    solved = now > SOLVED
    one, two = min(
        (
            (one, two)
            for one, two in product(first.rollouts(task), other.rollouts(task))
            if one.is_correct is not solved and two.is_correct is solved
        ),
        key=lambda pair: (pair[0].rollout != pair[1].rollout, pair[0].rollout),
    )
    before, after = first.read(one), other.read(two)
    return TaskFlip(task, question(before.task, task), was, now, before, after)
