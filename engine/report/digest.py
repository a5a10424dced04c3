"""A run's episodes, read one at a time, reduced to what the report shows of them.

Kept are counts for each task and each step and a few sample episodes, so that gigabytes of episodes fit. A
group is what training compared: all that the instances of a role did on one task in one step, or their turns
of one round or one prompt, less what is masked and what has no step; what became of it,
`rolegraph.engine.training.outcomes` says. This file knows no HTML.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import Episode, GroupKey, RunFolder, Trajectory, read_episodes
from rolegraph.engine.training.outcomes import GroupOutcome, Outcomes, StepGroups, advantages

SAMPLES = 2
"""How many of the best episodes of a role are shown, and of the worst; each of another task."""
MOST_TASKS = 12
"""Rows of a role's table."""
MOST_TEXT = 12_000
"""Characters of a prompt or response that are shown."""


@dataclass(frozen=True, slots=True)
class TaskGroups:
    """A task's groups over the whole run."""

    task: str
    question: str
    outcomes: Outcomes = field(default_factory=Outcomes)

    @property
    def barren(self) -> int:
        """How many taught nothing."""
        return self.outcomes.total() - self.outcomes[GroupOutcome.TAUGHT]


@dataclass(frozen=True, slots=True)
class RoleGroups:
    """A role's groups over the whole run, by training step and by task."""

    role: str
    steps: dict[int, Outcomes] = field(default_factory=dict[int, Outcomes])
    tasks: dict[str, TaskGroups] = field(default_factory=dict[str, TaskGroups])

    @property
    def seen(self) -> int:
        """How many groups there were."""
        return sum(task.outcomes.total() for task in self.tasks.values())

    @property
    def barren(self) -> int:
        """How many taught nothing."""
        return sum(task.barren for task in self.tasks.values())

    @property
    def barren_tasks(self) -> list[TaskGroups]:
        """Those that taught nothing most often, first."""
        rows = sorted(self.tasks.values(), key=lambda row: (-row.barren, row.outcomes.total(), row.task))
        return [row for row in rows[:MOST_TASKS] if row.barren]


class SampleReason(NamedTuple):
    """Why an episode is shown: a role instance was among the best or the worst of its role, by what."""

    side: Literal["best", "worst"]
    instance: str
    measure: Literal["advantage", "reward"]
    value: float
    """The advantage is the mean over tokens."""


@dataclass(frozen=True, slots=True)
class SampleEpisode:
    """An episode to show, and why."""

    episode: Episode
    reasons: Sequence[SampleReason]


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The sample episodes of one step: of the last that has any."""

    split: str
    step: int
    samples: Sequence[SampleEpisode]


@dataclass(frozen=True, slots=True)
class Digest:
    """What the report shows of a run's episodes."""

    groups: Sequence[RoleGroups] = ()
    samples: Sequence[StepSamples] = ()
    unreadable: int = 0
    """Lines that are no episode and were passed over, not counting last ones cut short."""


def read_digest(folder: Path, roles: Iterable[str]) -> Digest:
    """Read every episode of the run once. Raises DataError where a file cannot be read."""
    run = RunFolder(folder)
    broken: list[DataError] = []
    by_role = {role: RoleGroups(role) for role in roles}
    train: StepSamples | None = None
    for step, path in run.episodes_files("train"):
        best, groups, questions = _Best(), StepGroups(), dict[str, str]()
        for episode in read_episodes(path, broken.append):
            groups.add(episode)
            best.add(episode)
            questions.setdefault(episode.task_id, question(episode.task, episode.task_id))
        _count(step, groups.outcomes(), questions, by_role)
        train = best.samples("train", step) or train
    validation: StepSamples | None = None
    for step, path in reversed(run.episodes_files("validation")):
        best = _Best()
        for episode in read_episodes(path, broken.append):
            best.add(episode)
        if validation := best.samples("validation", step):
            break
    samples = [shown for shown in (train, validation) if shown is not None]
    groups_of_roles = tuple(groups for groups in by_role.values() if groups.tasks)
    return Digest(groups_of_roles, tuple(samples), len(broken))


def instance(episode: Episode, trajectory: Trajectory) -> str:
    """A role's name, with the instance's index where the role has several."""
    several = sum(other.name == trajectory.name for other in episode.trajectories) > 1
    return f"{trajectory.name} {trajectory.index}" if several else trajectory.name


def question(task: Mapping[str, Any], task_id: str, most: int = 300) -> str:
    """The task in a few words: its question, or its id."""
    text = task.get("question")
    return clipped(text if isinstance(text, str) and text.strip() else task_id, most)


def clipped(value: object, most: int = MOST_TEXT) -> str:
    """A value as text, with a note where the rest is left out."""
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return words if len(words) <= most else f"{words[:most]} … ({len(words) - most:,} more characters)"


def _count(
    step: int,
    outcomes: Mapping[GroupKey, GroupOutcome],
    questions: Mapping[str, str],
    roles: dict[str, RoleGroups],
) -> None:
    for key, outcome in outcomes.items():
        role = roles.setdefault(key.role, RoleGroups(key.role))
        of_task = role.tasks.setdefault(key.task, TaskGroups(key.task, questions[key.task]))
        for counts in (role.steps.setdefault(step, Outcomes()), of_task.outcomes):
            counts[outcome] += 1


class _Best:
    """The best and the worst episodes for each role, by the role's mean advantage, else its reward."""

    def __init__(self) -> None:
        self._kept: defaultdict[tuple[str, str], list[tuple[SampleReason, Episode]]] = defaultdict(list)

    def add(self, episode: Episode) -> None:
        for trajectory in episode.trajectories:
            values = advantages(trajectory.steps)
            if values:
                measure, value = "advantage", sum(values) / len(values)
            elif trajectory.reward is not None:
                measure, value = "reward", trajectory.reward
            else:
                continue
            name = instance(episode, trajectory)
            self._offer(trajectory.name, SampleReason("best", name, measure, value), episode)
            self._offer(trajectory.name, SampleReason("worst", name, measure, value), episode)

    def samples(self, split: str, step: int) -> StepSamples | None:
        """What was kept; None where there was no episode."""
        reasons: dict[int, list[SampleReason]] = {}
        episodes: dict[int, Episode] = {}
        for _, kept in sorted(self._kept.items(), key=lambda item: item[0][0]):
            for reason, episode in kept:
                episodes[id(episode)] = episode
                reasons.setdefault(id(episode), []).append(reason)
        samples = [SampleEpisode(episode, tuple(reasons[key])) for key, episode in episodes.items()]
        return StepSamples(split, step, samples) if samples else None

    def _offer(self, role: str, reason: SampleReason, episode: Episode) -> None:
        kept = self._kept[reason.side, role]
        same = next((item for item in kept if item[1].task_id == episode.task_id), None)
        if same is not None:
            if _worth(reason) <= _worth(same[0]):
                return
            kept.remove(same)
        elif len(kept) == SAMPLES and _worth(reason) <= _worth(kept[-1][0]):
            return
        kept.append((reason, episode))
        kept.sort(key=lambda item: -_worth(item[0]))
        del kept[SAMPLES:]


def _worth(reason: SampleReason) -> float:
    return reason.value if reason.side == "best" else -reason.value
