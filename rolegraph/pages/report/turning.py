"""Turning points of a training: the largest rise and the largest fall of its first figure, each with the turn
that had the largest share of a gradient in the updates between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from rolegraph.engine.training.analysis.intervals import difference
from rolegraph.pages.report.digest import Digest
from rolegraph.pages.report.heaviest import HeavyTurn
from rolegraph.pages.report.outcome import FigureChange
from rolegraph.pages.report.reading import Point, RunRecord

WINDOW = 5
"""Number of batches whose mean is compared with the mean of as many next batches; each batch has other
tasks.
"""
LEAST = 3
"""Smallest number of validations for which their curve is searched; with fewer, that of the batches
is searched."""


class TurningPoint(NamedTuple):
    """Largest rise or fall of a curve from one validation to the next, or between means of batches."""

    name: str
    """`rise` or `fall`."""
    change: FigureChange
    """Figure with only two points: before and after the change."""
    last_point: Point
    """Last point of the curve in the change."""
    window: int
    """Number of batches in each mean; 1 for validations."""
    among: int
    """Number of changes in the curve among which this one is the largest."""
    turn: HeavyTurn | None
    """Turn with the largest share of its policy's gradient in the updates between both points."""

    @property
    def size(self) -> float:
        """Difference of both points, below 0 for a fall."""
        return self.change.last[1] - self.change.first[1]


def turning_points(run: RunRecord, digest: Digest) -> list[TurningPoint]:
    """Return the largest rise and the largest fall of the first figure.

    One is left out where the curve has none, or where its interval over the tasks includes 0.
    """
    points = [*_changes(run, digest)]
    rise = max(points, key=lambda it: it.size, default=None)
    fall = min(points, key=lambda it: it.size, default=None)
    return [
        point._replace(name=name, among=len(points))
        for name, point, sign in (("rise", rise, 1), ("fall", fall, -1))
        if point and point.size * sign > 0 and (not point.change.change or point.change.sign)
    ]


def _changes(run: RunRecord, digest: Digest) -> Iterator[TurningPoint]:
    names = next(iter(run.figures), ("",))
    validations = run.series(f"validation/{names[0]}")
    is_validated = len(validations) >= LEAST
    points = validations if is_validated else run.series(f"episode/{names[0]}")
    size = 1 if is_validated else max(1, min(WINDOW, len(points) // 2))
    values = digest.validations.get(names[0], {})
    for start in range(len(points) - 2 * size + 1):
        window_before, window_after = points[start : start + size], points[start + size : start + 2 * size]
        ends = _mean(window_before), _mean(window_after)
        tasks = [values.get(int(step), {}) for step, _ in ends]
        change = difference(tasks[1], tasks[0]) if is_validated else None
        # A batch is answered before the update of its step, a validation after it.
        updates = range(int(window_before[0][0]) + is_validated, int(window_after[0][0]) + is_validated)
        heavy_turns = [digest.heaviest[step] for step in updates if step in digest.heaviest]
        yield TurningPoint(
            name="",
            change=FigureChange(
                names, ends, is_validated, ends[1], False, change if change and change.n else None, ()
            ),
            last_point=window_after[-1],
            window=size,
            among=0,
            turn=max(heavy_turns, key=lambda it: it.share, default=None),
        )


def _mean(points: Sequence[Point]) -> Point:
    return points[-1][0], fmean(value for _, value in points)
