"""Comparison of sides (runs, trainings or specs): differences of the specs and of the figures, and tasks that
flipped.

All other sides are compared with the first. Nothing is averaged over sides. A figure is the
mean over tasks, the rollouts of a task averaged first; `intervals.METHOD` describes its interval. `flips` has
the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import fmean
from typing import Any, NamedTuple

from rolegraph.api.recorded import as_table
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.means import TOKENS_IN, TOKENS_OUT, EqualFigures
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.training.analysis.constants import CONSTANT, SAME
from rolegraph.engine.training.analysis.intervals import (
    METHOD,
    ByTask,
    Interval,
    difference,
    interval,
    interval_cell,
)
from rolegraph.pages.drawing.drawing import Drawing
from rolegraph.pages.drawing.ink import PALETTE
from rolegraph.pages.report.compare.differences import (
    KeyDifference,
    TemplateChange,
    setting_differences,
    spec_differences,
    template_differences,
)
from rolegraph.pages.report.compare.flips import TaskFlips, shared_tasks, task_flips
from rolegraph.pages.report.sweep import FigurePanel, interval_mark, rows_picture
from rolegraph.pages.sides import Side, SideResults

_OF_TASKS = ("data", "seed", "split", "tasks")
"""First parts of the keys and settings that choose the tasks."""


class FigureRow(NamedTuple):
    """Values of one figure (metric) on every side, with the differences from the first side."""

    figure: str
    sides: Sequence[Interval | None]
    """Mean with interval, by side; None where a side lacks the figure."""
    differences: Sequence[Interval | None]
    """Difference from the first side, for each other side."""
    equal_to: str = ""
    """Name of an earlier figure with the same value on every task of every side; empty if there is no such
    figure."""

    @property
    def kind(self) -> str:
        """Kind of the figure; the differences of a kind are drawn on one scale."""
        if self.figure in (TOKENS_IN, TOKENS_OUT):
            return "tokens of an episode"
        if self.figure.startswith((SAME, CONSTANT)):
            return "constant answers"
        is_share = all(side.low >= 0 and side.high <= 1 for side in self.sides if side)
        return "scores" if is_share else "scores beyond 0 to 1"

    def among(self, apart: Sequence[str]) -> FigureRow:
        """Return the row without the differences of sides that are not comparable.

        Args:
            apart: Reason why each other side is not comparable; empty for a comparable side.
        """
        kept_gaps = [None if cause else gap for cause, gap in zip(apart, self.differences, strict=True)]
        return self._replace(differences=kept_gaps)

    @property
    def is_score(self) -> bool:
        """True for a figure of which more is better; false for tokens and for figures of constant answers."""
        return self.kind.startswith("scores")


class SideVerdict(NamedTuple):
    """Verdict on a side: whether its first score is better than that of the first side."""

    side: str
    first: str
    """Name of the first side."""
    of: tuple[str, str]
    """Descriptions of the compared episodes of the first side and of this side, such as `validation, step
    10`.
    """
    figure: str
    means: tuple[float, float]
    """Mean of the figure on the first side and on this side."""
    gap: Interval
    """Difference of the figure from the first side."""
    flips: TaskFlips
    moved: Mapping[str, Interval] = {}
    """Difference of each trained role's reward whose interval excludes 0, by role. A reward that equals the
    figure on every task is left out."""
    apart: str = ""
    """Difference between two trainings that makes them not comparable; empty where they are comparable."""

    @property
    def sign(self) -> int:
        """1 for a side that is better than the first, -1 for a worse one, 0 where the interval includes 0."""
        signs = {gap.sign for gap in (self.gap, *self.moved.values()) if gap.sign}
        return signs.pop() if len(signs) == 1 and not self.apart else 0

    @property
    def measure(self) -> str:
        """Text with the figure's difference, its interval and tasks, and the number of flipped tasks."""
        gap = self.gap
        gap_text = f"{self.figure} {gap.signed}"
        for role, role_gap in self.moved.items():
            gap_text += f", reward/{role} {role_gap.signed}"
        if self.apart:
            return f"no task is the same; {self.apart}"
        if not self.flips.shared:
            return f"{gap_text}; no task is the same (n {gap.n})"
        gain_text = {0: "no task", 1: "1 task"}.get(self.flips.gains, f"{self.flips.gains} tasks")
        return f"{gap_text} over {gap.n} shared tasks; {gain_text} gained, {self.flips.losses or 'none'} lost"

    def words(self, side: str, first: str) -> str:
        """Return the verdict in words, with these names of the sides."""
        if self.apart:
            return f"{side} and {first} are not comparable"
        if self.moved and not self.gap.sign:
            parts = [f"{role} is {_better(gap)}" for role, gap in self.moved.items()]
            return f"{' and '.join(parts)} in {side} than in {first}"
        if not self.gap.sign:
            return f"Cannot tell {side} from {first}"
        return f"{side} is {_better(self.gap)} than {first}"

    def __str__(self) -> str:
        was, now = self.of
        episodes = (
            "" if was == now == "episodes" else f" ({now})" if was == now else f" ({now}, against {was})"
        )
        return f"{self.words(self.side, self.first)}{episodes}: {self.measure}"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Summarized):
    """Comparison of two or more sides (runs, trainings or specs); differences are from the first side."""

    sides: Sequence[Side]
    spec: Sequence[KeyDifference]
    settings: Sequence[KeyDifference]
    templates: Sequence[TemplateChange]
    rows: Sequence[FigureRow]
    """Figures of the sides that have episodes; empty if fewer than two sides have episodes."""
    flips: Sequence[TaskFlips]
    """Flipped tasks of each side with episodes, except the first."""
    verdicts: Sequence[SideVerdict]
    """Verdicts on each side with episodes, except the first; empty without a common score."""

    @property
    def method(self) -> str:
        """Text that explains how the confidence intervals were computed."""
        return METHOD

    @property
    def measured(self) -> Sequence[Side]:
        """Sides that have episodes, in order: the columns of `rows`."""
        return _measured(self.sides)

    @property
    def distinct_rows(self) -> list[tuple[FigureRow, list[str]]]:
        """Rows of metrics, each with the names of later metrics that equal it on every task and have no row
        of their own."""
        return [
            (row, [other.figure for other in self.rows if other.equal_to == row.figure])
            for row in self.rows
            if not row.equal_to
        ]

    @property
    def records(self) -> list[dict[str, Any]]:
        """Plain data: a row for each figure of each side with episodes; differences are from the first."""
        return [
            {"figure": row.figure, "side": side.name, **_ends("", over), **_ends("difference/", gap)}
            for row in self.rows
            for side, over, gap in zip(self.measured, row.sides, (None, *row.differences), strict=True)
        ]

    def summary(self) -> Summary:
        """Return the verdicts, and a row for each figure with its differences from the first side."""
        title = (
            "\n".join(map(str, self.verdicts)) or f"Comparison of {', '.join(it.name for it in self.sides)}"
        )
        first_name, *others = [side.name for side in self.measured] or [""]
        tasks = [len(side.results.tasks) if side.results else None for side in self.measured]
        rows = [
            (
                "\n= ".join([row.figure, *equal]),
                *(interval_cell(side, tasks=of) for side, of in zip(row.sides, tasks, strict=True)),
                *(interval_cell(gap, is_difference=True) for gap in row.differences),
            )
            for row, equal in self.distinct_rows
        ]
        gaps = [f"{it} − {first_name}" for it in others] if len(others) > 1 else ["difference"] * len(others)
        return Summary(title, ("figure", first_name, *others, *gaps), rows)

    def table(self) -> Any:
        """Return the figures of the sides.

        Returns:
            A pandas DataFrame where pandas is installed, else a list of dicts: `figure`, `side`, `mean`,
            `low`, `high` and `n` of the figure, and `difference/mean` and so on from the first side.
        """
        return as_table(self.records)

    def plot(self, *figures: str) -> Drawing:
        """Draw the differences from the first side with their intervals, a panel for each other side.

        Args:
            figures: Names of the figures; by default the scores, of which more is better.

        Returns:
            The drawing, which a notebook shows and `save` writes as SVG or PNG.

        Raises:
            UsageError: The sides have no such figure.
        """
        by_name = {row.figure: row for row in self.rows}
        wanted_names = figures or [row.figure for row, _ in self.distinct_rows if row.is_score]
        unknown_name = next(
            (repr(name) for name in wanted_names if name not in by_name), "" if wanted_names else "to draw"
        )
        if unknown_name:
            names = ", ".join(by_name) or "none"
            raise UsageError(f"the sides have no figure {unknown_name}; expected some of {names}")
        rows = [by_name[name] for name in wanted_names]
        first_name, *other_sides = [side.name for side in self.measured]
        panels: list[FigurePanel] = []
        for index, (side, hue) in enumerate(zip(other_sides, cycle(PALETTE), strict=False)):
            gaps = [gap if gap and gap.n else None for gap in (row.differences[index] for row in rows)]
            ends = [0.0, *(end for gap in gaps if gap for end in (gap.low, gap.high))]
            marks = [gap and partial(interval_mark, gap, hue) for gap in gaps]
            panels.append(FigurePanel(f"{side} − {first_name}", ends, marks))
        return Drawing(rows_picture("Differences", [row.figure for row in rows], panels))

    @property
    def same_words(self) -> bool:
        """True if all sides have the same spec, templates and settings."""
        return not (self.spec or self.templates)

    @property
    def other_code(self) -> bool:
        """True if the sides have the same spec but different hashes, because the code of vocabulary items
        differs."""
        first_side, *other_sides = self.sides
        has_same_specs = all(side.spec == first_side.spec for side in other_sides)
        return self.same_words and has_same_specs and len({side.hash for side in self.sides}) > 1


