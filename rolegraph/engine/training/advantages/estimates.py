"""Advantages of groups, by each role's estimator.

Pure; knows no model and no loss. Input: groups whose members have rewards, or for a role without an
estimator, advantages that its signal set. Values and metric names are rLLM's
(`rllm/trainer/algorithms/advantage.py`).

Axes: P groups of one role, G members of a group (ragged), T response tokens of a step (ragged).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.errors import FOREIGN_ERRORS, AdvantageError, describe_error
from rolegraph.engine.limits.specs import ESTIMATOR_KEYS, SPEC_NAME
from rolegraph.engine.records import Note, Task
from rolegraph.engine.records.credit import Group
from rolegraph.engine.records.plain import LARGEST
from rolegraph.engine.training.advantages.group_metrics import (
    Metrics,
    advantage_metrics,
    difficulty_metrics,
    reward_metrics,
    state_metrics,
)
from rolegraph.engine.training.advantages.per_token import AdvantagesByUid, expand
from rolegraph.engine.vocabulary import Estimator, Floats
from rolegraph.engine.vocabulary.foreign import finite_number
from rolegraph.engine.vocabulary.items import State

States = Mapping[str, Mapping[str, State]]
"""State of each stateful estimator, by role, then by `Group.part`, the position of the grouping."""
NO_STATES: States = {}
Compute = Callable[[Sequence[Floats], Sequence[Any]], Sequence[Floats]]
"""`compute` or `baseline` of an estimator: (rewards_P_G, groups) to an array [G] for each group."""


class GroupEstimate(NamedTuple):
    """Advantages of the members of a group; all empty for a role that is not trained."""

    advantages: Sequence[float] = ()
    """Advantage of each member, [G]; empty for a role without an estimator."""
    baselines: Sequence[float] = ()
    """Amount subtracted from each member's reward, [G]; empty where the estimator reports no baseline."""
    token_advantages: Sequence[Sequence[Sequence[float]]] = ()
    """Advantages [T] of each member's Steps, for a role without an estimator; else empty."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Advantages of the members of P groups, with metrics and warnings."""

    groups: Sequence[GroupEstimate] = ()
    metrics: Metrics = field(default_factory=Metrics)
    warnings: Sequence[Note] = ()
    states: States = field(default_factory=dict[str, Mapping[str, State]])
    """States of the stateful estimators after these groups."""


def estimate(
    groups: Sequence[Group],
    estimators: Mapping[str, Estimator | None],
    signals: AdvantagesByUid | None = None,
    states: States = NO_STATES,
) -> Estimates:
    """Compute every member's advantage in each group, each role's by its own estimator.

    Args:
        groups: Groups of any roles. Members of a group marked `too_small` get 0.
        estimators: Estimator of each trained role, None where a signal stands alone; other roles get no
            advantages.
        signals: Advantages for roles without an estimator, by the trajectory's uid; a trajectory without an
            entry keeps the advantages on its steps. A number counts for all T tokens of a step, a list has T
            numbers; a list of another length becomes zeros, with a warning and a count in
            `advantage/{role}/wrong_length`.
        states: States of the stateful estimators after the previous step.

    Returns:
        Advantages in the order of `groups`, and the `reward/*`, `advantage/*` and `batch/*` metrics of
        rLLM's `advantage.py`.

    Raises:
        AdvantageError: For a reward or advantage that is missing, of a wrong type or not finite, and for an
            estimator that raises or returns another shape.
    """
    group_estimates = [GroupEstimate()] * len(groups)
    metrics, warnings, next_states = Metrics(), list[Note](), dict(states)
    for role in dict.fromkeys(group.role for group in groups):
        if role not in estimators:
            continue
        indices = [index for index, group in enumerate(groups) if group.role == role]
        role_groups = [groups[index] for index in indices]
        if (estimator := estimators[role]) is None:
            role_estimates = _expand_role(role, role_groups, signals or {})
        else:
            role_estimates = _compare_role(role, estimator, role_groups, states.get(role, {}))
        for index, group_estimate in zip(indices, role_estimates.groups, strict=True):
            group_estimates[index] = group_estimate
        metrics |= role_estimates.metrics
        warnings += role_estimates.warnings
        next_states |= role_estimates.states
    return Estimates(group_estimates, metrics, warnings, next_states)


