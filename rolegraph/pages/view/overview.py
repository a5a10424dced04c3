"""Table of the runs: rows, columns to choose from, order, search and picks.

Figures of a finished run are read from its `run.json`; those of an unfinished run are counted from its index,
those of a training are read from its metrics. No episode is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from markupsafe import Markup

from rolegraph.engine.errors import DataError, RolegraphError, UsageError
from rolegraph.engine.records import RunInfo
from rolegraph.engine.records.data import count_rows
from rolegraph.engine.records.episodes import figures as means_of
from rolegraph.engine.records.folder import RunPart
from rolegraph.engine.records.means import EqualFigures
from rolegraph.engine.records.numbers import number
from rolegraph.engine.training.analysis.intervals import ByTask, Interval, difference, interval, interval_cell
from rolegraph.pages.report.charts import Axis, ChartLine, Stroke, line_chart, thin
from rolegraph.pages.report.reading import SPLITS, Point, episode_counts
from rolegraph.pages.view.finding import EpisodeFilter
from rolegraph.pages.view.outcomes import RunOutcomes
from rolegraph.pages.view.runs import ViewedRun, run_names

SPARK = (96, 24)
"""Width and height of the small curve in a row, in pixels."""
MOST_CURVES = 8
"""Number of picked trainings in one chart."""
MOST_READ = 5_000
"""Largest number of episodes of a figure with an interval, which is computed from the index."""
MOST_SETTINGS = 4
"""Number of settings that are columns by default: settings that differ between runs of one spec."""
MOST_HEADLINES = 3
"""Number of figures that are columns by default."""
_EARLY, _LATE = (end.replace(tzinfo=UTC) for end in (datetime.min, datetime.max))
_TRAIN, _VALIDATION = "train", "validation"
"""Splits whose curves are drawn, the thin line first."""
_STROKES = {_TRAIN: Stroke.THIN, _VALIDATION: Stroke.BOLD}
_RATE = "train.learning_rate"


class RunFigure(NamedTuple):
    """Mean of a metric over all episodes of a run, or at a training's last step that has it."""

    value: float
    split: str
    """`run`, `validation` or `train`."""
    step: int | None = None
    """Step of a training."""
    n: int = 0
    """Number of values in the mean; 0 if not recorded."""
    values: ByTask = MappingProxyType({})
    """Mean of each task; empty if the index was not read."""

    @property
    def over(self) -> Interval | None:
        """Mean over the tasks with its 95 % interval; None if the index was not read."""
        return interval(self.values) if self.values else None

    @property
    def cell(self) -> str:
        """Text of the mean with its interval, or of the value alone."""
        return interval_cell(self.over) if self.over else f"{self.value:,.3f}"

    @property
    def origin(self) -> str:
        """Description of the figure's episodes, such as `validation, step 10`."""
        return self.split if self.step is None else f"{self.split}, step {self.step}"


