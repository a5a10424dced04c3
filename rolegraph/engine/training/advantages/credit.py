"""The credit of each turn, and the groups in which estimators compare. Pure.

In: trajectories, and a role's `credit` and `group`. Out: the members of groups, each with its group's key: a
trajectory as it is, or a turn as a trajectory of its own, whose reward is the turn's credit. A turn is the
Steps of one trajectory in one round; its own reward is that of the last Step. A turn's credit and group are
noted in the metadata of its Steps, from which the report reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple, cast

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.role_plan import GroupingPlan
from rolegraph.engine.records import (
    MAIN,
    Advantage,
    ComparisonMetadata,
    Episode,
    Failure,
    FailureName,
    GroupKey,
    GroupKeyMetadata,
    NodeId,
    PartMetadata,
    PolicyOf,
    Step,
    StepMetadata,
    Trajectory,
    TrajectoryGroup,
)
from rolegraph.engine.records.metadata import FailureMetadata
from rolegraph.engine.spec import Credit

Failures = Mapping[NodeId, FailureMetadata]
"""Failures of an episode's turns, as `Episode.failures`."""
WHOLE = (GroupingPlan(),)
"""Groupings of a role without a plan: its trajectories on one task."""


class RecordedMember(NamedTuple):
    """Member of a group as a recorded episode describes it, with its metadata in that group."""

    key: GroupKey
    member: Trajectory
    """Trajectory, or a turn as a trajectory of its own."""
    metadata: StepMetadata | PartMetadata
    """Metadata about the member in this group."""

    @property
    def advantages(self) -> Sequence[float]:
        """Advantages of all tokens in this group, without the grouping's weight."""
        if (advantage := self.metadata.get("advantage")) is not None:
            return (advantage,)
        return [value for step in self.member.steps for value in step.advantages]


LossWeights = Mapping[tuple[str, str], float]
"""Weight of a role's advantages in a policy's loss, by the names of policy and role."""
NO_WEIGHTS: LossWeights = {}


def turns(trajectory: Trajectory) -> list[tuple[Step, ...]]:
    """Return the Steps of each turn that has any, oldest first."""
    return [tuple(steps) for _, steps in groupby(trajectory.steps, key=lambda step: step.round)]


def own_rewards(trajectory: Trajectory) -> list[float]:
    """Return the rewards of a trajectory's unmasked turns, as they were given, before credit."""
    return [steps[-1].reward for steps in turns(trajectory) if not _masked(steps)]


def is_compared(trajectory: Trajectory, role: RolePlan | None = None) -> bool:
    """Return True if a trajectory, or one of its turns, is a member of a group; without a role, by its
    record."""
    key = GroupKey("", trajectory.name)
    return any(key is not None for key, _ in compared(trajectory, role, key, {}))


def members(
    episode: Episode, trajectory: Trajectory, role: RolePlan | None = None, policy: str = MAIN
) -> list[tuple[GroupKey, Trajectory]]:
    """Return a pair (group key, member) for each group in which a trajectory, or one of its turns, is
    compared.

    `role` is None where episodes are read without their plan; the whole trajectory is compared then.
    """
    key = GroupKey(episode.task_id, trajectory.name, policy)
    pairs = compared(trajectory, role, key, episode.failures)
    return [(key, member) for key, member in pairs if key is not None]


def compared_rounds(episode: Episode, trajectory: Trajectory, role: RolePlan) -> set[int]:
    """Return the round numbers of a trajectory's turns that are in a group and not masked."""
    rounds = {step.round for _, member in members(episode, trajectory, role) for step in member.steps}
    return rounds - {step.round for step in trajectory.steps if step.masked}


def compared(
    trajectory: Trajectory, role: RolePlan | None, key: GroupKey, failures: Failures
) -> Iterator[tuple[GroupKey | None, Trajectory]]:
    """Yield the members that a trajectory gives to each of its role's groupings, with their groups' keys.

    Args:
        trajectory: The trajectory.
        role: Its role; None compares the whole trajectory.
        key: Task, role and policy of the trajectory.
        failures: Failures of the episode's turns.

    Yields:
        The key and the member; None for a key that cannot be computed.
    """
    if role is not None and trajectory.index in role.frozen:
        return
    for part, grouping in enumerate(WHOLE if role is None else role.groupings):
        trajectories = [trajectory] if trajectory.by_model and not trajectory.masked else []
        for member in (
            credited_turns(trajectory, grouping.credit, failures) if grouping.of_turns else trajectories
        ):
            yield _key(key._replace(part=part), grouping, member.steps[0]), member


