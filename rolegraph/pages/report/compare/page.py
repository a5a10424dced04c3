"""Page of a comparison: figures and roles as cells of tables, curves, and tasks that flipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import pstdev
from string import ascii_uppercase
from typing import NamedTuple, Protocol

from rolegraph.engine.records import RunFolder, Trajectory
from rolegraph.engine.records.numbers import number
from rolegraph.engine.training.analysis.changes import read_validations
from rolegraph.engine.training.analysis.verdict import BEST_ON_THESE
from rolegraph.pages.report.charts import COLOURS, Axis, interval, ruler, scale
from rolegraph.pages.report.compare.comparison import Comparison, FigureRow
from rolegraph.pages.report.compare.flips import REWARD
from rolegraph.pages.report.digest import bands, clipped
from rolegraph.pages.report.html import CHARTS, file_bar, render, script
from rolegraph.pages.report.panels import common_curves
from rolegraph.pages.report.reading import read_run

_HERE = Path(__file__).parent
FLIPS_OF_PAGE = 50
"""Largest number of flipped tasks, for each direction and side, whose episodes a page shows."""
_FIRST_FLIPS = 5
"""Number of flipped tasks, for each direction and side, that a page shows unfolded."""


class ComparisonLinks(Protocol):
    """URLs of a comparison's episodes in the viewer; each side is given by its name."""

    def task(self, side: str, task: str) -> str:
        """Return the URL of the list of a task's episodes."""
        ...

    def episode(self, side: str, task: str, rollout: int) -> str:
        """Return the URL of an episode."""
        ...

    def failures(self, side: str, role: str) -> str:
        """Return the URL of the list of the episodes in which a role failed."""
        ...

    def beside(self, sides: Sequence[str], task: str, rollouts: Sequence[int]) -> str:
        """Return the URL of the page that shows an episode of each of two sides in columns."""
        ...


def comparison_page(
    comparison: Comparison,
    links: ComparisonLinks | None = None,
    bar: str | None = None,
    switch: str = "",
    *,
    best: bool = False,
) -> str:
    """Return the HTML of a comparison, which opens offline; raises DataError for a damaged training.

    Args:
        comparison: The comparison.
        links: URLs of the episodes; None where no viewer shows the page.
        bar: Links of the viewer that the page begins with, as `Markup`; None for a page that is a file.
        switch: URL of the page with the other validations; empty where no viewer shows the page.
        best: True if trainings are compared by their best checkpoints.
    """
    code, code_hash = script(CHARTS)
    trainings = [
        (
            f"{letter(index)} {side.name}",
            read_run(side.training),
            bands(read_validations(RunFolder(side.training))),
        )
        for index, side in enumerate(comparison.sides)
        if side.training is not None
    ]
    return render(
        _HERE / "compare.html.j2",
        _HERE / "compare.css",
        comparison=comparison,
        curves=common_curves(trainings) if len(trainings) > 1 else (),
        letters={side.name: letter(index) for index, side in enumerate(comparison.sides)},
        places={side.name: index % COLOURS for index, side in enumerate(comparison.sides)},
        verdicts=[[*group] for _, group in groupby(comparison.verdicts, key=attrgetter("side"))],
        chosen=BEST_ON_THESE,
        switch=switch,
        best=best,
        bar=bar or file_bar(),
        links=links,
        roles=role_lines(comparison),
        first_flips=_FIRST_FLIPS,
        tables=figure_tables(comparison),
        interval=interval,
        ruler=ruler,
        answer=answer,
        script=code,
        script_hash=code_hash,
    )


def letter(place: int) -> str:
    """Return the short name of the side at position `place` (from 0): A for the first; after Z, a number."""
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)


class RoleCell(NamedTuple):
    """Rewards and failures of a role on one side."""

    mean: str
    deviation: str
    """Standard deviation over all rewards; empty without rewards."""
    answers: int
    """Number of the role's trajectories."""
    failures: Counter[str]
    """Number of failures by name."""

    @property
    def commonest(self) -> str:
        """Most frequent failure, as words; empty without failures."""
        return self.failures.most_common(1)[0][0].replace("_", " ") if self.failures else ""


class RoleLine(NamedTuple):
    """Line of the table of roles: a role, its cells, and the row of its mean reward; None without rewards."""

    role: str
    sides: Sequence[RoleCell]
    row: FigureRow | None


def role_lines(comparison: Comparison) -> list[RoleLine]:
    """Return the rewards and failures of each role on the sides that have episodes."""
    entries = [[*side.results.entries.values()] if side.results else [] for side in comparison.measured]
    roles = dict.fromkeys(name for side_entries in entries for entry in side_entries for name in entry.roles)
    rewards = {row.figure: row for row in comparison.rows}
    lines: list[RoleLine] = []
    for role in roles if comparison.rows else ():
        row = rewards.get(f"{REWARD}{role}")
        cells: list[RoleCell] = []
        for index, entries_of_side in enumerate(entries):
            role_entries = [entry.roles[role] for entry in entries_of_side if role in entry.roles]
            values = [reward for it in role_entries for reward in it.rewards]
            mean = row.sides[index] if row else None
            failures = sum((Counter(it.failures) for it in role_entries), Counter[str]())
            cells.append(
                RoleCell(
                    number(mean.mean) if mean else "–",
                    number(pstdev(values)) if values else "",
                    sum(it.count for it in role_entries),
                    failures,
                )
            )
        lines.append(RoleLine(role, cells, row))
    return lines


class FigureKind(NamedTuple):
    """Figures of one kind, whose differences are drawn on one scale."""

    kind: str
    rows: Sequence[tuple[FigureRow, list[str]]]
    """Rows of the table, each with the names of the figures that equal it on every task."""
    axis: Axis


def figure_tables(comparison: Comparison) -> list[FigureKind]:
    """Return the figures of a comparison by kind."""
    kinds: dict[str, list[tuple[FigureRow, list[str]]]] = {}
    for row, equal_names in comparison.distinct_rows:
        kinds.setdefault(row.kind, []).append((row, equal_names))
    tables: list[FigureKind] = []
    for kind, rows in kinds.items():
        gaps = [gap for row, _ in rows for gap in row.differences if gap]
        axis = scale([0.0, *(end for gap in gaps for end in (gap.low, gap.high))])
        tables.append(FigureKind(kind, rows, axis))
    return tables


def answer(trajectory: Trajectory) -> str:
    """Return the text of all responses of a trajectory, cut for display; for a role that runs a tool, its
    action."""
    answers = [step.model_response for step in trajectory.steps if step.model_response]
    return clipped("\n\n".join(answers) or trajectory.action or "")