@dataclass(frozen=True, slots=True)
class RunRow:
    """Run in the list of runs, with the values of its columns."""

    number: int
    """Number of the run in the viewer."""
    name: str
    """Name of the folder, with parent folders where two runs share the name."""
    folder: Path
    spec: str = ""
    model: str = ""
    checkpoint: str = ""
    """Trained weights that answer in a run; empty for untrained models."""
    seed: int = 0
    kind: str = ""
    """`run` or `training`."""
    started: datetime | None = None
    duration: float | None = None
    """Seconds, not counting the start of the model; None if not recorded."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of episodes by split of a training; for a run, by the key `run`."""
    figures: Mapping[str, RunFigure] = field(default_factory=dict[str, RunFigure])
    """Figures by name, the headline figure first: `correct`, or else the first metric."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of the spec by key: keys that a command set for any of the runs, and the learning rate."""
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict[str, "Sequence[Point]"])
    """Values of the headline figure over the steps of a training, by split."""
    outcomes: RunOutcomes | None = None
    """Episodes by outcome; None if the index was not read."""
    status: str = "damaged"
    """State of the run and its progress: `running, 12 of 32`."""
    running: bool = False
    """True if a process writes in the folder."""
    fault: str = ""
    """Message for a run that cannot be read; its other columns are empty."""

    @property
    def episodes(self) -> int:
        """Number of all episodes; 0 if unknown."""
        return sum(self.counts.values())

    @property
    def record(self) -> dict[str, Any]:
        """Row as plain data: `folder`, its settings, each figure with its interval and n, and `fault`."""
        if self.fault:
            return {"folder": str(self.folder), "status": self.status, "fault": self.fault}
        record: dict[str, Any] = {
            "folder": str(self.folder),
            "kind": self.kind,
            "spec": self.spec,
            "model": self.model,
            "checkpoint": self.checkpoint,
            "seed": self.seed,
            "started": self.started.isoformat() if self.started else None,
            "seconds": self.duration,
            "status": self.status,
            **{f"episodes/{split}": n for split, n in self.counts.items()},
            **self.settings,
        }
        for name, figure in self.figures.items():
            record[name] = figure.value
            if over := figure.over:
                record |= {f"{name}/low": over.low, f"{name}/high": over.high, f"{name}/n": over.n}
            if figure.step is not None:
                record[f"{name}/of"] = figure.origin
        return record

    @property
    def sparks(self) -> list[tuple[str, str]]:
        """Split and SVG path of each small curve, on common axes; empty with fewer than two points."""
        points = [point for curve in self.curves.values() for point in curve]
        steps, values = [step for step, _ in points], [value for _, value in points]
        if len({*steps}) < 2:
            return []
        width, height = SPARK
        x = Axis(min(steps), max(steps), start=2, end=width - 2)
        low, high = min(values), max(values)
        y = Axis(low, high if high > low else low + 1, start=height - 3, end=3)
        return [
            (split, "M" + "L".join(f"{x.at(step):.1f} {y.at(value):.1f}" for step, value in thin(curve, 60)))
            for split, curve in self.curves.items()
            if len(curve) > 1
        ]

    @property
    def spark_words(self) -> str:
        """Description of the small curves."""
        name, curve = next(iter(self.figures)), self.curves.get(_VALIDATION, ())
        (first_step, first_value), *_, (last, now) = curve if len(curve) > 1 else self.curves[_TRAIN]
        return f"{name} from {number(first_value)} at step {first_step:g} to {number(now)} at step {last:g}"