def _expand_role(role: str, groups: Sequence[Group], signals: AdvantagesByUid) -> Estimates:
    """Return the Estimates of a role without an estimator, with its signal's advantages of each response
    token."""
    steps, warnings = expand(groups, signals)
    values = np.array([value for group in steps for member in group for step in member for value in step])
    metrics: Metrics = {f"advantage/{role}/wrong_length": float(len(warnings))} if warnings else {}
    estimates = [GroupEstimate(token_advantages=group) for group in steps]
    return Estimates(estimates, metrics | advantage_metrics(role, values), warnings)


def _compare_role(
    role: str, estimator: Estimator, groups: Sequence[Group], states: Mapping[str, State]
) -> Estimates:
    """Return the Estimates of a role with an estimator, which is called once for each entry of the role's
    `group`."""
    warnings: list[Note] = []
    if any(step.advantage is not None for group in groups for m in group.members for step in m.steps):
        text = (
            f"{role}: its steps carry advantages, but its estimator is {estimator.name}, which "
            "replaces them; remove the estimator to train on them"
        )
        warnings.append(Note(text, "warning", f"own-advantages/{role}"))
    rewards_P_G = [_rewards(group) for group in groups]
    advantages_P_G = [np.zeros(len(rewards_G)) for rewards_G in rewards_P_G]
    baselines_P_G = [np.zeros(0)] * len(groups)
    after = {**states}
    for part in dict.fromkeys(group.part for group in groups):
        indices = [n for n, group in enumerate(groups) if group.part == part and not group.too_small]
        if not indices:
            continue
        compared_groups, rewards = [groups[n] for n in indices], [rewards_P_G[n] for n in indices]
        advantages, baselines, state = _compare(
            role, estimator, compared_groups, rewards, after.get(part, {})
        )
        if estimator.running is not None:
            after[part] = state
        for n, values_G, baselines_G in zip(indices, advantages, baselines, strict=True):
            advantages_P_G[n], baselines_P_G[n] = values_G, baselines_G
    rewards = np.concatenate([r[[*group.places]] for group, r in zip(groups, rewards_P_G, strict=True)])
    metrics = reward_metrics(role, rewards) | difficulty_metrics(role, rewards_P_G)
    metrics |= state_metrics(role, after) | advantage_metrics(role, _weighted_sums(groups, advantages_P_G))
    pairs = zip(advantages_P_G, baselines_P_G, strict=True)
    estimates = [GroupEstimate(values_G.tolist(), baselines_G.tolist()) for values_G, baselines_G in pairs]
    return Estimates(estimates, metrics, warnings, {role: after} if after else {})


def _compare(
    role: str,
    estimator: Estimator,
    groups: Sequence[Group],
    rewards_P_G: Sequence[Floats],
    state: State,
) -> tuple[list[Floats], list[Floats], State]:
    """Return advantages [G] and baselines [G] of groups whose rewards go to one estimator call, and the
    estimator's next state.

    Baselines are empty, [0], where the estimator reports none.
    """

    def running(rewards_P_G: Sequence[Floats], groups: Sequence[Any]) -> Sequence[Floats]:
        nonlocal state
        assert estimator.running is not None
        baselines_P_G, next_state = estimator.running(state, rewards_P_G, groups)
        if len(next_state) > ESTIMATOR_KEYS.most:
            raise AdvantageError(ESTIMATOR_KEYS.exceeded(f"the estimator of {role} has"))
        state = {str(key): finite_number(value, "it gave the state") for key, value in next_state.items()}
        return baselines_P_G

    def called(compute: Compute, noun: str) -> list[Floats]:
        name = f"the estimator {estimator.name} of {role}"
        labels = [f"the group of {group.members[0]}" for group in groups]
        return call_estimator(compute, noun, name, rewards_P_G, groups, labels)

    if estimator.running is not None:
        baselines_P_G = called(running, "baselines")
        advantages_P_G = [r - b for r, b in zip(rewards_P_G, baselines_P_G, strict=True)]
    else:
        advantages_P_G = called(estimator.compute, "advantages")
        baselines_P_G = [np.zeros(0)] * len(groups)
        if estimator.baseline is not None:
            baselines_P_G = called(estimator.baseline, "baselines")
    for group, advantages_G in zip(groups, advantages_P_G, strict=True):
        for member in np.flatnonzero(~(np.abs(advantages_G) <= LARGEST)):
            raise AdvantageError(
                f"the estimator {estimator.name} of {role} gave {advantages_G[member]} for "
                f"{group.members[int(member)]}"
            )
    return advantages_P_G, baselines_P_G, state


