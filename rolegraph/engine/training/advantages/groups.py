"""Groups of trajectories or turns, in which estimators compare. Pure.

In: episodes whose trajectories have rewards. Out: groups by task, role and policy, or as the role's `group`
says, with rLLM's `groups/*` metrics (`rllm/trainer/algorithms/transform.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records import (
    MAIN,
    Episode,
    GroupKey,
    PolicyOf,
    Trajectory,
    TrajectoryGroup,
)
from rolegraph.engine.training.advantages.credit import compared, turns
from rolegraph.engine.training.advantages.group_metrics import Metrics

NO_ROLES: Mapping[str, RolePlan] = {}


def group_episodes(
    episodes: Sequence[Episode],
    roles: Mapping[str, RolePlan] = NO_ROLES,
    policy_of: PolicyOf = lambda role, index: MAIN,
) -> tuple[tuple[TrajectoryGroup, ...], Metrics]:
    """Group trajectories, or turns where a role compares turns, as `members` in `credit.py` says.

    Trajectories and turns without a step, and masked ones, are in no group.

    Args:
        episodes: The episodes of a step.
        roles: The trained roles; trajectories of another role are grouped by task and role.
        policy_of: Function from (role, instance index) to the name of the policy.

    Returns:
        The groups, in the order in which they first occur, and the `groups/*` metrics of rLLM's
        `transform.py`, with `groups/too_small/{role}` counting groups below the estimator's minimum, and
        `groups/no_key/{role}` members left out because a key cannot be computed. A group over several roles
        is there once for each of them.
    """
    by_key: dict[GroupKey, list[tuple[Trajectory, Episode]]] = {}
    no_key = Counter[str]()
    before = 0
    for episode in episodes:
        failures = episode.failures
        for trajectory in episode.trajectories:
            role = roles.get(trajectory.name)
            before += len(turns(trajectory)) if role is not None and role.compares_turns else 1
            policy = policy_of(trajectory.name, trajectory.index)
            whole = GroupKey(episode.task_id, trajectory.name, policy)
            for key, member in compared(trajectory, role, whole, failures):
                if key is None:
                    no_key[f"groups/no_key/{trajectory.name}"] += 1
                else:
                    by_key.setdefault(key, []).append((member, episode))
    groups = tuple(
        _group(key, pairs, name, roles.get(name))
        for key, pairs in by_key.items()
        for name in dict.fromkeys([key.role] if key.role else [member.name for member, _ in pairs])
    )
    sizes = [len(pairs) for pairs in by_key.values()]
    small = Counter(f"groups/too_small/{group.role}" for group in groups if group.too_small)
    return groups, {
        "groups/num_trajs_before_filter": float(before),
        "groups/num_trajs_after_filter": float(sum(sizes)),
        "groups/num_groups": float(len(sizes)),
        "groups/avg_group_size": sum(sizes) / len(sizes) if sizes else 0.0,
        "groups/max_group_size": float(max(sizes, default=0)),
        "groups/min_group_size": float(min(sizes, default=0)),
        **{name: float(count) for name, count in (small + no_key).items()},
    }


def _group(
    key: GroupKey, pairs: Sequence[tuple[Trajectory, Episode]], name: str, role: RolePlan | None
) -> TrajectoryGroup:
    """Return the TrajectoryGroup of (member, its episode) pairs, set up for the estimator of role `name`."""
    trajectories, episodes = zip(*pairs, strict=True)
    group = TrajectoryGroup(key, trajectories, tuple(episode.rollout for episode in episodes))
    if role is None:
        return group
    tasks = tuple(episode.task_id for episode in episodes)
    state_keys: Mapping[str, str] = {}
    if role.state_key is not None:
        state_keys = {episode.task_id: role.state_key.of(episode.task) for episode in episodes}
    by_place = [grouping.by == "episode" for grouping in role.groupings]
    grouping = role.groupings[key.part if key.role else by_place.index(True)]
    # The compiler refuses a spec whose full groups are too small, so skips and failures shrank this one.
    least = role.estimator.min_group if role.estimator is not None else 0
    return replace(
        group,
        tasks=() if key.task else tasks,
        of_turns=grouping.of_turns,
        too_small=len(pairs) < least,
        estimated_for="" if key.role else name,
        weight=grouping.weight,
        in_list=len(role.groupings) > 1,
        state_keys=tuple(map(state_keys.__getitem__, tasks)) if state_keys else (),
    )