def _better(gap: Interval) -> str:
    return "better" if gap.sign > 0 else "worse"


def _ends(start: str, over: Interval | None) -> dict[str, float | None]:
    """Return a mean, the ends of its interval and n, under names that begin with `start`; the values are None
    without an interval."""
    interval_ = over if over and over.n else None
    return {f"{start}{name}": interval_ and getattr(interval_, name) for name in ("mean", "low", "high", "n")}


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
    measured = _measured(sides)
    results = [(side.name, side.results) for side in measured if side.results is not None]
    rows = _rows([side_results for _, side_results in results]) if len(results) > 1 else ()
    flips = [task_flips(name, results[0][1], side_results, shown) for name, side_results in results[1:]]
    keys = spec_differences(_compared_specs(sides))
    settings = setting_differences([side.settings for side in sides])
    data = [f"{it.key} {' → '.join(it.values)}" for it in (*keys, *settings) if it.key.startswith(_OF_TASKS)]
    data_difference = f"what differs: {'; '.join(data) or 'the rows of the data'}"
    causes = [
        data_difference if not side_flips.shared and measured[0].training and side.training else ""
        for side_flips, side in zip(flips, measured[1:], strict=True)
    ]
    verdicts = [
        verdict
        for column, side_flips in enumerate(flips)
        for verdict in _verdicts(measured, column, rows, side_flips, causes[column])
    ]
    return Comparison(
        sides,
        keys,
        settings,
        template_differences([side.name for side in sides], [side.templates for side in sides]),
        [row.among(causes) for row in rows] if any(causes) else rows,
        flips,
        verdicts,
    )


