"""A run's episodes, read one at a time, reduced to what the report shows of them.

Kept are a count for each task and a few sample episodes, so that gigabytes of episodes fit. A group is all
that the instances of a role did on one task in one training step. This file knows no HTML.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import DataError
from engine.records import Episode, RunFolder, Step, Trajectory, read_episodes
from engine.training.advantages import NOTHING

SAMPLES = 2
"""How many of the best episodes of a role are shown, and of the worst; each of another task."""
MOST_TASKS = 12
"""Rows of a role's table."""
MOST_TEXT = 12_000
"""Characters of a prompt or response that are shown."""


@dataclass(slots=True)
class TaskGroups:
    """How often a task's groups had rewards that were all the same, and which."""

    task: str
    question: str = ""
    seen: int = 0
    """Groups with at least two rewards."""
    easy: int = 0
    """Groups whose rewards were all 1 or more."""
    hard: int = 0
    """Groups whose rewards were all 0 or less."""
    other: int = 0
    """Groups whose rewards were all equal, between 0 and 1."""
    advantage: float = 0.0
    """The greatest advantage, without its sign, that an equal group had."""

    @property
    def equal(self) -> int:
        """Groups whose rewards were all the same."""
        return self.easy + self.hard + self.other


@dataclass(frozen=True, slots=True)
class RoleGroups:
    """A role's groups over the whole run."""

    role: str
    seen: int
    equal: int
    tasks: Sequence[TaskGroups]
    """Those that taught nothing most often, first."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An episode to show, and why: such as `best solver`."""

    episode: Episode
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Samples:
    """The sample episodes of one step: of the last that has any."""

    split: str
    step: int
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Digest:
    """What the report shows of a run's episodes."""

    groups: Sequence[RoleGroups] = ()
    samples: Sequence[Samples] = ()
    unreadable: int = 0
    """Lines that are no episode and were passed over, not counting last ones cut short."""


@dataclass(slots=True)
class _Group:
    question: str
    rewards: list[float] = field(default_factory=list[float])
    advantage: float = 0.0


def read_digest(folder: Path, roles: Iterable[str]) -> Digest:
    """Read every episode of the run once. Raises DataError where a file cannot be read."""
    run = RunFolder(folder)
    broken: list[DataError] = []
    counts: dict[str, dict[str, TaskGroups]] = {role: {} for role in roles}
    train: Samples | None = None
    for step, path in run.episodes_files("train"):
        best, groups = _Best(), defaultdict[tuple[str, str], _Group](lambda: _Group(""))
        for episode in read_episodes(path, broken.append):
            _add(episode, groups)
            best.add(episode)
        _count(groups, counts)
        train = best.samples("train", step) or train
    validation: Samples | None = None
    for step, path in reversed(run.episodes_files("validation")):
        best = _Best()
        for episode in read_episodes(path, broken.append):
            best.add(episode)
        if validation := best.samples("validation", step):
            break
    samples = [shown for shown in (train, validation) if shown is not None]
    shown_groups = tuple(_role_groups(role, tasks) for role, tasks in counts.items() if tasks)
    return Digest(shown_groups, tuple(samples), len(broken))


def advantages(steps: Iterable[Step]) -> list[float]:
    """The advantages of all tokens of some steps."""
    return [value for step in steps for value in step.advantages]


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


def _add(episode: Episode, groups: dict[tuple[str, str], _Group]) -> None:
    for trajectory in episode.trajectories:
        if trajectory.reward is None:
            continue
        group = groups[trajectory.name, episode.task_id]
        group.question = group.question or question(episode.task, episode.task_id)
        group.rewards.append(trajectory.reward)
        if not trajectory.masked:
            largest = max((abs(value) for value in advantages(trajectory.steps)), default=0.0)
            group.advantage = max(group.advantage, largest)


def _count(groups: Mapping[tuple[str, str], _Group], counts: dict[str, dict[str, TaskGroups]]) -> None:
    for (role, task), group in groups.items():
        if len(group.rewards) < 2:
            continue
        row = counts.setdefault(role, {}).setdefault(task, TaskGroups(task))
        row.seen += 1
        low, high = min(group.rewards), max(group.rewards)
        if high - low > NOTHING:
            continue
        row.question = row.question or group.question
        row.advantage = max(row.advantage, group.advantage)
        if low >= 1:
            row.easy += 1
        elif high <= 0:
            row.hard += 1
        else:
            row.other += 1


def _role_groups(role: str, tasks: Mapping[str, TaskGroups]) -> RoleGroups:
    rows = sorted(tasks.values(), key=lambda row: (-row.equal, row.seen, row.task))
    return RoleGroups(
        role,
        sum(row.seen for row in rows),
        sum(row.equal for row in rows),
        tuple(row for row in rows[:MOST_TASKS] if row.equal),
    )


class _Best:
    """The best and the worst episodes for each role, by the role's mean advantage, else its reward."""

    def __init__(self) -> None:
        self._kept: defaultdict[tuple[str, str], list[tuple[float, Episode, str]]] = defaultdict(list)

    def add(self, episode: Episode) -> None:
        for trajectory in episode.trajectories:
            if (worth := _worth(trajectory)) is not None:
                name = instance(episode, trajectory)
                self._offer(("best", trajectory.name), worth, episode, f"best {name}")
                self._offer(("worst", trajectory.name), -worth, episode, f"worst {name}")

    def samples(self, split: str, step: int) -> Samples | None:
        """What was kept; None where there was no episode."""
        reasons: dict[int, list[str]] = {}
        episodes: dict[int, Episode] = {}
        for _, kept in sorted(self._kept.items(), key=lambda item: item[0][0]):
            for _, episode, reason in kept:
                episodes[id(episode)] = episode
                reasons.setdefault(id(episode), []).append(reason)
        samples = [Sample(episode, tuple(reasons[key])) for key, episode in episodes.items()]
        return Samples(split, step, samples) if samples else None

    def _offer(self, key: tuple[str, str], worth: float, episode: Episode, reason: str) -> None:
        kept = self._kept[key]
        same = next((item for item in kept if item[1].task_id == episode.task_id), None)
        if same is not None:
            if worth <= same[0]:
                return
            kept.remove(same)
        elif len(kept) == SAMPLES and worth <= kept[-1][0]:
            return
        kept.append((worth, episode, reason))
        kept.sort(key=lambda item: -item[0])
        del kept[SAMPLES:]


def _worth(trajectory: Trajectory) -> float | None:
    values = advantages(trajectory.steps)
    return sum(values) / len(values) if values else trajectory.reward
