"""Advantages and details of a step, written into its episodes. Pure.

In: groups with their advantages, and details by the uid of a trajectory or turn. Out: copies of the episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rolegraph.engine.records import Advantage, Episode, Step, Trajectory, TrajectoryGroup
from rolegraph.engine.training.advantages import EstimatedGroups
from rolegraph.engine.training.credit import turn_uid, turns
from rolegraph.engine.training.precomputed import AdvantagesByUid
from rolegraph.engine.training.signals import DEMONSTRATION

DetailsByUid = Mapping[str, Sequence[Mapping[str, Any]]]
"""Additions to each step's metadata, by the same uids."""
NO_ADVANTAGES: AdvantagesByUid = {}
T = TypeVar("T")


def advantages_by_uid(groups: Sequence[TrajectoryGroup], estimated: EstimatedGroups) -> AdvantagesByUid:
    """Return the advantages of each member's steps, by the member's uid; of several groups the weighted
    sum."""
    found: dict[str, Sequence[Advantage]] = {}
    for group, own in zip(groups, estimated.advantages, strict=True):
        for trajectory, steps in zip(group.trajectories, own, strict=True):
            if not steps:
                continue
            if group.in_list:
                steps = [_scaled(value, group.weight) for value in steps]
            before = found.get(trajectory.uid)
            found[trajectory.uid] = [*map(_add, before, steps)] if before else steps
    return found


def _scaled(advantage: Advantage, weight: float) -> Advantage:
    assert isinstance(advantage, float)  # estimators give a member one advantage
    return advantage * weight


def _add(one: Advantage | None, other: Advantage | None) -> float:
    assert isinstance(one, float) and isinstance(other, float)
    return one + other


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
    added: AdvantagesByUid = NO_ADVANTAGES,
) -> list[Episode]:
    """Return copies of episodes with advantages and details on their steps.

    Args:
        episodes: the episodes.
        advantages: advantages by uid of a trajectory or turn; other steps keep their own.
        details: additions to the steps' metadata, by the same uids.
        version: function that returns how many updates a trajectory's policy has had; adds `staleness`, the
            number of updates since the step's weights, to the metadata, unless it returns None.
        added: advantages of signals by the trajectory's uid, which are added to `advantages`; a step without
            an advantage gets none of them.
    """

    def step_of(step: Step, advantage: Advantage | None, detail: Mapping[str, Any], now: int | None) -> Step:
        metadata = {**step.metadata, **detail}
        if now is not None and step.weight_version is not None:
            metadata["staleness"] = now - step.weight_version
        return step._replace(advantage=advantage, metadata=metadata)

    def trajectory_of(trajectory: Trajectory) -> Trajectory:
        steps = trajectory.steps
        values = _for_steps(trajectory, advantages, [step.advantage for step in steps], _add)
        notes = _for_steps(trajectory, details, [{} for _ in steps], _merge)
        if trajectory.uid in added:
            values = list(map(_with_signal, values, added[trajectory.uid], notes))
        now = [version(trajectory) if version else None] * len(steps)
        return trajectory._replace(steps=tuple(map(step_of, steps, values, notes, now)))

    return [
        episode._replace(trajectories=tuple(map(trajectory_of, episode.trajectories))) for episode in episodes
    ]


def _with_signal(
    advantage: Advantage | None, signal: Advantage, noted: Mapping[str, Any]
) -> Advantage | None:
    """Add a signal's advantages of a step to the estimator's; a demonstration replaces the answer."""
    if advantage is None or DEMONSTRATION in noted:
        return None if advantage is None else signal
    if isinstance(signal, Sequence):
        return [_add(advantage, value) for value in signal]
    return _add(advantage, signal)


def _for_steps(
    trajectory: Trajectory,
    values: Mapping[str, Sequence[T]],
    default: Sequence[T],
    merge: Callable[[T, T], T],
) -> list[T]:
    """Return a value for each step of a trajectory: by its own uid, by the uids of its turns, merged where
    there are both, else `default`."""
    whole = values.get(trajectory.uid)
    found: list[T] = []
    for steps in turns(trajectory):
        here = slice(len(found), len(found) + len(steps))
        of_turn = values.get(turn_uid(trajectory, steps[0].round))
        both = [its for its in (whole and whole[here], of_turn) if its]
        found += map(merge, *both) if len(both) > 1 else both[0] if both else default[here]
    return found


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge two details of a step; the parts of several groups follow each other."""
    groups = [*one.get("groups", ()), *other.get("groups", ())]
    return {**one, **other, **({"groups": groups} if groups else {})}
