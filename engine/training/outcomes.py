"""Outcome of each group: it taught, or why it did not; for the live table and the report.

Read from episodes with advantages, one at a time. An outcome follows from the advantages, whatever the
estimator; rLLM's `batch/*` follow from the spread of rewards, so that a group of equal rewards is never
`effective` there although REINFORCE learns from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rolegraph.engine.records import Episode, GroupKey, Step
from rolegraph.engine.training.advantages import Metrics, any_nonzero
from rolegraph.engine.training.credit import on_record


class GroupOutcome(StrEnum):
    """Outcome of a group."""

    TAUGHT = "taught"
    """It has a nonzero advantage."""
    EASY = "too easy"
    """All its advantages are 0, and all its rewards 1 or more."""
    HARD = "too hard"
    """All its advantages are 0, and all its rewards 0 or less."""
    SMALL = "too small"
    """All its advantages are 0, because skips and failures left fewer members than its estimator needs."""
    NEITHER = "neither"
    """All its advantages are 0, and its rewards are between 0 and 1, mixed or missing."""

    def figure(self, role: str) -> str:
        """Return the metric's name for the share of a role's groups with this outcome."""
        return f"outcome/{role}/{self.replace(' ', '_')}"


Outcomes = Counter[GroupOutcome]
"""Number of groups with each outcome."""


@dataclass(slots=True)
class _GroupTally:
    """Running totals of one group."""

    has_gradient: bool = False
    too_small: bool = False
    rewards: list[float] = field(default_factory=list[float])

    @property
    def outcome(self) -> GroupOutcome:
        if self.has_gradient:
            return GroupOutcome.TAUGHT
        if self.too_small:
            return GroupOutcome.SMALL
        if self.rewards and min(self.rewards) >= 1:
            return GroupOutcome.EASY
        return GroupOutcome.HARD if self.rewards and max(self.rewards) <= 0 else GroupOutcome.NEITHER


class StepGroups:
    """Groups of one training step's episodes."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _GroupTally] = {}

    def add(self, episode: Episode) -> None:
        """Count an episode's group members; of the episode only rewards are kept."""
        for key, member in on_record(episode):
            values = advantages(member.steps)
            if values:
                group = self._groups.setdefault(key, _GroupTally())
                group.has_gradient = group.has_gradient or any_nonzero(values)
                group.too_small = group.too_small or "too_small" in member.steps[0].metadata
                if member.reward is not None:
                    group.rewards.append(member.reward)

    def outcomes(self) -> Mapping[GroupKey, GroupOutcome]:
        """Return the outcome of each group, by the episodes added so far."""
        return {key: group.outcome for key, group in self._groups.items()}


def outcome_figures(episodes: Iterable[Episode]) -> Metrics:
    """Return `outcome/{role}/{outcome}`: the share of a role's groups, from 0 to 1."""
    groups = StepGroups()
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


def advantages(steps: Iterable[Step]) -> list[float]:
    """Return the advantages of all tokens of some steps."""
    return [value for step in steps for value in step.advantages]
