"""Episodes to groups, groups to advantages, and the metrics of both; names and values are rLLM's.

In: episodes whose trajectories carry rewards (or, for a precomputed role, advantages on their steps). Out:
new groups in which every step has its advantage, metrics, and warnings. Pure; knows no model and no loss.

Axes: P groups of one role, G members of a group (ragged), T response tokens of a step (ragged).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from engine.errors import AdvantageError
from engine.records import Episode, Step, Trajectory, TrajectoryGroup
from engine.vocabulary import Estimator, Floats

NOTHING = 1e-8
"""An advantage, or a spread of rewards, smaller than this teaches nothing."""

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Estimated:
    """Groups with their advantages."""

    groups: tuple[TrajectoryGroup, ...]
    metrics: Metrics
    warnings: tuple[str, ...] = ()


def group_episodes(episodes: Sequence[Episode]) -> tuple[tuple[TrajectoryGroup, ...], Metrics]:
    """Groups by task and role, in the order in which they first occur, and the `groups/*` metrics.

    A trajectory without a step (its model gave no answer) and one that is masked are in no group.
    """
    members: dict[str, list[tuple[Trajectory, int]]] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            if trajectory.steps and not trajectory.masked:
                group_id = f"{episode.task_id}:{trajectory.name}"
                members.setdefault(group_id, []).append((trajectory, episode.rollout_idx))
    groups = tuple(
        TrajectoryGroup(group_id, tuple(t for t, _ in found), tuple(rollout for _, rollout in found))
        for group_id, found in members.items()
    )
    sizes = [len(group.trajectories) for group in groups]
    return groups, {
        "groups/num_trajs_before_filter": float(sum(len(episode.trajectories) for episode in episodes)),
        "groups/num_trajs_after_filter": float(sum(sizes)),
        "groups/num_groups": float(len(groups)),
        "groups/avg_group_size": sum(sizes) / len(sizes) if sizes else 0.0,
        "groups/max_group_size": float(max(sizes, default=0)),
        "groups/min_group_size": float(min(sizes, default=0)),
    }


def estimate(groups: Sequence[TrajectoryGroup], estimators: Mapping[str, Estimator]) -> Estimated:
    """Set every step's advantage, each role by its own estimator.

    A role whose estimator is precomputed keeps what its steps carry: a number stands for all T tokens, a list
    has T numbers. A list of another length becomes zeros, with a warning and a counted metric. Groups of a
    role without an estimator are left as they are. Raises AdvantageError for what nothing can be learnt from:
    a reward or advantage that is missing, of a wrong type or not finite, an estimator's result of a wrong
    shape.
    """
    metrics: Metrics = {}
    warnings: list[str] = []
    done: dict[str, TrajectoryGroup] = {}
    for role in dict.fromkeys(group.role for group in groups):
        own = [group for group in groups if group.role == role]
        estimator = estimators.get(role)
        if estimator is None:
            continue
        if estimator.compute is None:
            made, values, wrong = _precomputed(own, warnings)
            if wrong:
                metrics[f"advantage/{role}/wrong_length"] = float(wrong)
        else:
            if any(
                step.advantage is not None for group in own for t in group.trajectories for step in t.steps
            ):
                warnings.append(
                    f"{role}: its steps carry advantages, but its estimator is {estimator.name}, which "
                    "replaces them; say `estimator: precomputed` to train on them"
                )
            rewards = [_rewards(group) for group in own]
            made, values = _estimated(role, estimator, own, rewards)
            metrics |= reward_metrics(role, np.concatenate(rewards)) | _difficulty(role, rewards)
        metrics |= _advantage_metrics(role, values)
        done |= {group.group_id: group for group in made}
    return Estimated(tuple(done.get(group.group_id, group) for group in groups), metrics, tuple(warnings))


def _rewards(group: TrajectoryGroup) -> Floats:
    """The members' rewards, [G]."""
    found: list[float] = []
    for member, trajectory in enumerate(group.trajectories):
        if trajectory.reward is None or not math.isfinite(trajectory.reward):
            what = "no reward" if trajectory.reward is None else f"the reward {trajectory.reward}"
            raise AdvantageError(f"{_where(group, member)} has {what}; expected a finite number")
        found.append(trajectory.reward)
    return np.array(found, dtype=np.float64)


