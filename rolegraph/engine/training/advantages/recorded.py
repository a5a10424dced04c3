"""Advantages and details of a step, written into its episodes. Pure.

In: groups with their advantages, and details by the uid of a trajectory or turn. Out: copies of the episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from rolegraph.engine.records import Advantage, Episode, Step, StepMetadata, Trajectory, TrajectoryGroup
from rolegraph.engine.training.advantages.credit import turn_uid, turns
from rolegraph.engine.training.advantages.estimates import EstimatedGroups
from rolegraph.engine.training.advantages.precomputed import AdvantagesByUid

DetailsByUid = Mapping[str, Sequence[StepMetadata]]
"""Additions to the metadata of each step, by the uid of the group member."""
NO_ADVANTAGES: AdvantagesByUid = {}


def advantages_by_uid(groups: Sequence[TrajectoryGroup], estimated: EstimatedGroups) -> AdvantagesByUid:
    """Return by uid the advantages of each member's steps; for a member of several groups their weighted
    sum."""
    advantages: dict[str, Sequence[Advantage]] = {}
    for group, group_advantages in zip(groups, estimated.advantages, strict=True):
        for member, steps in zip(group.trajectories, group_advantages, strict=True):
            if steps and group.in_list:  # estimators give a member one advantage
                before = advantages.get(member.uid, [0.0] * len(steps))
                steps = [_add(total, value, group.weight) for total, value in zip(before, steps, strict=True)]
            if steps:
                advantages[member.uid] = steps
    return advantages


def _add(one: Advantage, other: Advantage, weight: float = 1.0) -> float:
    assert isinstance(one, float) and isinstance(other, float)
    return one + weight * other


def merge_details(one: DetailsByUid, other: DetailsByUid) -> DetailsByUid:
    """Merge two mappings from uid to steps' metadata, step by step; where both have a key, `other` wins."""
    shared: dict[str, list[StepMetadata]] = {
        uid: [{**a, **b} for a, b in zip(one[uid], other[uid], strict=True)] for uid in one if uid in other
    }
    return {**one, **other, **shared}


def annotate(
    episodes: Sequence[Episode],
    advantages: AdvantagesByUid,
    details: DetailsByUid,
    version: Callable[[Trajectory], int | None] | None = None,
    added: AdvantagesByUid = NO_ADVANTAGES,
) -> list[Episode]:
    """Return copies of episodes with advantages and details on their steps.

    Args:
        episodes: The episodes.
        advantages: Advantages by uid of a trajectory or turn; other steps keep their own.
        details: Additions to the steps' metadata, by the same uids.
        version: Function that returns how many updates a trajectory's policy has had; adds `staleness`, the
            number of updates since the step's weights, to the metadata, unless it returns None.
        added: Advantages of signals by the trajectory's uid, which are added to `advantages`; a step without
            an advantage gets none of them.
    """

    def trajectory_of(trajectory: Trajectory) -> Trajectory:
        now = version(trajectory) if version else None
        steps: list[Step] = []
        for turn in turns(trajectory):
            for place, step in enumerate(turn):
                number = len(steps)
                places = ((trajectory.uid, number), (turn_uid(trajectory, step.round), place))
                given = [advantages[uid][index] for uid, index in places if advantages.get(uid)]
                step_details = [details[uid][index] for uid, index in places if details.get(uid)]
                advantage = reduce(_add, given) if given else step.advantage
                detail: StepMetadata = reduce(_merge, step_details) if step_details else {}
                if trajectory.uid in added and advantage is not None:
                    signal = added[trajectory.uid][number]
                    # A demonstration replaces the answer, so its weight replaces the advantage.
                    advantage = signal if "demonstration" in detail else _add_to_each(advantage, signal)
                metadata: StepMetadata = {**step.metadata, **detail}
                if now is not None and step.weight_version is not None:
                    metadata["staleness"] = now - step.weight_version
                steps.append(step._replace(advantage=advantage, metadata=metadata))
        return trajectory._replace(steps=tuple(steps))

    return [
        episode._replace(trajectories=tuple(map(trajectory_of, episode.trajectories))) for episode in episodes
    ]


def _add_to_each(advantage: Advantage, signal: Advantage) -> Advantage:
    """Return the estimator's advantage of a step plus the signal's, which is one number or one for each
    token."""
    if isinstance(signal, Sequence):
        return [_add(advantage, value) for value in signal]
    return _add(advantage, signal)


def _merge(one: StepMetadata, other: StepMetadata) -> StepMetadata:
    """Return one step's metadata with that of `other` over it; their lists of `groups` are joined."""
    merged: StepMetadata = {**one, **other}
    if groups := [*(one.get("groups") or ()), *(other.get("groups") or ())]:
        merged["groups"] = groups
    return merged
