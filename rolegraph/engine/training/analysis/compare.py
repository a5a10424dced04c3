"""Confidence intervals, paired differences between runs, and the controls of a training. Pure.

Episodes of one task share its difficulty, so the bootstrap resamples tasks, not episodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from rolegraph.engine.compile import Plan
from rolegraph.engine.records import Control, Episode, Trajectory
from rolegraph.engine.records.means import means_by_task
from rolegraph.engine.records.schema import Figure
from rolegraph.engine.training.analysis.figures import episode_figures, rewards_by_role

RESAMPLES = 2000
"""Bootstrap samples of each interval."""
LEVEL = 95
"""Confidence level in percent."""

ByTask = Mapping[str, float]
"""Mean of a figure over each task's episodes, by task id."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean over tasks with its confidence interval, at the level `LEVEL`."""

    mean: Figure
    low: Figure
    high: Figure
    n: int
    """Number of tasks."""


def interval(*sides: ByTask) -> Interval:
    """Return the mean over tasks with a percentile bootstrap interval (Efron, 1979).

    Of two sides it is the difference of means, the first minus the second, each resampled by itself, and `n`
    is the smaller side's. The resampling is seeded, so that the same values give the same interval. A side
    without tasks gives zeros.
    """
    values = [np.array([*side.values()]) for side in sides]
    if not all(side.size for side in values):
        return Interval(0.0, 0.0, 0.0, 0)
    draw = np.random.default_rng(0)
    resampled = [side[draw.integers(side.size, size=(RESAMPLES, side.size))].mean(axis=1) for side in values]
    mean, *others = (float(side.mean()) for side in values)
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(resampled[0] - sum(resampled[1:]), (tail, 100 - tail))
    return Interval(mean - sum(others), float(low), float(high), min(side.size for side in values))


def difference(now: ByTask, before: ByTask) -> Interval:
    """Return the interval of `now` minus `before`, paired over the tasks that both have."""
    return interval({task: value - before[task] for task, value in now.items() if task in before})


def by_task(plan: Plan, episodes: Sequence[Episode]) -> Mapping[str, ByTask]:
    """Return means by figure and task: `correct`, the spec's metrics and `reward/{role}`."""
    rows: list[tuple[str, Mapping[str, float]]] = []
    for episode in episodes:
        rewards = rewards_by_role(plan, [episode]).items()
        means = {f"reward/{name}": sum(earned) / len(earned) for name, earned in rewards}
        rows.append((episode.task_id, episode_figures(plan, episode) | means))
    return means_by_task(rows)


def controls(plan: Plan, untrained: Sequence[Episode], trained: Sequence[Episode]) -> list[Control]:
    """Compare the trained workflow with the untrained one, and with single trained roles.

    A role that needs no other and whose reward reads no other gives the same answers alone as in the
    workflow. For each such role there are two rows: pass@1, the mean over its instances, and the majority
    vote over its K·N answers to a task (K rollouts, N instances).

    Args:
        plan: The plan.
        untrained: Validation episodes before training.
        trained: Validation episodes after training, on the same tasks.
    """
    rows = [_control("untrained workflow", "correct", by_task(plan, untrained).get("correct", {}))]
    for role in plan.roles:
        # A reward that reads other roles measures those too, and a loop's later rounds see earlier ones.
        if len(plan.roles) == 1 or role.spec.needs or role.loop is not None or role.run is not None:
            continue
        if role.reward is None or role.reward.roles or role.name not in plan.judged:
            continue
        answers: defaultdict[str, list[Trajectory]] = defaultdict(list)
        for episode in trained:
            of_role = (t for t in episode.trajectories if t.name == role.name)
            if trajectories := [t for t in of_role if not t.is_unjudged]:
                answers[episode.task_id] += trajectories
        if not answers:
            continue
        name, size = f"trained {role.name} alone", max(map(len, answers.values()))
        right = {task: fmean(t.is_correct for t in trajectories) for task, trajectories in answers.items()}
        rows.append(_control(name, "pass@1", right))
        votes = {task: _majority(trajectories) for task, trajectories in answers.items()}
        rows.append(_control(name, f"majority of {size}", votes))
    return [*rows, _control("trained workflow", "correct", by_task(plan, trained).get("correct", {}))]


def _control(name: str, figure: str, values: ByTask) -> Control:
    over = interval(values)
    return Control(name=name, figure=figure, mean=over.mean, low=over.low, high=over.high, n=over.n)


def _majority(answers: list[Trajectory]) -> float:
    """Return 1.0 if the most common action is correct; the first one given wins a tie."""
    winner = Counter(str(t.action) for t in answers).most_common(1)[0][0]
    return float(next(t for t in answers if str(t.action) == winner).is_correct)