def _key(key: GroupKey, grouping: GroupingPlan, first: Step) -> GroupKey | None:
    """Return `key` narrowed to the group in which `grouping` puts a member; None where that failed.

    `first` is the member's first Step, which has the prompt and the digests of expressions.
    """
    if grouping.over_batch:
        key = key._replace(task="")
    match grouping.by:
        case "task":
            return key
        case "turn":
            return key._replace(round=first.round)
        case "prompt":
            return key._replace(prompt=_digest(first))
        case "episode":  # one group for all roles, wherever their lists name it
            return key._replace(role="", part=0)
        case _:
            digest = _digests(first).get(grouping.by)
            return None if digest is None else key._replace(by=digest)


def _digests(first: Step) -> Mapping[str, str | None]:
    """Return, by expression, the digest of its value for the turn of this Step; None for a failed
    expression."""
    return first.metadata.get("by") or {}


def credited_turns(trajectory: Trajectory, credit: Credit, failures: Failures) -> list[Trajectory]:
    """Return the unmasked turns, each as a Trajectory whose reward is the turn's credit."""
    ran = [steps for steps in turns(trajectory) if not _masked(steps)]
    if credit.kind != "trajectory":
        rewards = credited([steps[-1].reward for steps in ran], credit)
    elif trajectory.reward is None or trajectory.masked:
        return []
    else:
        rewards = [trajectory.reward] * len(ran)
    return [_as_trajectory(trajectory, *turn, failures) for turn in zip(ran, rewards, strict=True)]


def credited(rewards: Sequence[float], credit: Credit) -> list[float]:
    """Compute each turn's credit from all turns' rewards, oldest first: a discounted return or a margin."""
    if credit.kind == "margin":
        before = accumulate(rewards, initial=0.0)
        return [reward - total / max(1, n) for n, (reward, total) in enumerate(zip(rewards, before))]  # noqa: B905
    discount = credit.discount or 0.0
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + (discount * returns[-1] if returns else 0.0))
    return returns[::-1]


def turn_uid(trajectory: Trajectory, number: int) -> str:
    """Return the uid of turn `number` of a trajectory, for the turn as a Trajectory of its own."""
    return f"{trajectory.uid}@{number}"


def notes(
    groups: Sequence[TrajectoryGroup],
    baselines: Sequence[Sequence[float]] = (),
    weights: LossWeights = NO_WEIGHTS,
    advantages: Sequence[Sequence[Sequence[Advantage]]] = (),
    learnt: Collection[str] | None = None,
    signalled: Collection[str] = (),
) -> dict[str, list[StepMetadata]]:
    """Return metadata for recorded steps: their groups, credit, baseline and weight in the loss.

    Args:
        groups: Groups of one training step.
        baselines: For each group, the baselines that the estimator subtracted, one for each of G members; or
            none.
        weights: By policy and role, the factor of the advantages in the loss.
        advantages: For each group, member and step, the advantage in this group; for roles with several
            groupings.
        learnt: Tasks that the loss uses; None for all.
        signalled: Roles with a signal beside the estimator, of which the estimator's part is noted.

    Returns:
        By the uid of a trajectory or turn, a mapping for each of its steps, which `on_record` reads.
    """
    by_uid: dict[str, list[StepMetadata]] = {}
    for number, group in enumerate(groups):
        key = group.key
        for place in group.places:
            is_learnt = learnt is None or group.task_of(place) in learnt
            weight = weights.get((key.policy, group.role)) if is_learnt else None
            member, part = group.trajectories[place], ComparisonMetadata()
            if group.of_turns:
                part["credit"] = member.reward
            if apart := key.apart:
                part["group"] = cast("GroupKeyMetadata", apart)
            if group.too_small:
                part["too_small"] = True
            if baselines and baselines[number]:
                part["baseline"] = baselines[number][place]
            values = advantages[number][place] if advantages else ()
            advantage = cast("float", values[0]) if values else 0.0  # estimators give a member one advantage
            metadata: StepMetadata = {**part}
            if group.in_list:
                before = (by_uid[member.uid][0].get("groups") or ()) if member.uid in by_uid else ()
                metadata = {"groups": [*before, {**part, "advantage": advantage, "weight": group.weight}]}
            elif values and group.role in signalled:
                metadata["advantage"] = advantage
            if weight is not None:
                metadata["loss_weight"] = weight
            by_uid[member.uid] = [metadata] * len(member.steps)
    return {uid: steps for uid, steps in by_uid.items() if any(steps)}


