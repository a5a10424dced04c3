"""Answers from a recording: what each role instance said in an earlier run, given back to the token.

A file is what `rolegraph run --out` writes: one `Episode.to_dict()` a line. Knows no prompts: a call is
answered by which call it is, not by what it asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from engine.errors import DataError, ModelError
from engine.models.types import Completion, Request
from engine.records import Episode, Step
from engine.records.episodes import read_episodes

Key = tuple[str, int, str, int]
"""Which call: task id, rollout (from 0), role, index (from 1)."""


class Replay:
    """A model that answers each call as it was answered before."""

    def __init__(self, answers: Mapping[Key, Completion], failures: Mapping[Key, str] | None = None) -> None:
        """`failures` are calls that gave no answer then, and give none now: the reason of each."""
        self._answers = answers
        self._failures: Mapping[Key, str] = failures or {}
        self._keys_of_task: dict[str, list[Key]] = {}
        for key in (*self._answers, *self._failures):
            self._keys_of_task.setdefault(key[0], []).append(key)

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode]) -> Self:
        """Replay `episodes`: the last step of each trajectory is its answer."""
        answers: dict[Key, Completion] = {}
        failures: dict[Key, str] = {}
        for episode in episodes:
            for name, index, position in _instances(episode):
                trajectory = episode.trajectories[position]
                key = (episode.task_id, episode.rollout_idx, name, index)
                if trajectory.steps:
                    answers[key] = _completion(trajectory.steps[-1])
                else:
                    reason = trajectory.failure.message if trajectory.failure else "it has no steps"
                    failures[key] = reason
        return cls(answers, failures)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Replay an episodes file; raises DataError for one that is missing or holds something else."""
        try:
            return cls.from_episodes(read_episodes(Path(path)))
        except DataError as error:
            raise DataError(f"{error}. Expected a file of episodes, as `rolegraph run` writes it.") from error

    async def complete(self, request: Request) -> Completion:
        """The recorded answer; raises ModelError where there was none."""
        key = (request.task_id, request.rollout, request.role, request.index)
        answer = self._answers.get(key)
        if answer is not None:
            return answer
        if key in self._failures:
            raise ModelError(f"Recorded as failed, {_words(key)}: {self._failures[key]}")
        raise ModelError(f"Not recorded: {_words(key)}. {self._nearest(key)}")

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def _nearest(self, key: Key) -> str:
        task, rollout, role, index = key
        keys = self._keys_of_task.get(task)
        if keys:
            nearest = min(keys, key=lambda k: (k[2] != role, abs(k[1] - rollout), abs(k[3] - index)))
            return f"The nearest call on record: {_words(nearest)}."
        if self._keys_of_task:
            some = next(iter(self._keys_of_task))
            return f"The record holds {len(self._keys_of_task)} other tasks, such as {some!r}."
        return "The record is empty."


def _instances(episode: Episode) -> Iterator[tuple[str, int, int]]:
    """`(role, index, position)` of each trajectory.

    Episodes that rLLM wrote carry no index, so instances of a role that share one are counted as they come.
    """
    stated = Counter((trajectory.name, trajectory.index) for trajectory in episode.trajectories)
    shared = {name for (name, _), times in stated.items() if times > 1}
    counted: Counter[str] = Counter()
    for position, trajectory in enumerate(episode.trajectories):
        counted[trajectory.name] += 1
        index = counted[trajectory.name] if trajectory.name in shared else trajectory.index
        yield trajectory.name, index, position


def _completion(step: Step) -> Completion:
    return Completion(
        text=step.model_response,
        thought=step.thought,
        prompt_ids=step.prompt_ids,
        response_ids=step.response_ids,
        logprobs=step.logprobs,
        finish_reason=str(step.metadata.get("finish_reason", "stop")),
        weight_version=step.weight_version,
    )


def _words(key: Key) -> str:
    task, rollout, role, index = key
    return f"task {task!r}, rollout {rollout}, {role} {index}"
