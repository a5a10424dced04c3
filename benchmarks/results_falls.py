"""The largest fall of a learning curve, and the turn before it that had most of its policy's gradient.

A fall is the mean of `WINDOW` steps minus the mean of the next `WINDOW`. The updates after the first of these
steps made the weights that answered in the others, so the turn is sought there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from results_tables import WINDOW

from rolegraph.engine.records import NodeId
from rolegraph.engine.records.credit import CreditRow
from rolegraph.pages.recorded_credit import recorded_rows
from rolegraph.pages.report.reading import Point
from rolegraph.pages.view.rows import RunPart
from rolegraph.pages.view.runs import EpisodeLocation, ViewedRun


class Fall(NamedTuple):
    """Largest fall of a curve."""

    steps: Sequence[float]
    """Steps of which `before` is the mean."""
    before: float
    after: float

    @property
    def size(self) -> float:
        """Difference of both means, above 0."""
        return self.before - self.after


class HeavyTurn(NamedTuple):
    """Turn, or trajectory, of an episode, with its part in one update."""

    row: EpisodeLocation
    """Location of the episode."""
    node: NodeId
    """Turn; of a trajectory its first."""
    share: float
    """Its part of the sum of |advantage × loss weight| over all tokens of its policy in the step."""


def window(points: Sequence[Point]) -> int:
    """Return the number of steps of each mean: `WINDOW`, or half of a curve that is shorter than two."""
    return max(1, min(WINDOW, len(points) // 2))


def smoothed_curve(points: Sequence[Point]) -> list[Point]:
    """Return the means of each window of a curve, each at the window's last step."""
    size = window(points)
    ends = range(size, len(points) + 1)
    return [(points[end - 1][0], statistics.fmean(v for _, v in points[end - size : end])) for end in ends]


def largest_fall(points: Sequence[Point]) -> Fall | None:
    """Return the largest fall of a curve; None where no window is below the window before it."""
    size = window(points)
    falls: list[Fall] = []
    for start in range(len(points) - 2 * size + 1):
        both = points[start : start + 2 * size]
        before, after = (statistics.fmean(value for _, value in part) for part in (both[:size], both[size:]))
        falls.append(Fall([step for step, _ in both[:size]], before, after))
    worst = max(falls, key=lambda fall: fall.size, default=None)
    return worst if worst and worst.size > 0 else None


def change_beside(fall: Fall, points: Sequence[Point]) -> float | None:
    """Return the change of another curve between the steps of a fall and as many after them; None where it
    lacks them."""
    values = dict(points)
    size = len(fall.steps)
    after = [step for step, _ in points if step > fall.steps[-1]][:size]
    if len(after) < size or not values.keys() >= {*fall.steps}:
        return None
    return statistics.fmean(values[step] for step in after) - statistics.fmean(values[s] for s in fall.steps)


def heaviest_turn(run: ViewedRun, steps: Sequence[float]) -> HeavyTurn | None:
    """Return the turn with the largest share of its policy's gradient among some steps; None without a
    gradient.

    Raises:
        DataError: A file of episodes cannot be read.
    """
    turns = [
        turn
        for part in run.parts()
        if part.split == "train" and part.step in steps
        for turn in shares(run, part)
    ]
    return max(turns, key=lambda turn: turn.share, default=None)


def shares(run: ViewedRun, part: RunPart) -> Iterator[HeavyTurn]:
    """Yield the turns that were compared in one step, each with its share."""
    locations = {(it.entry.task, it.entry.rollout): it for it in run.rows(part)}
    table = run.folder.credit_rows(part.step)
    rows = recorded_rows(map(run.read, locations.values())) if table is None else table
    masses = [(row, mass(row)) for row in rows if row.group is not None and mass(row)]
    whole: dict[str, float] = {}
    for row, own in masses:
        whole[row.policy] = whole.get(row.policy, 0.0) + own
    for row, own in masses:
        yield HeavyTurn(locations[row.task, row.rollout], row.node, own / whole[row.policy])


def mass(row: CreditRow) -> float:
    """Return the sum of |advantage × loss weight| over a member's tokens."""
    weight = 1.0 if row.loss_weight is None else row.loss_weight
    return abs(row.advantage or 0.0) * row.tokens * weight