def check_state_keys(roles: Iterable[RolePlan], tasks: Iterable[Task]) -> None:
    """Raise AdvantageError if a role's estimator would keep too many states, or a state with too long a
    key."""
    for role in roles:
        if role.state_key is None:
            continue
        keys = {role.state_key.of(task) for task in tasks}
        prefix = f"roles.{role.name}.estimator: `by` gives the training tasks"
        if len(keys) > ESTIMATOR_KEYS.most:
            raise AdvantageError(ESTIMATOR_KEYS.exceeded(prefix))
        if max(map(len, keys), default=0) > SPEC_NAME.most:
            raise AdvantageError(SPEC_NAME.exceeded(f"{prefix} a key of"))


def _weighted_sums(groups: Sequence[Group], advantages_P_G: Sequence[Floats]) -> Floats:
    """Return the advantage of each trajectory or turn, for metrics: its weighted sum over the groups that
    contain it."""
    if not any(group.in_list for group in groups):
        return np.concatenate([v[[*group.places]] for group, v in zip(groups, advantages_P_G, strict=True)])
    sums: dict[tuple[int, int], float] = {}
    for group, values in zip(groups, advantages_P_G, strict=True):
        for index in group.places:
            member = group.members[index]
            for round in {step.round for step in member.steps} if not member.round else (member.round,):
                turn = member.number, round
                sums[turn] = sums.get(turn, 0.0) + group.weight * float(values[index])
    return np.array([*sums.values()])


def _rewards(group: Group) -> Floats:
    """Return the members' rewards, [G]."""
    for member in group.members:
        if member.reward is None or not math.isfinite(member.reward):
            problem = "no reward" if member.reward is None else f"the reward {member.reward}"
            raise AdvantageError(f"{member} has {problem}; expected a finite number")
    return np.array([member.reward for member in group.members], dtype=np.float64)


def call_estimator(
    compute: Compute,
    noun: str,
    name: str,
    rewards_P_G: Sequence[Floats],
    groups: Sequence[Any],
    labels: Sequence[str],
) -> list[Floats]:
    """Call an estimator's function, which may be a package's own code, and check the shape of its result.

    Args:
        compute: The function, `Estimator.compute` or `Estimator.baseline`.
        noun: Plural noun for the result in messages, such as `advantages`.
        name: The estimator and its role, for messages.
        rewards_P_G: Rewards of each group, arrays [G].
        groups: The P groups, ours or rLLM's, passed on to the function.
        labels: Noun for each group, for messages, such as `the task t1`.

    Returns:
        An array [G] for each group.

    Raises:
        AdvantageError: If the function raises, or its result has another shape.
    """
    try:
        arrays = [np.asarray(values, dtype=np.float64) for values in compute(rewards_P_G, groups)]
    except FOREIGN_ERRORS as error:
        raise AdvantageError(f"{name} raised {describe_error(error, with_place=True)}") from error
    if len(arrays) != len(groups):
        raise AdvantageError(f"{name} gave {len(arrays)} groups of {noun} for {len(groups)} groups")
    for label, values, rewards_G in zip(labels, arrays, rewards_P_G, strict=True):
        if values.shape != rewards_G.shape:
            raise AdvantageError(
                f"{name} gave {noun} of shape {list(values.shape)} for {label}, "
                f"expected {list(rewards_G.shape)}: one for each member of the group"
            )
    return arrays
