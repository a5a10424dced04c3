"""The credit of each turn, and the groups in which estimators compare. Pure.

In: trajectories, and a role's `credit` and `group`. Out: the members of groups, each with its group's key: a
trajectory as it is, or a turn as a trajectory of its own, whose reward is the turn's credit. A turn is the
Steps of one trajectory in one round; its own reward is that of the last Step. A turn's credit and group are
noted in the metadata of its Steps, from which the report reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records import MAIN, Episode, GroupKey, PolicyOf, Step, Trajectory, TrajectoryGroup
from rolegraph.engine.spec import Credit

Member = tuple[GroupKey, Trajectory]
LossWeights = Mapping[tuple[str, str], float]
"""By the names of a policy and a role."""
NO_BASELINES: Mapping[GroupKey, Sequence[float]] = {}
NO_WEIGHTS: LossWeights = {}


def turns(trajectory: Trajectory) -> list[tuple[Step, ...]]:
    """Return the Steps of each turn that has any, oldest first."""
    return [tuple(steps) for _, steps in groupby(trajectory.steps, key=lambda step: step.round)]


def own_rewards(trajectory: Trajectory) -> list[float]:
    """Return the own reward of each turn that is not masked."""
    return [steps[-1].reward for steps in turns(trajectory) if not _masked(steps)]


def is_compared(trajectory: Trajectory, role: RolePlan | None = None) -> bool:
    """Return whether a trajectory, or a turn of it, is in a group; `role` is None without a plan."""
    if role is not None and trajectory.index in role.frozen:
        return False
    if role is not None and role.compares_turns and role.spec.credit.kind != "trajectory":
        return any(not _masked(steps) for steps in turns(trajectory))
    return trajectory.by_model and not trajectory.masked


def members(
    episode: Episode, trajectory: Trajectory, role: RolePlan | None = None, policy: str = MAIN
) -> list[Member]:
    """Return a trajectory, or each of its turns, with the group in which it is compared.

    `role` is None where episodes are read without their plan; the whole trajectory is compared then.
    """
    key = GroupKey(episode.task_id, trajectory.name, policy)
    if role is None or not role.compares_turns:
        return [(key, trajectory)] if is_compared(trajectory, role) else []
    if trajectory.index in role.frozen:
        return []
    found: list[Member] = []
    for turn in credited_turns(trajectory, role.spec.credit):
        number = turn.steps[0].round if role.spec.group == "turn" else 0
        prompt = _digest(turn.steps[0]) if role.spec.group == "prompt" else ""
        found.append((key._replace(round=number, prompt=prompt), turn))
    return found


def credited_turns(trajectory: Trajectory, credit: Credit) -> list[Trajectory]:
    """Return the turns that are not masked, each as a trajectory whose reward is its credit."""
    ran = [steps for steps in turns(trajectory) if not _masked(steps)]
    if credit.kind != "trajectory":
        rewards = credited([steps[-1].reward for steps in ran], credit)
    elif trajectory.reward is None or trajectory.masked:
        return []
    else:
        rewards = [trajectory.reward] * len(ran)
    return [_as_trajectory(trajectory, *turn) for turn in zip(ran, rewards, strict=True)]


def credited(rewards: Sequence[float], credit: Credit) -> list[float]:
    """Compute each turn's credit from all turns' rewards, oldest first: a discounted return or a margin."""
    if credit.kind == "margin":
        before = accumulate(rewards, initial=0.0)
        return [reward - total / max(1, n) for n, (reward, total) in enumerate(zip(rewards, before))]  # noqa: B905
    discount = credit.discount or 0.0
    found: list[float] = []
    for reward in reversed(rewards):
        found.append(reward + (discount * found[-1] if found else 0.0))
    return found[::-1]


def turn_uid(trajectory: Trajectory, number: int) -> str:
    """Return the uid of a turn as a trajectory of its own."""
    return f"{trajectory.uid}@{number}"


def notes(
    groups: Sequence[TrajectoryGroup],
    baselines: Mapping[GroupKey, Sequence[float]] = NO_BASELINES,
    weights: LossWeights = NO_WEIGHTS,
) -> dict[str, list[Mapping[str, Any]]]:
    """Return metadata for recorded steps: their group, credit, baseline and weight in the loss.

    Args:
        groups: Groups of one training step.
        baselines: By group, the baseline that the estimator subtracted, one for each of G members.
        weights: By policy and role, the factor of the advantages in the loss.

    Returns:
        By the uid of a trajectory or turn, a mapping for each of its steps, which `on_record` reads.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for group in groups:
        key, small = group.key, {"too_small": True} if group.too_small else {}
        taken, weight = baselines.get(key), weights.get((key.policy, key.role))
        for place, member in enumerate(group.trajectories):
            note = {
                **({"credit": member.reward} if group.of_turns else {}),
                **({"group": apart} if (apart := key.apart) else {}),
                **small,
                **({} if taken is None else {"baseline": taken[place]}),
                **({} if weight is None else {"loss_weight": weight}),
            }
            if note:
                found[member.uid] = [note] * len(member.steps)
    return found


def loss_weights(
    episodes: Sequence[Episode], roles: Mapping[str, RolePlan], policy_of: PolicyOf
) -> dict[tuple[str, str], float]:
    """Return the weight of a role's advantages in a policy's loss, by the names of policy and role.

    Losses are sums over tokens; dividing each by the weights of all trajectories that the policy was compared
    in, those that teach nothing included, makes its loss a weighted mean that does not depend on the batch's
    size.
    """
    whole: dict[str, float] = {}
    found: dict[tuple[str, str], float] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            role = roles.get(trajectory.name)
            if role is not None and is_compared(trajectory, role):
                policy = policy_of(trajectory.name, trajectory.index)
                whole[policy] = whole.get(policy, 0.0) + role.spec.weight
                found[policy, role.name] = role.spec.weight
    return {(policy, name): weight / (whole[policy] or 1.0) for (policy, name), weight in found.items()}


def on_record(episode: Episode) -> Iterator[Member]:
    """Yield the trajectories or turns of a recorded episode, each with the group noted in its metadata."""
    for trajectory in episode.trajectories:
        if not any("credit" in step.metadata for step in trajectory.steps):
            if is_compared(trajectory):
                yield _recorded(episode, trajectory), trajectory
            continue
        for steps in turns(trajectory):
            if (reward := steps[-1].metadata.get("credit")) is not None:
                turn = _as_trajectory(trajectory, steps, reward)
                yield _recorded(episode, turn), turn


def _recorded(episode: Episode, member: Trajectory) -> GroupKey:
    apart: Mapping[str, Any] = member.steps[0].metadata.get("group", {})
    return GroupKey(episode.task_id, member.name)._replace(**apart)


def _masked(steps: Sequence[Step]) -> bool:
    return any(step.masked for step in steps)


def _as_trajectory(trajectory: Trajectory, steps: Sequence[Step], reward: float) -> Trajectory:
    """Return a turn as a trajectory; only the last turn keeps the trajectory's failure and correctness."""
    uid = turn_uid(trajectory, steps[0].round)
    if steps[-1] is trajectory.steps[-1]:
        return trajectory._replace(steps=steps, reward=reward, uid=uid, masked=False)
    return Trajectory(trajectory.name, trajectory.index, steps, reward, uid=uid)


def _digest(step: Step) -> str:
    """Return a digest of the messages that were sent, without the answer, which is the last."""
    sent = json.dumps([dict(message) for message in step.chat_completions[:-1]], sort_keys=True)
    return hashlib.blake2b(sent.encode(), digest_size=8).hexdigest()