def _estimated(
    role: str, estimator: Estimator, groups: Sequence[TrajectoryGroup], rewards: Sequence[Floats]
) -> tuple[list[TrajectoryGroup], Floats]:
    assert estimator.compute is not None
    name = f"the estimator {estimator.name} of {role}"
    try:
        found = [np.asarray(values, dtype=np.float64) for values in estimator.compute(rewards, groups)]
    except Exception as error:  # an estimator may be a package's own code
        raise AdvantageError(f"{name} raised {type(error).__name__}: {error}") from error
    if len(found) != len(groups):
        raise AdvantageError(f"{name} gave {len(found)} groups of advantages for {len(groups)} groups")
    for group, values, own in zip(groups, found, rewards, strict=True):
        if values.shape != own.shape:
            raise AdvantageError(
                f"{name} gave advantages of shape {list(values.shape)} for the task {group.task_id}, "
                f"expected {list(own.shape)}: one for each member of the group"
            )
        if not np.isfinite(values).all():
            member = int(np.flatnonzero(~np.isfinite(values))[0])
            raise AdvantageError(f"{name} gave {values[member]} for {_where(group, member)}")
    made = [
        replace(
            group,
            trajectories=tuple(
                replace(t, steps=tuple(replace(step, advantage=value) for step in t.steps))
                for t, value in zip(group.trajectories, cast("list[float]", values.tolist()), strict=True)
            ),
        )
        for group, values in zip(groups, found, strict=True)
    ]
    return made, np.concatenate(found)


def _precomputed(
    groups: Sequence[TrajectoryGroup], warnings: list[str]
) -> tuple[list[TrajectoryGroup], Floats, int]:
    """Groups whose steps each have T advantages, all of them in one array, and how many lists did not fit."""
    values: list[float] = []
    made: list[TrajectoryGroup] = []
    wrong = 0
    for group in groups:
        trajectories: list[Trajectory] = []
        for member, trajectory in enumerate(group.trajectories):
            steps: list[Step] = []
            for number, step in enumerate(trajectory.steps):
                tokens = per_token(step, f"{_where(group, member)}, step {number}")
                if len(tokens) != len(step.response_ids):
                    wrong += 1
                    warnings.append(
                        f"{_where(group, member)}, step {number}: {len(tokens)} advantages for "
                        f"{len(step.response_ids)} response tokens; zeros are used instead"
                    )
                    tokens = (0.0,) * len(step.response_ids)
                values += tokens
                steps.append(replace(step, advantage=tokens))
            trajectories.append(replace(trajectory, steps=tuple(steps)))
        made.append(replace(group, trajectories=tuple(trajectories)))
    return made, np.array(values), wrong


def per_token(step: Step, where: str) -> Sequence[float]:
    """A step's advantage, a number for each token; a list as it is. Raises AdvantageError, naming `where`."""
    given: object = step.advantage
    if isinstance(given, float):
        values: Sequence[object] = (given,) * len(step.response_ids)
    elif isinstance(given, list | tuple):
        values = cast("Sequence[object]", given)
    else:
        what = "no advantage" if given is None else f"an advantage of type {type(given).__name__}"
        raise AdvantageError(
            f"{where} has {what}; a precomputed advantage is a float, or a list of "
            f"{len(step.response_ids)} floats, one for each response token"
        )
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise AdvantageError(f"{where} has the advantage {value!r}; expected finite numbers")
    return cast("Sequence[float]", values)


def _where(group: TrajectoryGroup, member: int) -> str:
    rollout = f", rollout {group.rollouts[member]}" if group.rollouts else ""
    return f"{group.role} {group.trajectories[member].index}, task {group.task_id}{rollout}"


def reward_metrics(role: str, rewards: Floats) -> Metrics:
    """`reward/{role}/*` of all members' rewards."""
    return _spread(f"reward/{role}", rewards)


def _spread(prefix: str, values: Floats) -> Metrics:
    return {
        f"{prefix}/mean": float(np.mean(values)),
        f"{prefix}/std": float(np.std(values)),
        f"{prefix}/max": float(np.max(values)),
        f"{prefix}/min": float(np.min(values)),
    }


def _advantage_metrics(role: str, values: Floats) -> Metrics:
    if not values.size:
        return {}
    zero = float(np.mean(np.abs(values) < NOTHING))
    return _spread(f"advantage/{role}", values) | {f"advantage/{role}/fraction_zero": zero}


def _difficulty(role: str, rewards: Iterable[Floats]) -> Metrics:
    """`batch/{role}/*`: how many groups have rewards that differ, and why the others do not.

    Groups of one member are left out: they have no spread to speak of.
    """
    groups = [own for own in rewards if len(own) > 1]
    if not groups:
        return {}
    means, spreads = np.array([own.mean() for own in groups]), np.array([own.std() for own in groups])
    equal = spreads < NOTHING
    metrics: Metrics = {
        f"batch/{role}/total": float(len(groups)),
        f"batch/{role}/informative": float(np.sum(~equal)),
        f"batch/{role}/fractions/effective": float(np.mean(~equal)),
        f"batch/{role}/fractions/too_easy": float(np.mean(equal & (means >= 1.0))),
        f"batch/{role}/fractions/too_hard": float(np.mean(equal & (means <= 0.0))),
    }
    for percent in (10, 50, 90):
        metrics[f"batch/{role}/group_reward_mean/p{percent}"] = float(np.percentile(means, percent))
        metrics[f"batch/{role}/group_reward_std/p{percent}"] = float(np.percentile(spreads, percent))
    return metrics
