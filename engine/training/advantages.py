"""Groups of episodes' trajectories, their advantages, and the metrics of both.

Pure; knows no model and no loss. Input: episodes whose trajectories have rewards, or for a role with
precomputed advantages, advantages on their steps. Values and metric names are rLLM's
(`rllm/trainer/algorithms/`: `transform.py`, `advantage.py`).

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

MIN_MAGNITUDE = 1e-8
"""Magnitude below which an advantage, or a standard deviation of rewards, counts as 0; as in rLLM."""

Metrics = dict[str, float]
AdvantagesByUid = Mapping[str, Sequence[Advantage]]
"""Advantages of each step, by the uid of the group member: a trajectory or a turn."""
DetailsByUid = Mapping[str, Sequence[Mapping[str, Any]]]
"""Additions to each step's metadata, by the same uids."""
NO_ROLES: Mapping[str, RolePlan] = {}
Compute = Callable[[Sequence[Floats], Sequence[Any]], Sequence[Floats]]
"""`compute` or `baseline` of an estimator: (rewards_P_G, groups) to an array [G] for each group."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EstimatedGroups:
    """Advantages of groups, with metrics and warnings."""

    advantages: Sequence[Sequence[Sequence[Advantage]]]
    """For each group, member and step, in this order; no steps for a role without an estimator."""
    metrics: Metrics
    warnings: tuple[Note, ...] = ()
    baselines: Mapping[GroupKey, Sequence[float]] = field(default_factory=dict[GroupKey, Sequence[float]])
    """Amount subtracted from each member's reward, [G], for estimators that report it."""


def any_nonzero(advantages: Iterable[float]) -> bool:
    """Return True if an advantage differs from 0, so that there is a gradient."""
    return any(abs(value) >= MIN_MAGNITUDE for value in advantages)


def group_episodes(
    episodes: Sequence[Episode],
    roles: Mapping[str, RolePlan] = NO_ROLES,
    policy_of: PolicyOf = lambda role, index: MAIN,
) -> tuple[tuple[TrajectoryGroup, ...], Metrics]:
    """Group trajectories, or turns where a role compares turns, as `members` in `credit.py` says.

    Trajectories and turns without a step, and masked ones, are in no group.

    Args:
        episodes: the episodes of a step.
        roles: the trained roles; trajectories of another role are grouped by task and role.
        policy_of: function from (role, instance index) to the name of the policy.

    Returns:
        The groups, in the order in which they first occur, and the `groups/*` metrics of rLLM's
        `transform.py`, with `groups/too_small/{role}` counting groups below the estimator's minimum.
    """
    found: dict[GroupKey, list[tuple[Trajectory, int]]] = {}
    before = 0
    for episode in episodes:
        for trajectory in episode.trajectories:
            role = roles.get(trajectory.name)
            before += len(turns(trajectory)) if role is not None and role.compares_turns else 1
            policy = policy_of(trajectory.name, trajectory.index)
            for key, member in members(episode, trajectory, role, policy):
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
    # The compiler refuses a spec whose full groups are too small, so skips and failures shrank this one.
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
    precomputed: AdvantagesByUid | None = None,
) -> EstimatedGroups:
    """Compute every step's advantage, each role's by its own estimator.

    Args:
        groups: groups of any roles. Members of a group marked `too_small` get 0.
        estimators: estimator of each trained role; other roles get no advantages.
        precomputed: advantages for roles whose estimator is `precomputed`, by member uid; a member that is
            missing keeps those on its steps. A number counts for all T tokens of a step, a list has T
            numbers; a list of another length becomes zeros, with a warning and a count in
            `advantage/{role}/wrong_length`.

    Returns:
        Advantages in the order of `groups`, and the `reward/*`, `advantage/*` and `batch/*` metrics of
        rLLM's `advantage.py`.

    Raises:
        AdvantageError: for a reward or advantage that is missing, of a wrong type or not finite, and for an
            estimator that raises or returns another shape.
    """
    metrics: Metrics = {}
    warnings: list[Note] = []
    by_group: dict[GroupKey, list[Sequence[Advantage]]] = {}
    baselines: dict[GroupKey, Sequence[float]] = {}
    for role in dict.fromkeys(group.key.role for group in groups):
        own = [group for group in groups if group.key.role == role]
        estimator = estimators.get(role)
        if estimator is None:
            continue
        if estimator.compute is None:
            steps, values, wrong = _precomputed(own, precomputed or {}, warnings)
            if wrong:
                metrics[f"advantage/{role}/wrong_length"] = float(wrong)
        else:
            if any(step.advantage is not None for g in own for t in g.trajectories for step in t.steps):
                text = (
                    f"{role}: its steps carry advantages, but its estimator is {estimator.name}, which "
                    "replaces them; say `estimator: precomputed` to train on them"
                )
                warnings.append(Note(text, "warning", f"what the steps of {role} carry"))
            rewards_P_G = [_rewards(group) for group in own]
            advantages_P_G = _by_comparison(estimator.compute, "advantages", estimator, own, rewards_P_G)
            _check_finite(estimator, own, advantages_P_G)
            if estimator.baseline is not None:
                found = _by_comparison(estimator.baseline, "baselines", estimator, own, rewards_P_G)
                large = [(g.key, b) for g, b in zip(own, found, strict=True) if not g.too_small]
                baselines |= {key: baseline.tolist() for key, baseline in large}
            steps, values = _per_step(own, advantages_P_G), np.concatenate(advantages_P_G)
            metrics |= reward_metrics(role, np.concatenate(rewards_P_G)) | _difficulty(role, rewards_P_G)
        metrics |= _advantage_metrics(role, values)
        by_group |= zip((group.key for group in own), steps, strict=True)
    advantages = [by_group.get(group.key, [()] * len(group.trajectories)) for group in groups]
    return EstimatedGroups(advantages, metrics, tuple(warnings), baselines)