_KEYS: Mapping[str, Callable[[RunRow], object]] = {
    "run": lambda row: row.name.lower(),
    "spec": lambda row: row.spec.lower(),
    "model": lambda row: (row.model.lower(), row.checkpoint),
    "seed": lambda row: row.seed,
    "started": lambda row: row.started or _LATE,
    "duration": lambda row: row.duration or 0.0,
    "episodes": lambda row: row.episodes,
    "outcomes": lambda row: (
        row.outcomes.counts.failed / max(row.outcomes.counts.total, 1) if row.outcomes else -1
    ),
    "status": lambda row: row.status,
}
"""Sort keys of the run table's rows, for the columns that are not metrics."""
_BEFORE, _AFTER = (
    ("spec", "model", "seed", "started", "duration", "episodes"),
    ("outcomes", "curve", "status"),
)
"""Columns to choose from, before and after the columns of figures; the name of a run is always shown."""
_UNLESS_CHOSEN = ("started", "outcomes", "curve")
_UNLESS_SAME = ("model", "seed", "status")
"""Columns that are shown by default only if the runs differ in them."""


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """Columns, order, search and picked runs of the table."""

    sort: str = ""
    """Name of a column, with `-` before it for descending order; empty for the order of the command line."""
    search: str = ""
    """Text in a row's name, spec, model, kind, status or settings; case is ignored."""
    picked: frozenset[int] = frozenset()
    """Numbers of the picked runs."""
    columns: frozenset[str] = frozenset()
    """Names of the chosen columns; empty for the default columns."""

    @classmethod
    def of(cls, sort: str, search: str, picked: Iterable[str], columns: Iterable[str] = ()) -> RunsQuery:
        """Parse the query of a URL; raises UsageError for a pick that is no number."""
        for number_text in picked:
            if not number_text.isdecimal() or len(number_text) > 6:
                raise UsageError(f"pick is {number_text!r}; expected the number of a run")
        return cls(sort, search.strip(), frozenset(map(int, picked)), frozenset(columns))

    def turned(self, column: str) -> str:
        """Return the value of `sort` after a press on a column's heading."""
        return f"-{column}" if self.sort == column else column

    def direction(self, column: str) -> str:
        """Return the `aria-sort` of a column: `ascending`, `descending` or `none`."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort or "-started", "none")


class RunsTable:
    """Rows and columns of the list of runs, as a query asks for them.

    Args:
        rows: Row of each run.
        query: Query of the page.

    Raises:
        UsageError: The query sorts by an unknown column.
    """

    def __init__(self, rows: Sequence[RunRow], query: RunsQuery) -> None:
        self._equal = _equal_figures(rows)
        names = dict.fromkeys(name for row in rows for name in row.figures)
        self.figures = [name for name in self._equal if name not in {*_BEFORE, *_AFTER}]
        """Names of the figures that runs have, except for those with the name of another column; figures that
        are equal have one column."""
        keys = dict.fromkeys(key for row in rows for key in row.settings)
        self.settings = [key for key in keys if key not in names and key not in {*_BEFORE, *_AFTER}]
        """Keys of the spec that any command set."""
        self.choices = (*_BEFORE, *self.settings, *self.figures, *_AFTER)
        """Names of the columns to choose from."""
        headlines = Counter(next(iter(row.figures)) for row in rows if row.figures)
        self._common = [name for name, _ in headlines.most_common(MOST_HEADLINES)]
        # A mapping, such as a stage of a training, would stand one word wide in a column.
        plain = [key for key in self.settings if not any("{" in row.settings.get(key, "") for row in rows)]
        differing_keys = [key for key in plain if _differs(key, rows)][:MOST_SETTINGS]
        self.same = [(name, text) for name in _UNLESS_SAME if (text := _same(name, rows))]
        """Names and values of hidden columns in which all runs agree."""
        varying_columns = {*_UNLESS_SAME}.difference(name for name, _ in self.same)
        usual_columns = {*_UNLESS_CHOSEN, *varying_columns, *differing_keys, *self._common}
        first = {name: first for first, equal_names in self._equal.items() for name in equal_names}
        chosen = {first.get(name, name) for name in query.columns}.intersection(self.choices) or usual_columns
        self.columns = [name for name in self.choices if name in chosen]
        """Names of the columns that are shown."""
        self.rows = self._sorted([row for row in rows if _matches(row, query.search)], query.sort)
        """Rows that match the search, in order."""
        self.hidden_picks = sorted(query.picked - {row.number for row in self.rows})
        """Numbers of picked runs that the search leaves out."""
        picked_rows = [row for row in self.rows if row.number in query.picked and row.kind == "training"]
        self.drawn = sorted(picked_rows, key=_age)[:MOST_CURVES]
        """Rows of the picked trainings whose curves are drawn, the oldest first as in a comparison."""
        all_picked = [row for row in rows if row.number in query.picked]
        self.reference = min(all_picked, key=_age) if all_picked else None
        """Oldest picked run, which the others are compared with; it is side A of the comparison."""

    def change(self, row: RunRow, figure: str) -> Interval | None:
        """Return the difference of a row's figure from the reference's, paired over tasks with the same id.

        None for the reference itself, and if the index of either was not read.
        """
        if (
            self.reference is None
            or row.number == self.reference.number
            or figure not in self.reference.figures
        ):
            return None
        new_values, old_values = row.figures[figure].values, self.reference.figures[figure].values
        change = difference(new_values, old_values, paired=not new_values.keys().isdisjoint(old_values))
        return change if change.n else None

    def title(self, column: str) -> str:
        """Return the heading of a column."""
        curve = f"{self._common[0]} over the steps" if len(self._common) == 1 else column
        column_titles = {
            "started": "started (UTC)",
            "duration": "duration (s)",
            "curve": curve,
            "outcomes": "episodes by outcome",
        }
        if column in self.settings:
            return self._short(column)
        return column_titles.get(column, column)

    def names(self, column: str) -> str:
        """Return the name of a column; for a figure, also the names of the figures that equal it: `correct =
        f1`.
        """
        return " = ".join(self._equal.get(column, [column]))

    def _short(self, key: str) -> str:
        """Return the shortest end of a dotted key that no other setting ends with."""
        key_parts = key.split(".")
        ends = (".".join(key_parts[start:]) for start in range(len(key_parts) - 1, 0, -1))
        other_keys = [f".{other}" for other in self.settings if other != key]
        return next((end for end in ends if not any(other.endswith(f".{end}") for other in other_keys)), key)

    def is_number(self, column: str) -> bool:
        """Return True if a column's cells are numbers, which are aligned to the right."""
        return column in ("seed", "duration", "episodes") or column in self.figures

    def sorts(self, column: str) -> bool:
        """Return True if rows can be sorted by a column."""
        return column in _KEYS or column in self.figures or column in self.settings

    def _sorted(self, rows: Sequence[RunRow], sort: str) -> Sequence[RunRow]:
        column = sort.removeprefix("-")
        if not sort:
            return sorted(rows, key=_age, reverse=True)
        if not self.sorts(column):
            names = ", ".join((*_KEYS, *self.settings, *self.figures))
            raise UsageError(f"sort is {column!r}; expected one of {names}")

        def key(row: RunRow) -> Any:
            if column in _KEYS:
                return _KEYS[column](row)
            if column in self.settings:
                return _sortable(row.settings.get(column, ""))
            figure = row.figures.get(column)
            return -1e300 if figure is None else figure.value

        return sorted(rows, key=lambda row: (key(row), row.number), reverse=sort.startswith("-"))


