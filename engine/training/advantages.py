"""Episodes to groups, groups to advantages, and the metrics of both; names and values are rLLM's.

In: episodes whose trajectories carry rewards (or, for a precomputed role, advantages on their steps). Out:
groups, an advantage for each step, metrics, and warnings. Pure; knows no model and no loss.

Axes: P groups of one role, G members of a group (ragged), T response tokens of a step (ragged).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.errors import AdvantageError
from rolegraph.engine.records import (
    MAIN,
    Advantage,
    Episode,
    GroupKey,
    NodeId,
    Note,
    PolicyOf,
    Step,
    Trajectory,
    TrajectoryGroup,
)
from rolegraph.engine.training.credit import members, turn_uid, turns
from rolegraph.engine.vocabulary import Estimator, Floats
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error

NOTHING = 1e-8
"""An advantage, or a spread of rewards, smaller than this teaches nothing."""

Metrics = dict[str, float]
StepAdvantages = Mapping[str, Sequence[Advantage]]
"""By the uid of what was compared, a trajectory or a turn, for each of its steps."""
StepDetails = Mapping[str, Sequence[Mapping[str, Any]]]
"""By the same uids, for each step what belongs into its metadata."""
NO_ROLES: Mapping[str, RolePlan] = {}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EstimatedGroups:
    """What estimators made of groups."""

    advantages: Sequence[Sequence[Sequence[Advantage]]]
    """For each group, for each of its members, for each step; no step for a role without an estimator."""
    metrics: Metrics
    warnings: tuple[Note, ...] = ()
    baselines: Mapping[GroupKey, Sequence[float]] = field(default_factory=dict[GroupKey, Sequence[float]])
    """What was taken from each member's reward, where the estimator says so."""


def teaches(advantages: Iterable[float]) -> bool:
    """Whether there is anything to learn: an advantage that is not 0."""
    return any(abs(value) >= NOTHING for value in advantages)


def group_episodes(
    episodes: Sequence[Episode],
    roles: Mapping[str, RolePlan] = NO_ROLES,
    policy_of: PolicyOf = lambda role, index: MAIN,
) -> tuple[tuple[TrajectoryGroup, ...], Metrics]:
    """Groups in the order in which they first occur, and the `groups/*` metrics.

    `roles` are those that learn: what of them is compared with what, and how many their estimators need; a
    role that is not in it is compared by its trajectories on a task, however few. A trajectory or turn
    without a step (its model gave no answer) and one that is masked are in no group.
    """
    found: dict[GroupKey, list[tuple[Trajectory, int]]] = {}
    before = 0
    for episode in episodes:
        for trajectory in episode.trajectories:
            role = roles.get(trajectory.name)
            before += len(turns(trajectory)) if role is not None and role.compares_turns else 1
            for key, member in members(
                episode, trajectory, role, policy_of(trajectory.name, trajectory.index)
            ):
                found.setdefault(key, []).append((member, episode.rollout))
    groups = tuple(_group(key, pairs, roles.get(key.role)) for key, pairs in found.items())
    sizes = [len(group.trajectories) for group in groups]
    small = Counter(f"groups/too_small/{group.key.role}" for group in groups if group.too_small)
    return groups, {
        "groups/num_trajs_before_filter": float(before),
        "groups/num_trajs_after_filter": float(sum(sizes)),
        "groups/num_groups": float(len(groups)),
        "groups/avg_group_size": sum(sizes) / len(sizes) if sizes else 0.0,
        "groups/max_group_size": float(max(sizes, default=0)),
        "groups/min_group_size": float(min(sizes, default=0)),
        **{name: float(count) for name, count in small.items()},
    }


def _group(key: GroupKey, pairs: Sequence[tuple[Trajectory, int]], role: RolePlan | None) -> TrajectoryGroup:
    # A spec whose groups are too small to begin with is refused, so skips and failures left it so.
    least = role.estimator.min_group if role is not None and role.estimator is not None else 0
    return TrajectoryGroup(
        key,
        tuple(member for member, _ in pairs),
        tuple(rollout for _, rollout in pairs),
        of_turns=role is not None and role.compares_turns,
        too_small=len(pairs) < least,
    )


