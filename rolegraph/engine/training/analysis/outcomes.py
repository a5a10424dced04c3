"""Outcome of each group: whether it has a gradient that prefers some answers, or why not; for the live table
and the report.

A group is compared if its members' rewards are compared. It taught if its gradient prefers some members to
others, and it moved if its gradient changes the weights at all: each group that taught also moved.

Read from the rows of a step's credit. An outcome follows from the advantages, whatever the estimator; rLLM's
`batch/*` follow from the spread of rewards. If all rewards are equal, REINFORCE has a gradient that prefers
no answer to another; that outcome has its own name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rolegraph.engine.records import Step
from rolegraph.engine.records.credit import CreditRow, LeftOut
from rolegraph.engine.training.advantages.group_metrics import Metrics, any_nonzero


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

    def metric(self, role: str) -> str:
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

    def add(self, low: float | None, high: float | None, reward: float | None, *, failed: bool) -> None:
        """Add a member with the smallest and largest advantage of its tokens (None for a masked member)."""
        self.all_failed = self.all_failed and failed
        if low is not None and high is not None:
            self._ends += (low, high)
            self._rewards += [] if reward is None else [reward]

    @property
    def outcome(self) -> GroupOutcome:
        """Return the outcome of the group, from the members added so far."""
        if any_nonzero(self._ends):
            has_equal_ends = len(self._ends) > 2 and len({*self._ends}) == 1
            return GroupOutcome.EQUAL if has_equal_ends else GroupOutcome.TAUGHT
        if self.all_failed:
            return GroupOutcome.FAILED
        if self.too_small or not self._ends:
            return GroupOutcome.SMALL
        if self._rewards and min(self._rewards) >= 1:
            return GroupOutcome.EASY
        return GroupOutcome.HARD if self._rewards and max(self._rewards) <= 0 else GroupOutcome.NEITHER


class GroupResult(NamedTuple):
    """Outcome of a group for one role."""

    role: str
    task: str
    """`id` of the task; empty for a group over several tasks."""
    outcome: GroupOutcome


def group_results(rows: Iterable[CreditRow]) -> list[GroupResult]:
    """Return the outcome of each group of a step, once for each of its roles.

    A role whose trajectories on a task are all masked or unanswered gets an outcome for that task as well.
    """
    groups: dict[int, tuple[str, GroupTally]] = {}
    left_out_tallies: dict[tuple[str, str], GroupTally] = {}
    compared_keys: set[tuple[str, str]] = set()
    """Task and role of each member, also of those in groups over several tasks."""
    for row in rows:
        if row.group is None:
            if row.left_out in (LeftOut.MASKED, LeftOut.UNANSWERED) and not row.round:
                tally = left_out_tallies.setdefault((row.task, row.role), GroupTally())
                tally.add(None, None, row.reward, failed=row.failed)
        elif row.low is not None:
            if row.group not in groups:
                groups[row.group] = row.over.task_of(row.task), GroupTally()
            _, tally = groups[row.group]
            tally.roles[row.role] = None
            compared_keys.add((row.task, row.role))
            tally.too_small = tally.too_small or row.left_out is LeftOut.TOO_SMALL
            tally.add(row.low, row.high, row.reward, failed=row.failed)
    results = [
        GroupResult(role, task, tally.outcome) for task, tally in groups.values() for role in tally.roles
    ]
    no_group = {key: tally for key, tally in left_out_tallies.items() if key not in compared_keys}
    return results + [GroupResult(role, task, tally.outcome) for (task, role), tally in no_group.items()]


def outcome_metrics(rows: Iterable[CreditRow]) -> Metrics:
    """Return `outcome/{role}/{outcome}`: the share of a trained role's groups, from 0 to 1."""
    by_role: dict[str, Outcomes] = {}
    for role, _, outcome in group_results(rows):
        by_role.setdefault(role, Outcomes())[outcome] += 1
    return {
        outcome.metric(role): counts[outcome] / counts.total()
        for role, counts in by_role.items()
        for outcome in GroupOutcome
    }


def advantages(steps: Iterable[Step]) -> list[float]:
    """Return the token advantages of all steps in one list."""
    return [value for step in steps for value in step.advantages]
