"""Outcome of each group: it taught, or why it did not; for the live table and the report.

A group is compared where its members' rewards are. It taught where it prefers some of them to others, and
moved where it changes the weights at all: each group that taught moved, too.

Read from episodes with advantages, one at a time. An outcome follows from the advantages, whatever the
estimator; rLLM's `batch/*` follow from the spread of rewards. REINFORCE has a gradient where all rewards are
equal, but it prefers no answer to another there: that outcome has a word of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records import Episode, GroupKey, NodeId, PolicyOf, Step
from rolegraph.engine.training.advantages.credit import on_record
from rolegraph.engine.training.advantages.group_metrics import MIN_MAGNITUDE, Metrics, any_nonzero
from rolegraph.engine.training.advantages.groups import group_episodes


class GroupOutcome(StrEnum):
    """Outcome of a group for training: it taught, or the reason why not, such as too easy or all failed."""

    TAUGHT = "taught"
    """It has a nonzero advantage, and not the same one for every member."""
    EQUAL = "equal rewards"
    """All its members have the same nonzero advantage, as REINFORCE gives equal rewards: the update makes all
    of them likelier, or none."""
    FAILED = "failed"
    """Every answer failed, and has the advantage 0, or none because it is masked."""
    EASY = "too easy"
    """All its advantages are 0, and all its rewards 1 or more."""
    HARD = "too hard"
    """All its advantages are 0, and all its rewards 0 or less."""
    SMALL = "too small"
    """All its advantages are 0, because skips, failures and missing ratings left fewer members than its
    estimator needs."""
    NEITHER = "neither"
    """All its advantages are 0, and its rewards are between 0 and 1, mixed or missing."""

    @property
    def moves(self) -> bool:
        """True for an outcome whose groups have a gradient."""
        return self in (GroupOutcome.TAUGHT, GroupOutcome.EQUAL)

    def figure(self, role: str) -> str:
        """Return the metric's name for the share of a role's groups with this outcome."""
        return f"outcome/{role}/{self.replace(' ', '_')}"


Outcomes = Counter[GroupOutcome]
"""Number of groups with each outcome."""


@dataclass(slots=True)
class GroupTally:
    """Running summary of one group's members, from which its outcome is derived."""

    too_small: bool = False
    all_failed: bool = True
    roles: dict[str, None] = field(default_factory=dict[str, None])
    """Roles of the members."""
    _ends: list[float] = field(default_factory=list[float])
    """Smallest and largest advantage of each member that is not masked."""
    _rewards: list[float] = field(default_factory=list[float])

    def add(self, advantages: Sequence[float], reward: float | None, *, failed: bool) -> None:
        """Add a member with the advantages of its tokens (empty for a masked member) and its reward."""
        self.all_failed = self.all_failed and failed
        if advantages:
            self._ends += (min(advantages), max(advantages))
            self._rewards += [] if reward is None else [reward]

    @property
    def outcome(self) -> GroupOutcome:
        """Outcome of the group, from the members added so far."""
        if any_nonzero(self._ends):
            same = len(self._ends) > 2 and len({*self._ends}) == 1
            return GroupOutcome.EQUAL if same else GroupOutcome.TAUGHT
        if self.all_failed:
            return GroupOutcome.FAILED
        if self.too_small or not self._ends:
            return GroupOutcome.SMALL
        if self._rewards and min(self._rewards) >= 1:
            return GroupOutcome.EASY
        return GroupOutcome.HARD if self._rewards and max(self._rewards) <= 0 else GroupOutcome.NEITHER


class StepGroups:
    """Groups of one training step's episodes.

    Args:
        trained: Names of the trained roles. Of these, masked and unanswered trajectories count too: a task
            on which a role has no other has a group without members.
    """

    def __init__(self, trained: Collection[str]) -> None:
        self._trained = trained
        self._groups: dict[GroupKey, GroupTally] = {}
        self._left_out: dict[GroupKey, GroupTally] = {}
        self._compared: set[tuple[str, str]] = set()
        """Task and role of each member, also of those in groups over all tasks."""

    def add(self, episode: Episode) -> None:
        """Add an episode's members to their groups; only rewards and ranges of advantages are kept."""
        compared: set[NodeId] = set()
        for recorded in on_record(episode):
            member, values = recorded.member, recorded.advantages
            if values:
                compared.add(member.node)
                group = self._groups.setdefault(recorded.key, GroupTally())
                group.roles[member.name] = None
                self._compared.add((episode.task_id, member.name))
                group.too_small = group.too_small or recorded.metadata.get("too_small", False)
                group.add(values, member.reward, failed=member.failure is not None)
        for trajectory in episode.trajectories:
            left_out = trajectory.masked or not trajectory.by_model
            if left_out and trajectory.name in self._trained and trajectory.node not in compared:
                group = self._left_out.setdefault(GroupKey(episode.task_id, trajectory.name), GroupTally())
                group.add((), trajectory.reward, failed=trajectory.failure is not None)

    def outcomes(self) -> Mapping[GroupKey, GroupOutcome]:
        """Return the outcome of each group of the episodes added so far, by key.

        A group over several roles is there once for each of them.
        """
        groups = {
            (key if key.role else key._replace(role=role, part=-1)): group
            for key, group in self._groups.items()
            for role in group.roles
        }
        without = {key: of for key, of in self._left_out.items() if key[:2] not in self._compared}
        return {key: group.outcome for key, group in {**groups, **without}.items()}


def outcome_figures(episodes: Iterable[Episode], trained: Collection[str]) -> Metrics:
    """Return `outcome/{role}/{outcome}`: the share of a trained role's groups, from 0 to 1."""
    groups = StepGroups(trained)
    for episode in episodes:
        groups.add(episode)
    by_role: dict[str, Outcomes] = {}
    for key, outcome in groups.outcomes().items():
        by_role.setdefault(key.role, Outcomes())[outcome] += 1
    return {
        outcome.figure(role): counts[outcome] / counts.total()
        for role, counts in by_role.items()
        for outcome in GroupOutcome
    }


def teaching_tasks(
    episodes: Sequence[Episode], roles: Mapping[str, RolePlan], policy_of: PolicyOf
) -> list[str]:
    """Return the tasks that teach, in the order of their first episodes: in a group, rewards differ.

    Args:
        episodes: Episodes with rewards; advantages are not read.
        roles: The trained roles. Groups of a role with precomputed advantages do not count.
        policy_of: Function from (role, instance index) to the name of the policy.
    """
    teaching: set[str] = set()
    for group in group_episodes(episodes, roles, policy_of)[0]:
        role = roles.get(group.role)
        if group.too_small or role is None or role.estimator is None or role.estimator.compute is None:
            continue
        rewards = [member.reward for member in group.trajectories if member.reward is not None]
        if rewards and max(rewards) - min(rewards) >= MIN_MAGNITUDE:
            teaching.update(group.tasks or (group.key.task,))
    return [task for task in dict.fromkeys(episode.task_id for episode in episodes) if task in teaching]


def advantages(steps: Iterable[Step]) -> list[float]:
    """Return the token advantages of all steps in one list."""
    return [value for step in steps for value in step.advantages]