def estimate(
    groups: Sequence[TrajectoryGroup],
    estimators: Mapping[str, Estimator],
    precomputed: StepAdvantages | None = None,
) -> EstimatedGroups:
    """Every step's advantage, each role's by its own estimator.

    A role whose estimator is precomputed keeps what is in `precomputed`, or what its steps carry: a number
    stands for all T tokens, a list has T numbers. A list of another length becomes zeros, with a warning and
    a counted metric. Roles without an estimator get none. Raises AdvantageError for what nothing can be
    learnt from: a reward or advantage that is missing, of a wrong type or not finite, an estimator's result
    of a wrong shape. A group that is too small gets 0, and the estimator never sees it.
    """
    metrics: Metrics = {}
    warnings: list[Note] = []
    by_group: dict[GroupKey, list[Sequence[Advantage]]] = {}
    baselines: dict[GroupKey, Sequence[float]] = {}
    for role in dict.fromkeys(group.key.role for group in groups):
        members = [group for group in groups if group.key.role == role]
        estimator = estimators.get(role)
        if estimator is None:
            continue
        if estimator.compute is None:
            steps, values, wrong = _precomputed(members, precomputed or {}, warnings)
            if wrong:
                metrics[f"advantage/{role}/wrong_length"] = float(wrong)
        else:
            if any(
                step.advantage is not None
                for group in members
                for t in group.trajectories
                for step in t.steps
            ):
                text = (
                    f"{role}: its steps carry advantages, but its estimator is {estimator.name}, which "
                    "replaces them; say `estimator: precomputed` to train on them"
                )
                warnings.append(Note(text, "warning", f"what the steps of {role} carry"))
            rewards = [_rewards(group) for group in members]
            steps, values = _estimated(role, estimator, members, rewards)
            baselines |= _baselines(role, estimator, members, rewards)
            metrics |= reward_metrics(role, np.concatenate(rewards)) | _difficulty(role, rewards)
        metrics |= _advantage_metrics(role, values)
        by_group |= zip((group.key for group in members), steps, strict=True)
    advantages = [by_group.get(group.key, [()] * len(group.trajectories)) for group in groups]
    return EstimatedGroups(advantages, metrics, tuple(warnings), baselines)


def _rewards(group: TrajectoryGroup) -> Floats:
    """The members' rewards, [G]."""
    rewards: list[float] = []
    for member, trajectory in enumerate(group.trajectories):
        if trajectory.reward is None or not math.isfinite(trajectory.reward):
            what = "no reward" if trajectory.reward is None else f"the reward {trajectory.reward}"
            raise AdvantageError(f"{_where(group, member)} has {what}; expected a finite number")
        rewards.append(trajectory.reward)
    return np.array(rewards, dtype=np.float64)


def _estimated(
    role: str, estimator: Estimator, groups: Sequence[TrajectoryGroup], rewards: Sequence[Floats]
) -> tuple[list[list[Sequence[Advantage]]], Floats]:
    whole = [place for place, group in enumerate(groups) if not group.too_small]
    computed = [np.zeros(len(values)) for values in rewards]
    if whole:
        compared = [groups[place] for place in whole]
        tasks = [group.key.task for group in compared]
        found = advantages_of(estimator, role, [rewards[place] for place in whole], compared, tasks)
        for place, values in zip(whole, found, strict=True):
            computed[place] = values
    steps: list[list[Sequence[Advantage]]] = []
    for group, values in zip(groups, computed, strict=True):
        if not np.isfinite(values).all():
            member = int(np.flatnonzero(~np.isfinite(values))[0])
            where = _where(group, member)
            raise AdvantageError(
                f"the estimator {estimator.name} of {role} gave {values[member]} for {where}"
            )
        members = zip(group.trajectories, values.tolist(), strict=True)
        steps.append([(value,) * len(trajectory.steps) for trajectory, value in members])
    return steps, np.concatenate(computed)


def _baselines(
    role: str, estimator: Estimator, groups: Sequence[TrajectoryGroup], rewards: Sequence[Floats]
) -> dict[GroupKey, Sequence[float]]:
    whole = [place for place, group in enumerate(groups) if not group.too_small]
    if estimator.baseline is None or not whole:
        return {}
    compared = [groups[place] for place in whole]
    tasks = [group.key.task for group in compared]
    found = _asked(
        estimator.baseline, "baselines", estimator, role, [rewards[place] for place in whole], compared, tasks
    )
    return {group.key: values.tolist() for group, values in zip(compared, found, strict=True)}


def advantages_of(
    estimator: Estimator, role: str, rewards: Sequence[Floats], groups: Sequence[Any], tasks: Sequence[str]
) -> list[Floats]:
    """What an estimator makes of a role's rewards, [G] for each group; `tasks` name the groups.

    Raises AdvantageError for what it raises, and for a result of another shape.
    """
    assert estimator.compute is not None
    return _asked(estimator.compute, "advantages", estimator, role, rewards, groups, tasks)


def _asked(
    compute: Callable[[Sequence[Floats], Sequence[Any]], Sequence[Floats]],
    what: str,
    estimator: Estimator,
    role: str,
    rewards: Sequence[Floats],
    groups: Sequence[Any],
    tasks: Sequence[str],
) -> list[Floats]:
    name = f"the estimator {estimator.name} of {role}"
    try:
        computed = [np.asarray(values, dtype=np.float64) for values in compute(rewards, groups)]
    except FOREIGN_ERRORS as error:  # an estimator may be a package's own code
        raise AdvantageError(f"{name} raised {describe_error(error)}") from error
    if len(computed) != len(groups):
        raise AdvantageError(f"{name} gave {len(computed)} groups of {what} for {len(groups)} groups")
    for task, values, given in zip(tasks, computed, rewards, strict=True):
        if values.shape != given.shape:
            raise AdvantageError(
                f"{name} gave {what} of shape {list(values.shape)} for the task {task}, "
                f"expected {list(given.shape)}: one for each member of the group"
            )
    return computed