def _rewards(group: TrajectoryGroup) -> Floats:
    """Return the members' rewards, [G]."""
    rewards: list[float] = []
    for member, trajectory in enumerate(group.trajectories):
        if trajectory.reward is None or not math.isfinite(trajectory.reward):
            what = "no reward" if trajectory.reward is None else f"the reward {trajectory.reward}"
            raise AdvantageError(f"{_where(group, member)} has {what}; expected a finite number")
        rewards.append(trajectory.reward)
    return np.array(rewards, dtype=np.float64)


def _by_comparison(
    compute: Compute,
    figure: str,
    estimator: Estimator,
    groups: Sequence[TrajectoryGroup],
    rewards_P_G: Sequence[Floats],
) -> list[Floats]:
    """Call the estimator on the groups that are large enough, and give zeros to the others; arrays [G]."""
    computed = [np.zeros(len(rewards_G)) for rewards_G in rewards_P_G]
    large = [p for p, group in enumerate(groups) if not group.too_small]
    if large:
        compared = [groups[p] for p in large]
        name = f"the estimator {estimator.name} of {compared[0].key.role}"
        tasks = [group.key.task for group in compared]
        found = call_estimator(compute, figure, name, [rewards_P_G[p] for p in large], compared, tasks)
        for p, values in zip(large, found, strict=True):
            computed[p] = values
    return computed


def _check_finite(
    estimator: Estimator, groups: Sequence[TrajectoryGroup], advantages_P_G: Sequence[Floats]
) -> None:
    for group, advantages_G in zip(groups, advantages_P_G, strict=True):
        for member in np.flatnonzero(~np.isfinite(advantages_G)):
            raise AdvantageError(
                f"the estimator {estimator.name} of {group.key.role} gave {advantages_G[member]} for "
                f"{_where(group, int(member))}"
            )


def call_estimator(
    compute: Compute,
    figure: str,
    name: str,
    rewards_P_G: Sequence[Floats],
    groups: Sequence[Any],
    tasks: Sequence[str],
) -> list[Floats]:
    """Call an estimator's function, which may be a package's own code, and check the shape of its result.

    Args:
        compute: the function, `Estimator.compute` or `Estimator.baseline`.
        figure: plural noun for the result in messages, such as `advantages`.
        name: the estimator and its role, for messages.
        rewards_P_G: rewards of each group, arrays [G].
        groups: the P groups, ours or rLLM's, passed on to the function.
        tasks: task of each group, for messages.

    Returns:
        An array [G] for each group.

    Raises:
        AdvantageError: if the function raises, or its result has another shape.
    """
    try:
        computed = [np.asarray(values, dtype=np.float64) for values in compute(rewards_P_G, groups)]
    except FOREIGN_ERRORS as error:
        raise AdvantageError(f"{name} raised {describe_error(error)}") from error
    if len(computed) != len(groups):
        raise AdvantageError(f"{name} gave {len(computed)} groups of {figure} for {len(groups)} groups")
    for task, values, rewards_G in zip(tasks, computed, rewards_P_G, strict=True):
        if values.shape != rewards_G.shape:
            raise AdvantageError(
                f"{name} gave {figure} of shape {list(values.shape)} for the task {task}, "
                f"expected {list(rewards_G.shape)}: one for each member of the group"
            )
    return computed


def _per_step(
    groups: Sequence[TrajectoryGroup], advantages_P_G: Sequence[Floats]
) -> list[list[Sequence[Advantage]]]:
    """Give each member's advantage to all its steps."""
    return [
        [
            (value,) * len(trajectory.steps)
            for trajectory, value in zip(group.trajectories, advantages_G.tolist(), strict=True)
        ]
        for group, advantages_G in zip(groups, advantages_P_G, strict=True)
    ]


