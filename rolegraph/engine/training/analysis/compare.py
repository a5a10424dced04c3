"""Metrics of each task, and reference values (controls) for a training. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from rolegraph.engine.compile import Plan
from rolegraph.engine.records import Control, Episode, Trajectory
from rolegraph.engine.records.means import means_by_task
from rolegraph.engine.training.analysis.constants import beside_rewards, tally_answers
from rolegraph.engine.training.analysis.intervals import ByTask, interval
from rolegraph.engine.training.analysis.metrics import episode_metrics, rewards_by_role


def by_task(plan: Plan, episodes: Sequence[Episode]) -> Mapping[str, ByTask]:
    """Return means by metric and task: `correct`, the spec's metrics, `reward/{role}`, and for roles with
    discrete answers `answers/same/{role}` and `answers/constant/{role}`."""
    rows: list[tuple[str, Mapping[str, float]]] = []
    for episode in episodes:
        rewards = rewards_by_role(plan, [episode]).items()
        means = {f"reward/{name}": sum(values) / len(values) for name, values in rewards}
        rows.append((episode.task_id, episode_metrics(plan, episode) | means))
    words = {role.name: role.allowed_answers for role in plan.asking}
    return beside_rewards(means_by_task(rows), tally_answers(episodes, words))


def controls(plan: Plan, untrained: Sequence[Episode], trained: Sequence[Episode]) -> list[Control]:
    """Compare the trained workflow with the untrained one, and with single roles.

    A role, trained or not, that needs no other and whose reward reads no other gives the same answers alone
    as in the workflow. For each such role there are two rows: pass@1, the mean over its instances, and the
    majority vote over its K·N answers to a task (K rollouts, N instances).

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
            trajectories_of_role = (t for t in episode.trajectories if t.name == role.name)
            if trajectories := [t for t in trajectories_of_role if t.failed_by != "reward"]:
                answers[episode.task_id] += trajectories
        if not answers:
            continue
        state = "trained" if role.name in plan.trained else "untrained"
        name, size = f"{state} {role.name} alone", max(map(len, answers.values()))
        is_right = {task: fmean(t.is_correct for t in trajectories) for task, trajectories in answers.items()}
        rows.append(_control(name, "pass@1", is_right))
        majorities = {task: _majority(trajectories) for task, trajectories in answers.items()}
        rows.append(_control(name, f"majority of {size}", majorities))
    return [*rows, _control("trained workflow", "correct", by_task(plan, trained).get("correct", {}))]


def _control(name: str, figure: str, values: ByTask) -> Control:
    mean = interval(values)
    return Control(name=name, figure=figure, mean=mean.mean, low=mean.low, high=mean.high, n=mean.n)


def _majority(answers: list[Trajectory]) -> float:
    """Return 1.0 if the most common action of some answers is correct, else 0.0; the first given wins a
    tie."""
    most_common = Counter(str(t.action) for t in answers).most_common(1)[0][0]
    return float(next(t for t in answers if str(t.action) == most_common).is_correct)
