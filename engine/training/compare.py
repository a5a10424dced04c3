"""How sure a figure is, and whom a gain belongs to: intervals, paired differences and controls.

Pure. Episodes of one task share its difficulty, so tasks, not episodes, are drawn again in the bootstrap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rolegraph.engine.compile import Plan
from rolegraph.engine.records import Control, Episode, Trajectory
from rolegraph.engine.training.figures import episode_figures, rewards_by_role

RESAMPLES = 2000
LEVEL = 95
"""Percent of the bootstrap's means that an interval covers."""

ByTask = Mapping[str, float]
"""A figure's mean for each task."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval, over `n` tasks."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: ByTask) -> Interval:
    """The mean over tasks, with a percentile bootstrap's interval (Efron, 1979). No task gives zeros."""
    means = np.array([*values.values()])
    if not means.size:
        return Interval(0.0, 0.0, 0.0, 0)
    draws = np.random.default_rng(0).integers(len(means), size=(RESAMPLES, len(means)))
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(means[draws].mean(axis=1), (tail, 100 - tail))
    return Interval(float(means.mean()), float(low), float(high), len(means))


def difference(now: ByTask, before: ByTask) -> Interval:
    """The paired difference over the tasks that both have."""
    return interval({task: value - before[task] for task, value in now.items() if task in before})


def difference_apart(now: ByTask, before: ByTask) -> Interval:
    """The difference of means over tasks that are not the same: each side's are drawn again for itself.

    `n` is that of the smaller side. A side without a task gives zeros.
    """
    sides = [np.array([*values.values()]) for values in (now, before)]
    if not all(side.size for side in sides):
        return Interval(0.0, 0.0, 0.0, 0)
    rng = np.random.default_rng(0)
    means = [side[rng.integers(side.size, size=(RESAMPLES, side.size))].mean(axis=1) for side in sides]
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(means[0] - means[1], (tail, 100 - tail))
    mean = float(sides[0].mean() - sides[1].mean())
    return Interval(mean, float(low), float(high), min(side.size for side in sides))


def by_task(plan: Plan, episodes: Sequence[Episode]) -> dict[str, ByTask]:
    """`correct`, the spec's metrics and each role's reward, by figure and task."""
    values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for episode in episodes:
        figures = episode_figures(plan, episode)
        figures |= {f"reward/{name}": sum(r) / len(r) for name, r in rewards_by_role(plan, [episode]).items()}
        for figure, value in figures.items():
            values[figure][episode.task_id].append(value)
    return {figure: {task: sum(v) / len(v) for task, v in tasks.items()} for figure, tasks in values.items()}


def controls(plan: Plan, untrained: Sequence[Episode], trained: Sequence[Episode]) -> list[Control]:
    """The untrained workflow, each answering role alone as trained, and the trained one, on the same tasks.

    A role that needs no other answers the same alone as in the workflow, if its reward judges what it says
    itself. Alone it has pass@1, the mean over its instances, and the majority of its N answers to a task,
    those of all rollouts together.
    """
    rows = [_control("untrained workflow", "correct", by_task(plan, untrained).get("correct", {}))]
    for role in plan.roles:
        # A reward that reads other roles says how those did, and in a loop nobody is alone.
        if len(plan.roles) == 1 or role.needs or role.loop is not None or role.run is not None:
            continue
        if role.reward is None or role.reward.roles:
            continue
        votes = _votes(role.name, trained)
        size = max(map(len, votes.values()), default=0)
        rows.append(_control(f"trained {role.name} alone", "pass@1", _each(votes, _mean_correct)))
        rows.append(_control(f"trained {role.name} alone", f"majority of {size}", _each(votes, _majority)))
    return [*rows, _control("trained workflow", "correct", by_task(plan, trained).get("correct", {}))]


def _control(name: str, figure: str, values: ByTask) -> Control:
    over = interval(values)
    return Control(name=name, figure=figure, mean=over.mean, low=over.low, high=over.high, n=over.n)


def _votes(role: str, episodes: Sequence[Episode]) -> dict[str, list[Trajectory]]:
    votes: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for episode in episodes:
        votes[episode.task_id] += [t for t in episode.trajectories if t.name == role]
    return votes


def _each(votes: Mapping[str, list[Trajectory]], measure: Callable[[list[Trajectory]], float]) -> ByTask:
    return {task: measure(answers) for task, answers in votes.items() if answers}


def _mean_correct(answers: list[Trajectory]) -> float:
    return sum(t.is_correct for t in answers) / len(answers)


def _majority(answers: list[Trajectory]) -> float:
    """Whether the commonest action is right; of equally common ones, the first given."""
    winner = Counter(str(t.action) for t in answers).most_common(1)[0][0]
    return float(next(t for t in answers if str(t.action) == winner).is_correct)