def _measured(sides: Sequence[Side]) -> list[Side]:
    return [side for side in sides if side.results is not None]


def _verdicts(
    measured: Sequence[Side], column: int, rows: Sequence[FigureRow], flips: TaskFlips, apart: str
) -> Iterator[SideVerdict]:
    """Yield the verdict on a side, and a second verdict if the best checkpoint of a training is not its last.

    The two verdicts differ for a training that fell after its best step.

    Args:
        measured: Sides that have episodes.
        column: Number of the side after the first, from 0.
        rows: Figures of the sides.
        flips: Flipped tasks of the side.
        apart: Cause why the sides are not comparable; empty where they are.
    """
    first, side = measured[0], measured[column + 1]
    gaps = ((row.figure, row.differences[column]) for row in rows if row.is_score)
    figure = next((name for name, gap in gaps if gap and gap.n), None)
    if figure is None or first.results is None or side.results is None:
        return
    trained = dict.fromkeys((*first.trained, *side.trained))
    for verdict in _verdict(first.name, figure, first.results, side.results, flips, trained):
        yield verdict._replace(apart=apart)
    if apart:
        return
    if first.other or side.other:
        was, now = first.other or first.results, side.other or side.results
        yield from _verdict(first.name, figure, was, now, task_flips(side.name, was, now, shown=0), trained)