def _precomputed(
    groups: Sequence[TrajectoryGroup], precomputed: AdvantagesByUid, warnings: list[Note]
) -> tuple[list[list[Sequence[Advantage]]], Floats, int]:
    """Expand advantages that rewards have computed to one for each response token.

    Returns:
        Advantages [T] for each step of each group, all of them in one flat array, and the number of steps
        with a wrong length, whose advantages are zeros.
    """
    steps: list[list[Sequence[Advantage]]] = []
    values: list[float] = []
    wrong = 0
    for group in groups:
        steps.append([])
        for member, trajectory in enumerate(group.trajectories):
            given = precomputed.get(trajectory.uid) or [step.advantage for step in trajectory.steps]
            tokens: list[Advantage] = []
            for number, (step, advantage) in enumerate(zip(trajectory.steps, given, strict=True)):
                where, length = f"{_where(group, member)}, step {number}", len(step.response_ids)
                advantages_T = per_token(advantage, length, where)
                if len(advantages_T) != length:
                    wrong += 1
                    text = (
                        f"{where}: {len(advantages_T)} advantages for {length} response tokens; zeros are "
                        "used instead"
                    )
                    warnings.append(Note(text, "warning", f"how long the advantages of {group.key.role} are"))
                    advantages_T = (0.0,) * length
                values += advantages_T
                tokens.append(advantages_T)
            steps[-1].append(tokens)
    return steps, np.array(values), wrong


def per_token(advantage: object, length: int, where: str) -> Sequence[float]:
    """Return a step's advantages_T.

    Args:
        advantage: a float, which is repeated, or a list, which is returned as it is, whatever its length.
        length: T, the number of response tokens.
        where: the step, for messages.

    Raises:
        AdvantageError: for None, another type, and numbers that are not finite.
    """
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


def advantages_by_uid(groups: Sequence[TrajectoryGroup], estimated: EstimatedGroups) -> AdvantagesByUid:
    """Return the advantages of each member's steps, by the member's uid."""
    return {
        trajectory.uid: steps
        for group, own in zip(groups, estimated.advantages, strict=True)
        for trajectory, steps in zip(group.trajectories, own, strict=True)
        if steps
    }


def merge_details(one: DetailsByUid, other: DetailsByUid) -> DetailsByUid:
    """Merge two mappings of details step by step; where both have a key, `other` wins."""
    shared = {
        uid: [{**a, **b} for a, b in zip(one[uid], other[uid], strict=True)] for uid in one if uid in other
    }
    return {**one, **other, **shared}


def annotate(
    episodes: Sequence[Episode],
    advantages: AdvantagesByUid,
    details: DetailsByUid,
    version: Callable[[Trajectory], int | None] | None = None,
) -> list[Episode]:
    """Return copies of episodes with advantages and details on their steps.

    Args:
        episodes: the episodes.
        advantages: advantages by uid of a trajectory or turn; other steps keep their own.
        details: additions to the steps' metadata, by the same uids.
        version: function that returns how many updates a trajectory's policy has had; adds `staleness`, the
            number of updates since the step's weights, to the metadata, unless it returns None.
    """

    def step_of(step: Step, advantage: Advantage | None, detail: Mapping[str, Any], now: int | None) -> Step:
        metadata = {**step.metadata, **detail}
        if now is not None and step.weight_version is not None:
            metadata["staleness"] = now - step.weight_version
        return step._replace(advantage=advantage, metadata=metadata)

    def trajectory_of(trajectory: Trajectory) -> Trajectory:
        steps = trajectory.steps
        values = _for_steps(trajectory, advantages, [step.advantage for step in steps])
        notes = _for_steps(trajectory, details, [{} for _ in steps])
        now = [version(trajectory) if version else None] * len(steps)
        return trajectory._replace(steps=tuple(map(step_of, steps, values, notes, now)))

    return [
        episode._replace(trajectories=tuple(map(trajectory_of, episode.trajectories))) for episode in episodes
    ]


def _for_steps(
    trajectory: Trajectory, values: Mapping[str, Sequence[T]], default: Sequence[T]
) -> Sequence[T]:
    """Return a value for each step of a trajectory: by its own uid, else by the uids of its turns, else
    `default`."""
    if whole := values.get(trajectory.uid):
        return whole
    found: list[T] = []
    for steps in turns(trajectory):
        own = values.get(turn_uid(trajectory, steps[0].round))
        found += own or default[len(found) : len(found) + len(steps)]
    return found


def _where(group: TrajectoryGroup, member: int) -> str:
    """Describe a member for messages: node, task and rollout."""
    rollout = f", rollout {group.rollouts[member]}" if group.rollouts else ""
    trajectory = group.trajectories[member]
    number = trajectory.steps[0].round if group.of_turns else 1
    return f"{NodeId(group.key.role, trajectory.index, number)}, task {group.key.task}{rollout}"


def reward_metrics(role: str, rewards: Floats) -> Metrics:
    """Return `reward/{role}/{mean,std,max,min}` of all members' rewards."""
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
    zero = float(np.mean(np.abs(values) < MIN_MAGNITUDE))
    return _spread(f"advantage/{role}", values) | {f"advantage/{role}/fraction_zero": zero}


def _difficulty(role: str, rewards_P_G: Iterable[Floats]) -> Metrics:
    """Return `batch/{role}/*`: groups with different rewards, and of equal ones those too easy or too hard.

    Groups of one member are left out, as in rLLM's `advantage.py`: they have no spread.
    """
    groups = [rewards_G for rewards_G in rewards_P_G if len(rewards_G) > 1]
    if not groups:
        return {}
    means, spreads = np.array([group.mean() for group in groups]), np.array([group.std() for group in groups])
    equal = spreads < MIN_MAGNITUDE
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
