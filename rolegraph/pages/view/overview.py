"""Rows of the list of runs: their columns, order and search.

A finished run's figures are those of its `run.json`; of a run that goes on they are counted in its index, and
of a training in its metrics. No episode is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rolegraph.engine.errors import RolegraphError, UsageError
from rolegraph.engine.records import RunInfo
from rolegraph.engine.records.data import count_rows
from rolegraph.pages.report.charts import Axis, number
from rolegraph.pages.report.reading import Point
from rolegraph.pages.view.runs import ViewedRun, run_names

SPARK = (96, 22)
"""Width and height of the small curve in a row, in pixels."""
_LATE = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RunRow:
    """Run in the list of runs, with the values of its columns."""

    number: int
    """Number of the run in the viewer."""
    name: str
    """Name of the folder, or its path where two runs share the name."""
    spec: str = ""
    model: str = ""
    kind: str = ""
    """`run` or `training`."""
    started: datetime | None = None
    episodes: int = 0
    """Number of episodes; 0 where it is not on record."""
    figure: str = ""
    """Name of the headline figure: `correct`, or else the first metric."""
    value: float | None = None
    """Value of the headline figure: over all episodes of a run, or of a training's last validation."""
    n: int = 0
    """Number of episodes in the value; 0 where it is not on record."""
    curve: Sequence[Point] = ()
    """Values of the headline figure over the steps of a training."""
    status: str = "damaged"
    """State of the run, with the part that is done: `running, 12 of 32`."""
    running: bool = False
    """Whether a process writes in the folder."""
    fault: str = ""
    """Message for a run that cannot be read; its other columns are empty."""

    @property
    def spark(self) -> str:
        """SVG path of the small curve; empty with fewer than two points."""
        if len(self.curve) < 2:
            return ""
        width, height = SPARK
        values = [value for _, value in self.curve]
        x = Axis(self.curve[0][0], self.curve[-1][0], start=2, end=width - 2)
        low, high = min(values), max(values)
        y = Axis(low, high if high > low else low + 1, start=height - 3, end=3)
        return "M" + "L".join(f"{x.at(step):.1f} {y.at(value):.1f}" for step, value in self.curve)

    @property
    def spark_words(self) -> str:
        """Description of the small curve."""
        (first, was), (last, now) = self.curve[0], self.curve[-1]
        return f"{self.figure} from {number(was)} at step {first:g} to {number(now)} at step {last:g}"


_KEYS: Mapping[str, Callable[[RunRow], object]] = {
    "run": lambda row: row.name.lower(),
    "spec": lambda row: row.spec.lower(),
    "model": lambda row: row.model.lower(),
    "kind": lambda row: row.kind,
    "when": lambda row: row.started or _LATE,
    "episodes": lambda row: row.episodes,
    "figure": lambda row: -1e300 if row.value is None else row.value,
    "status": lambda row: row.status,
}
COLUMNS = tuple(_KEYS)
"""Names of the columns, by which rows can be sorted."""


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """Order, search and picked runs of the list."""

    sort: str = ""
    """Name of a column, with `-` before it for the largest first; empty for the order of the command."""
    search: str = ""
    """Text in a row's name, spec, model, kind or status; case is ignored."""
    picked: frozenset[int] = frozenset()
    """Numbers of the picked runs."""

    @classmethod
    def of(cls, sort: str, search: str, picked: Iterable[str]) -> RunsQuery:
        """Parse the query of a URL; raises UsageError for an unknown column or a pick that is no number."""
        if sort and sort.removeprefix("-") not in COLUMNS:
            raise UsageError(f"sort is {sort!r}; expected one of {', '.join(COLUMNS)}")
        for pick in picked:
            if not pick.isdecimal() or len(pick) > 6:
                raise UsageError(f"pick is {pick!r}; expected the number of a run")
        return cls(sort, search.strip(), frozenset(map(int, picked)))

    def turned(self, column: str) -> str:
        """Return the value of `sort` that a press on a column's heading asks for."""
        return f"-{column}" if self.sort == column else column

    def direction(self, column: str) -> str:
        """Return the `aria-sort` of a column: `ascending`, `descending` or `none`."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "none")

    def arrange(self, rows: Iterable[RunRow]) -> list[RunRow]:
        """Return the rows that match the search, in order."""
        wanted = self.search.lower()
        shown = [
            row
            for row in rows
            if wanted in f"{row.name} {row.spec} {row.model} {row.kind} {row.status}".lower()
        ]
        if self.sort:
            key = _KEYS[self.sort.removeprefix("-")]
            shown.sort(key=lambda row: (key(row), row.number), reverse=self.sort.startswith("-"))  # pyright: ignore[reportArgumentType]
        return shown


def run_rows(runs: Sequence[ViewedRun]) -> list[RunRow]:
    """Return the row of each run, in order; a damaged run has a row with its fault."""
    named = zip(run_names(runs), runs, strict=True)
    return [_row(number, name, run) for number, (name, run) in enumerate(named)]


def _row(number: int, name: str, run: ViewedRun) -> RunRow:
    try:
        info = run.info
        row = RunRow(
            number,
            name,
            spec=info.name,
            model=info.model,
            kind="training" if info.kind == "train" else "run",
            started=info.started,
            running=run.is_running,
        )
        return (_of_training if info.kind == "train" else _of_run)(row, run, info)
    except RolegraphError as error:
        return RunRow(number, name, fault=str(error))


def _of_run(row: RunRow, run: ViewedRun, info: RunInfo) -> RunRow:
    figures = info.figures
    if info.finished is None:
        entries = [of.entry for part in run.parts() for of in run.rows(part)]
        right = sum(entry.is_correct for entry in entries) / max(1, len(entries))
        figures = {"episodes": float(len(entries)), "correct": right} if entries else {}
    name = next((name for name in info.figure_names if name in figures), "")
    episodes = int(figures.get("episodes", 0))
    planned = count_rows(run.folder.data_file) * info.rollouts
    return replace(
        row,
        episodes=episodes,
        figure=name,
        value=figures.get(name),
        n=int(figures.get(f"n/{name}", episodes)),
        status=_status(row, info, f"{episodes:,}", episodes, planned),
    )


def _of_training(row: RunRow, run: ViewedRun, info: RunInfo) -> RunRow:
    lines = run.lines
    done = int(max((line["step"] for line in lines), default=0))
    status = f"stopped early at step {done}" if info.stopped else ""
    row = replace(
        row,
        episodes=_episodes(lines, info),
        status=status or _status(row, info, f"step {done:,}", done, info.steps),
    )
    for figure in (
        f"{start}/{{}}{name}" for start in ("validation", "episode") for name in info.figure_names
    ):
        key = figure.format("")
        with_it = [line for line in lines if key in line]
        if with_it:
            return replace(
                row,
                figure=key.partition("/")[2],
                value=with_it[-1][key],
                n=int(with_it[-1].get(figure.format("n/"), 0)),
                curve=[(line["step"], line[key]) for line in with_it],
            )
    return row


def _episodes(lines: Iterable[Mapping[str, float]], info: RunInfo) -> int:
    """Return the number of episodes that a training learned from, as its metrics count them."""
    names = [f"episode/n/{name}" for name in info.figure_names]
    return int(sum(max((line.get(name, 0.0) for name in names), default=0.0) for line in lines))


def _status(row: RunRow, info: RunInfo, shown: str, done: int, planned: int) -> str:
    of = f"{shown} of {planned:,}" if planned else shown
    if info.finished is None:
        return f"{'running' if row.running else 'not finished'}, {of}"
    return f"ended at {of}" if done < planned else "finished"
