"""Answers from a recording: what each role instance said in an earlier run, given back to the token.

A file is what `rolegraph run --out` writes: one `Episode.to_dict()` a line. A call is answered by which call
it is, if it asks what was asked then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from engine.errors import DataError, ModelError
from engine.models.types import Completion, Request
from engine.records import CallId, Episode, Message, NodeId, RunFolder, Step, Trajectory, read_episodes


class Recorded(NamedTuple):
    """What a call came to, and what it had asked; no messages where the record does not say."""

    answer: Completion | None
    failure: str = ""
    """Why there was no answer."""
    messages: Sequence[Message] = ()


class Replay:
    """A model that answers each call as it was answered before. Calls are known by all but their attempt."""

    def __init__(self, calls: Mapping[CallId, Recorded]) -> None:
        self._calls = calls
        self._calls_of_task: dict[str, list[CallId]] = {}
        for call in calls:
            self._calls_of_task.setdefault(call.task, []).append(call)

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode]) -> Self:
        """Replay `episodes`: each step of a trajectory is a call of it."""
        calls: dict[CallId, Recorded] = {}
        for episode in episodes:
            for node, trajectory in _nodes(episode):
                for number, step in enumerate(trajectory.steps, 1):
                    call = CallId(episode.task_id, episode.rollout, node, number)
                    calls[call] = Recorded(_completion(step), messages=step.chat_completions[:-1])
                if not trajectory.steps:
                    reason = trajectory.failure.message if trajectory.failure else "it has no steps"
                    calls[CallId(episode.task_id, episode.rollout, node)] = Recorded(None, reason)
        return cls(calls)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Replay an episodes file, or that of a run's folder.

        Raises DataError for one that is missing or holds something else.
        """
        file = Path(path)
        try:
            return cls.from_episodes(read_episodes(RunFolder(file).episodes if file.is_dir() else file))
        except DataError as error:
            raise DataError(f"{error}. Expected a file of episodes, as `rolegraph run` writes it.") from error

    async def complete(self, request: Request) -> Completion:
        """The recorded answer; raises ModelError where there was none, or to another question."""
        call = request.id._replace(attempt=0)
        recorded = self._calls.get(call)
        if recorded is None:
            raise ModelError(f"Not recorded: {call}. {self._nearest(call)}")
        if recorded.answer is None:
            raise ModelError(f"Recorded as failed, {call}: {recorded.failure}")
        if recorded.messages and not _same(recorded.messages, request.messages):
            raise ModelError(
                f"Recorded with another prompt, {call}: the templates of {call.node.role}, or what it sees, "
                "have changed since"
            )
        return recorded.answer

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def _nearest(self, call: CallId) -> str:
        calls = self._calls_of_task.get(call.task)
        if calls:
            return f"The nearest call on record: {min(calls, key=lambda other: _distance(call, other))}."
        if self._calls_of_task:
            some = next(iter(self._calls_of_task))
            return f"The record holds {len(self._calls_of_task)} other tasks, such as {some!r}."
        return "The record is empty."


def _distance(call: CallId, other: CallId) -> tuple[bool, int, int]:
    return (
        other.node.role != call.node.role,
        abs(other.rollout - call.rollout),
        abs(other.node.index - call.node.index),
    )


def _same(recorded: Sequence[Message], asked: Sequence[Message]) -> bool:
    return [(m["role"], m["content"]) for m in recorded] == [(m["role"], m["content"]) for m in asked]


def _nodes(episode: Episode) -> Iterator[tuple[NodeId, Trajectory]]:
    """Each trajectory with its node.

    Episodes that rLLM wrote carry no index, so instances of a role that share one are counted as they come.
    """
    stated = Counter(trajectory.node for trajectory in episode.trajectories)
    shared = {node.role for node, times in stated.items() if times > 1}
    counted: Counter[str] = Counter()
    for trajectory in episode.trajectories:
        counted[trajectory.name] += 1
        index = counted[trajectory.name] if trajectory.name in shared else trajectory.index
        yield NodeId(trajectory.name, index), trajectory


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