def _precomputed(
    groups: Sequence[TrajectoryGroup], precomputed: StepAdvantages, warnings: list[Note]
) -> tuple[list[list[Sequence[Advantage]]], Floats, int]:
    """T advantages for each step, all of them in one array, and how many lists did not fit."""
    steps: list[list[Sequence[Advantage]]] = []
    values: list[float] = []
    wrong = 0
    for group in groups:
        steps.append([])
        for member, trajectory in enumerate(group.trajectories):
            given = precomputed.get(trajectory.uid) or [step.advantage for step in trajectory.steps]
            tokens: list[Advantage] = []
            for number, (step, advantage) in enumerate(zip(trajectory.steps, given, strict=True)):
                where = f"{_where(group, member)}, step {number}"
                per_step, length = per_token(advantage, len(step.response_ids), where), len(step.response_ids)
                if len(per_step) != length:
                    wrong += 1
                    text = (
                        f"{where}: {len(per_step)} advantages for {length} response tokens; zeros are used "
                        "instead"
                    )
                    warnings.append(Note(text, "warning", f"how long the advantages of {group.key.role} are"))
                    per_step = (0.0,) * length
                values += per_step
                tokens.append(per_step)
            steps[-1].append(tokens)
    return steps, np.array(values), wrong


def per_token(advantage: object, length: int, where: str) -> Sequence[float]:
    """A number for each of `length` tokens; a list as it is. Raises AdvantageError, naming `where`."""
    if isinstance(advantage, float):
        values: Sequence[object] = (advantage,) * length
    elif isinstance(advantage, list | tuple):
        values = cast("Sequence[object]", advantage)
    else:
        what = "no advantage" if advantage is None else f"an advantage of type {type(advantage).__name__}"
        raise AdvantageError(
            f"{where} has {what}; a precomputed advantage is a float, or a list of "
            f"{length} floats, one for each response token"
        )
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise AdvantageError(f"{where} has the advantage {value!r}; expected finite numbers")
    return cast("Sequence[float]", values)


def by_uid(groups: Sequence[TrajectoryGroup], estimated: EstimatedGroups) -> StepAdvantages:
    """The advantages of groups, by their members' uids."""
    return {
        trajectory.uid: steps
        for group, members in zip(groups, estimated.advantages, strict=True)
        for trajectory, steps in zip(group.trajectories, members, strict=True)
        if steps
    }


def both(one: StepDetails, other: StepDetails) -> StepDetails:
    """The details of both, step by step."""
    shared = {
        uid: [{**a, **b} for a, b in zip(one[uid], other[uid], strict=True)] for uid in one if uid in other
    }
    return {**one, **other, **shared}


def annotated(
    episodes: Sequence[Episode],
    advantages: StepAdvantages,
    details: StepDetails,
    version: Callable[[Trajectory], int] | None = None,
) -> list[Episode]:
    """The episodes with what was learnt of each step: its advantage, details for its metadata (by uid, as
    advantages are) and, where the `version` of a trajectory's policy is given, by how many updates its
    weights are behind that one."""

    def step_of(step: Step, advantage: Advantage | None, detail: Mapping[str, Any], now: int | None) -> Step:
        metadata = {**step.metadata, **detail}
        if now is not None and step.weight_version is not None:
            metadata["staleness"] = now - step.weight_version
        return step._replace(advantage=advantage, metadata=metadata)

    def trajectory_of(trajectory: Trajectory) -> Trajectory:
        steps = trajectory.steps
        values = _by_step(trajectory, advantages, [step.advantage for step in steps])
        notes = _by_step(trajectory, details, [{} for _ in steps])
        now = [version(trajectory) if version else None] * len(steps)
        return trajectory._replace(steps=tuple(map(step_of, steps, values, notes, now)))

    return [
        episode._replace(trajectories=tuple(map(trajectory_of, episode.trajectories))) for episode in episodes
    ]


def _by_step(trajectory: Trajectory, values: Mapping[str, Sequence[T]], default: Sequence[T]) -> Sequence[T]:
    """What is known of each step of a trajectory by its uid, or by those of its turns."""
    if whole := values.get(trajectory.uid):
        return whole
    found: list[T] = []
    for steps in turns(trajectory):
        own = values.get(turn_uid(trajectory, steps[0].round))
        found += own or default[len(found) : len(found) + len(steps)]
    return found


def _where(group: TrajectoryGroup, member: int) -> str:
    rollout = f", rollout {group.rollouts[member]}" if group.rollouts else ""
    trajectory = group.trajectories[member]
    number = trajectory.steps[0].round if group.of_turns else 1
    return f"{NodeId(group.key.role, trajectory.index, number)}, task {group.key.task}{rollout}"


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
    groups = [group for group in rewards if len(group) > 1]
    if not groups:
        return {}
    means, spreads = np.array([group.mean() for group in groups]), np.array([group.std() for group in groups])
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