def _verdict(
    first: str,
    figure: str,
    was: SideResults,
    now: SideResults,
    flips: TaskFlips,
    trained: Iterable[str],
) -> Iterator[SideVerdict]:
    if (gap := _gap(figure, was, now)) and gap.n:
        common_tasks = shared_tasks(was, now)
        means = [fmean(_among(common_tasks, results.figures[figure]).values()) for results in (was, now)]
        yield SideVerdict(
            flips.side,
            first,
            (was.what, now.what),
            figure,
            (means[0], means[1]),
            gap,
            flips,
            {role: role_gap for role in trained if (role_gap := _moved(f"reward/{role}", figure, was, now))},
        )


def _moved(name: str, figure: str, was: SideResults, now: SideResults) -> Interval | None:
    """Return the difference of the figure `name` if its interval excludes 0, else None.

    None also if the figure equals `figure` on both sides, so that no difference is shown twice.
    """
    gap = _gap(name, was, now)
    is_equal = all(results.figures.get(name) == results.figures[figure] for results in (was, now))
    return gap if gap and gap.sign and not is_equal else None


def _compared_specs(sides: Sequence[Side]) -> list[Mapping[str, Any]]:
    """Return the specs of all sides, without their sections `train` if any side is a run."""
    has_run = any(side.settings.get("kind") == "run" for side in sides)
    omitted_keys = {"train"} if has_run else set[str]()
    return [{key: value for key, value in side.spec.items() if key not in omitted_keys} for side in sides]


def _rows(results: Sequence[SideResults]) -> list[FigureRow]:
    """Return the figures of all sides, over the tasks that all sides have; without common tasks, over each
    side's own."""
    first_results, *other_results = results
    shared_names = set(first_results.tasks).intersection(
        *(shared_tasks(first_results, other) for other in other_results)
    )
    rows: dict[str, FigureRow] = {}
    for name in dict.fromkeys(figure for of in results for figure in of.figures):
        values_of = [of.figures.get(name) for of in results]
        sides = [None if values is None else interval(_among(shared_names, values)) for values in values_of]
        rows[name] = FigureRow(name, sides, [_gap(name, first_results, other) for other in other_results])
    tables = (
        {name: (rows[name].kind, tuple(sorted(values.items()))) for name, values in of.figures.items()}
        for of in results
    )
    for first_name, *equal_names in EqualFigures(rows, tables).groups:
        rows |= {name: rows[name]._replace(equal_to=first_name) for name in equal_names}
    return [*rows.values()]


def _gap(figure: str, first: SideResults, other: SideResults) -> Interval | None:
    first_values, other_values = first.figures.get(figure), other.figures.get(figure)
    if first_values is None or other_values is None:
        return None
    common_tasks = shared_tasks(first, other)
    return difference(_among(common_tasks, other_values), first_values, paired=bool(common_tasks))


def _among(tasks: Set[str], values: ByTask) -> ByTask:
    """Return the values of the given tasks; all values if `tasks` is empty."""
    return {task: value for task, value in values.items() if task in tasks} if tasks else values