def loss_weights(
    episodes: Sequence[Episode], roles: Mapping[str, RolePlan], policy_of: PolicyOf
) -> dict[tuple[str, str], float]:
    """Return the weight of a role's advantages in a policy's loss, by the names of policy and role.

    Losses are sums over tokens; dividing each by the weights of all trajectories that the policy was compared
    in, those that teach nothing included, makes its loss a weighted mean that does not depend on the batch's
    size.
    """
    whole: dict[str, float] = {}
    role_weights: dict[tuple[str, str], float] = {}
    for _, _, role, policy in learning(episodes, roles, policy_of):
        whole[policy] = whole.get(policy, 0.0) + role.spec.weight
        role_weights[policy, role.name] = role.spec.weight
    return {
        (policy, name): weight / (whole[policy] or 1.0) for (policy, name), weight in role_weights.items()
    }


def learning(
    episodes: Sequence[Episode], roles: Mapping[str, RolePlan], policy_of: PolicyOf
) -> Iterator[tuple[Episode, Trajectory, RolePlan, str]]:
    """Yield (episode, trajectory, role, policy name) for each trajectory that is a member of a group."""
    for episode in episodes:
        for trajectory in episode.trajectories:
            role = roles.get(trajectory.name)
            if role is not None and is_compared(trajectory, role):
                yield episode, trajectory, role, policy_of(trajectory.name, trajectory.index)


def on_record(episode: Episode) -> Iterator[RecordedMember]:
    """Yield a RecordedMember for each trajectory or turn of an episode, and each group that its metadata
    names."""
    for trajectory in episode.trajectories:
        turn_steps = turns(trajectory)
        digests: Mapping[str, str | None] = _digests(turn_steps[0][0]) if turn_steps else {}
        lacks_key = bool(digests) and not any(digests.values())
        turn_parts: list[Sequence[StepMetadata | PartMetadata]] = [
            (steps[-1].metadata,) for steps in turn_steps
        ]
        is_list = any(steps[-1].metadata.get("groups") is not None for steps in turn_steps)
        if is_list:
            turn_parts = [steps[-1].metadata.get("groups") or () for steps in turn_steps]
        by_turn = any("credit" in part for parts in turn_parts for part in parts)
        if is_compared(trajectory) and (is_list or not (by_turn or lacks_key)):
            whole = (part for part in turn_parts[0] if "credit" not in part)
            yield from (_recorded(episode, trajectory, part) for part in whole)
        for steps, parts in zip(turn_steps, turn_parts, strict=True):
            for part in parts:
                if (reward := part.get("credit")) is not None:
                    turn = _as_trajectory(trajectory, steps, reward, episode.failures)
                    yield _recorded(episode, turn, part)


def _recorded(episode: Episode, member: Trajectory, part: StepMetadata | PartMetadata) -> RecordedMember:
    key = GroupKey(episode.task_id, member.name)._replace(**part.get("group", {}))
    return RecordedMember(key, member, part)


def _masked(steps: Sequence[Step]) -> bool:
    return any(step.masked for step in steps)


def _as_trajectory(
    trajectory: Trajectory, steps: Sequence[Step], reward: float, failures: Failures
) -> Trajectory:
    """Return a turn's steps as a Trajectory with the given reward and its own failure; only the last turn
    keeps the verdict."""
    uid, is_last = turn_uid(trajectory, steps[0].round), steps[-1] is trajectory.steps[-1]
    failure = trajectory.failure if is_last else None
    if failure is None and (failed := failures.get(trajectory.node._replace(round=steps[0].round))):
        failure = Failure(FailureName(failed["name"]), failed["message"], failed.get("place", ""))
    if is_last:
        return trajectory._replace(steps=steps, reward=reward, uid=uid, failure=failure, masked=False)
    return Trajectory(trajectory.name, trajectory.index, steps, reward, uid=uid, failure=failure)


def _digest(step: Step) -> str:
    """Return a digest of a step's prompt: its messages without the last, which is the answer."""
    sent = json.dumps([dict(message) for message in step.chat_completions[:-1]], sort_keys=True)
    return hashlib.blake2b(sent.encode(), digest_size=8).hexdigest()