def _age(row: RunRow) -> tuple[datetime, int]:
    """Return the sort key of a row by its start; a row without a start counts as the oldest."""
    return row.started or _EARLY, row.number


def _same(column: str, rows: Iterable[RunRow]) -> str:
    """Return the value of a column as text if all readable runs agree on it; else empty."""
    values = {str(getattr(row, column)) for row in rows if not row.fault}
    return values.pop() if len(values) == 1 else ""


def _differs(key: str, rows: Iterable[RunRow]) -> bool:
    """Return True if runs of one spec and kind have different values of a setting."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        values.setdefault((row.spec, row.kind), set()).add(row.settings.get(key, ""))
    return any(len(distinct) > 1 for distinct in values.values())


def _sortable(value: str) -> tuple[float, str]:
    """Return a sort key of a setting: numbers by their value before other texts."""
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _equal_figures(rows: Sequence[RunRow]) -> dict[str, list[str]]:
    """Group the names of the runs' metrics: names with equal values in each run are listed under the first of
    them."""
    figures = [row.figures for row in rows]
    names = list(dict.fromkeys(name for figures_ in figures for name in figures_))
    equal_names: dict[str, list[str]] = {}
    for name in names:
        rounded_values = (
            {other: (round(it.value, 9), tuple(it.values.items())) for other, it in figures_.items()}
            for figures_ in figures
            if name in figures_
        )
        first_name = next(group[0] for group in EqualFigures(names, rounded_values).groups if name in group)
        equal_names.setdefault(first_name, []).append(name)
    return equal_names


def _matches(row: RunRow, search: str) -> bool:
    settings = (f"{key}={value}" for key, value in row.settings.items())
    texts = (row.name, row.spec, row.model, row.checkpoint, row.kind, row.status, *settings)
    return search.lower() in " ".join(texts).lower()


def picked_curves(table: RunsTable, runs: Sequence[ViewedRun]) -> dict[str, Markup]:
    """Return a chart by figure among the columns, as SVG, with the curves of each row of `table.drawn`.

    Raises DataError where the metrics of a training cannot be read.
    """
    charts: dict[str, Markup] = {}
    for figure in table.columns:
        lines = [
            ChartLine(f"{row.name}, {split}", curve, index, _STROKES[split])
            for index, row in enumerate(table.drawn)
            for split, curve in _curves(figure, runs[row.number].lines).items()
        ]
        if lines:
            # The chart escapes every text in it.
            charts[figure] = Markup(line_chart(figure, lines))
    return charts


def run_rows(runs: Sequence[ViewedRun]) -> list[RunRow]:
    """Return the row of each run, in order; a damaged run has a row with its fault."""
    named_runs = zip(run_names(runs), runs, strict=True)
    rows = [_row(number, name, run) for number, (name, run) in enumerate(named_runs)]
    keys = dict.fromkeys(key for row in rows for key in row.settings)
    return [
        row if row.fault else replace(row, settings=_resolved(row, runs[row.number], keys)) for row in rows
    ]


def _resolved(row: RunRow, run: ViewedRun, keys: Iterable[str]) -> dict[str, str]:
    """Return the values of keys in a run's resolved spec; if that lacks a key, the value as it was typed."""
    values = {key: run.setting(key) or row.settings.get(key, "") for key in keys}
    return {key: value for key, value in values.items() if value}


def _row(number: int, name: str, run: ViewedRun) -> RunRow:
    try:
        info = run.info
        row = RunRow(
            number,
            name,
            run.folder.path,
            spec=info.name,
            model=info.model,
            checkpoint=info.checkpoint or "",
            seed=info.seed,
            kind="training" if info.kind == "train" else "run",
            started=info.started,
            duration=info.duration,
            settings=_settings(info),
            running=run.is_running,
        )
        return (_of_training if info.kind == "train" else _of_run)(row, run, info)
    except RolegraphError as error:
        return RunRow(number, name, run.folder.path, fault=str(error))


