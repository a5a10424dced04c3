"""What became of each group: whether it taught anything, and if not, why; for the live table and the report.

In: episodes that training has given their advantages, looked at one at a time. A group counts by its
advantages, whatever its estimator; `batch/*` (rLLM's) counts by how its rewards are spread, so that a group
of equal rewards is never `effective` there, though REINFORCE learns from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rolegraph.engine.records import Episode, GroupKey, Step
from rolegraph.engine.training.advantages import Metrics, teaches
from rolegraph.engine.training.credit import on_record


class GroupOutcome(StrEnum):
    """What became of a group."""

    TAUGHT = "taught"
    """It has an advantage that is not 0."""
    EASY = "too easy"
    """All its advantages are 0, and all its rewards 1 or more."""
    HARD = "too hard"
    """All its advantages are 0, and all its rewards 0 or less."""
    SMALL = "too small"
    """Skips and failures left fewer members than its estimator compares, so that all its advantages are 0."""
    NEITHER = "neither"
    """All its advantages are 0, and its rewards are in between (or it has none)."""

    def figure(self, role: str) -> str:
        """The name of the metric that says what share of a role's groups came to it."""
        return f"outcome/{role}/{self.replace(' ', '_')}"


Outcomes = Counter[GroupOutcome]
"""How many groups came to what."""


@dataclass(slots=True)
class _Group:
    """What was compared in one step."""

    taught: bool = False
    too_small: bool = False
    rewards: list[float] = field(default_factory=list[float])

    @property
    def outcome(self) -> GroupOutcome:
        if self.taught:
            return GroupOutcome.TAUGHT
        if self.too_small:
            return GroupOutcome.SMALL
        if self.rewards and min(self.rewards) >= 1:
            return GroupOutcome.EASY
        return GroupOutcome.HARD if self.rewards and max(self.rewards) <= 0 else GroupOutcome.NEITHER


class StepGroups:
    """The groups of one step's episodes: what has advantages and was compared."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _Group] = {}

    def add(self, episode: Episode) -> None:
        """Look at an episode; nothing of it is kept but rewards."""
        for key, member in on_record(episode):
            values = advantages(member.steps)
            if values:
                group = self._groups.setdefault(key, _Group())
                group.taught = group.taught or teaches(values)
                group.too_small = group.too_small or "too_small" in member.steps[0].metadata
                if member.reward is not None:
                    group.rewards.append(member.reward)

    def outcomes(self) -> Mapping[GroupKey, GroupOutcome]:
        """What became of each, so far."""
        return {key: group.outcome for key, group in self._groups.items()}


def outcome_figures(episodes: Iterable[Episode]) -> Metrics:
    """`outcome/{role}/*`: the share of a role's groups that came to each outcome."""
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
    """The advantages of all tokens of some steps."""
    return [value for step in steps for value in step.advantages]