def _settings(info: RunInfo) -> dict[str, str]:
    rates = {f"{rate:g}" for rate in info.learning_rates.values()}
    typed_overrides = {key: value for key, _, value in (word.partition("=") for word in info.overrides)}
    return {**typed_overrides, **({_RATE: ", ".join(sorted(rates))} if rates else {})}


def _of_run(row: RunRow, run: ViewedRun, info: RunInfo) -> RunRow:
    figures = info.figures
    if info.finished is None:
        counted_entries = run.every().counted()
        figures = means_of((entry for entry, _ in counted_entries), (n for _, n in counted_entries))
    episodes = int(figures.get("episodes", 0))
    planned_episodes = count_rows(run.folder.data_file) * info.rollouts
    part = _readable(run, "episodes", episodes)
    values: Mapping[str, ByTask] = run.values(part) if part else {}
    counts = {name: int(figures.get(f"n/{name}", episodes)) for name in info.metric_names}
    return replace(
        row,
        counts={"run": episodes},
        figures={
            name: RunFigure(figures[name], "run", n=n, values=values.get(name, {}))
            for name, n in counts.items()
            if name in figures
        },
        outcomes=RunOutcomes(run.outcomes(part), EpisodeFilter(), info.can_be_correct) if part else None,
        status=_status(row, info, f"{episodes:,}", episodes, planned_episodes),
    )


def _of_training(row: RunRow, run: ViewedRun, info: RunInfo) -> RunRow:
    lines = run.lines
    last_step = int(max((line["step"] for line in lines), default=0))
    names = (*info.metric_names, *(f"reward/{role}" for role in info.roles))
    figures = {name: figure for name in names if (figure := _last(name, run))}
    headline = next(iter(figures.values()), None)
    return replace(
        row,
        counts=episode_counts(lines, info),
        figures=figures,
        curves=_curves(next(iter(figures), ""), lines),
        outcomes=_outcomes(run, headline) if headline else None,
        status=f"stopped early at step {last_step}"
        if info.stopped
        else _status(row, info, f"step {last_step:,}", last_step, info.steps),
    )


def _curves(name: str, lines: Sequence[Mapping[str, float]]) -> dict[str, list[Point]]:
    """Return the points of a figure over the steps, by split; splits without the figure are left out."""
    curves: dict[str, list[Point]] = {}
    for split in (_TRAIN, _VALIDATION):
        key = f"{SPLITS[split]}/{name}"
        if curve := [(line["step"], line[key]) for line in lines if key in line]:
            curves[split] = curve
    return curves


def _last(name: str, run: ViewedRun) -> RunFigure | None:
    """Return a figure of a training's last validation, or else of its last batch; None if neither has it."""
    for split in (_VALIDATION, _TRAIN):
        key = f"{SPLITS[split]}/{name}"
        if line := next((line for line in reversed(run.lines) if key in line), None):
            n, step = int(line.get(f"{SPLITS[split]}/n/{name}", 0)), int(line["step"])
            part = _readable(run, f"{split}-{step:06d}", n) if split == _VALIDATION else None
            return RunFigure(line[key], split, step, n, run.values(part).get(name, {}) if part else {})
    return None


def _outcomes(run: ViewedRun, headline: RunFigure) -> RunOutcomes | None:
    """Return the outcomes of the episodes of a training's headline figure; None if they are not read."""
    split, step = headline.split, headline.step
    part = _readable(run, f"{split}-{step:06d}", headline.n)
    where = EpisodeFilter(split=split, step=step)
    return RunOutcomes(run.outcomes(part), where, run.info.can_be_correct) if part else None


def _readable(run: ViewedRun, name: str, n: int) -> RunPart | None:
    """Return the file of episodes with a name; None if `n`, its number of episodes, exceeds `MOST_READ`, or
    the file cannot be read."""
    with suppress(DataError):  # the list of episodes says what is wrong
        if n <= MOST_READ and run.rows(part := run.folder.part(name)):
            return part
    return None


def _status(row: RunRow, info: RunInfo, shown: str, done: int, planned: int) -> str:
    progress = f"{shown} of {planned:,}" if planned else shown
    if info.finished is None:
        return f"{'running' if row.running else 'not finished'}, {progress}"
    return f"ended at {progress}" if done < planned else "finished"
