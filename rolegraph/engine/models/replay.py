"""Answers from a recording: those of an earlier run, equal to the token.

The file is written by `rolegraph run --out`: one `Episode.to_dict()` a line. A call is found by its identity;
it gets the recorded answer if its prompt equals the recorded prompt.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple, Self

from rolegraph.engine.errors import DataError, ModelError
from rolegraph.engine.limits.records import VALUE_SHOWN
from rolegraph.engine.models.types import Completion, Request
from rolegraph.engine.prompts.tools import calls_of
from rolegraph.engine.records import (
    CallId,
    Episode,
    Message,
    NodeId,
    RunFolder,
    Step,
    Trajectory,
    read_episodes,
)
from rolegraph.engine.records.jsonl import is_cut

_logger = logging.getLogger(__name__)


class RecordedCall(NamedTuple):
    """Recorded model call: its prompt, and its answer or the reason for its failure."""

    answer: Completion | None
    failure: str = ""
    """Reason why there is no answer; empty with an answer."""
    messages: Sequence[Message] = ()


def recorded_calls(episodes: Iterable[Episode]) -> dict[CallId, RecordedCall]:
    """Return every recorded call by its identity; each step of a trajectory is a call."""
    calls: dict[CallId, RecordedCall] = {}
    for episode in episodes:
        for node, trajectory in _nodes(episode):
            if trajectory.steps and not trajectory.by_model:
                continue  # a tool is run again
            counts: Counter[int] = Counter()
            for step in trajectory.steps:
                counts[step.round] += 1
                turn = node._replace(round=step.round)
                call = CallId(episode.task_id, episode.rollout, turn, counts[step.round])
                calls[call] = RecordedCall(_completion(step), messages=step.chat_completions[:-1])
            if not trajectory.steps:
                reason = trajectory.failure.message if trajectory.failure else "it has no steps"
                calls[CallId(episode.task_id, episode.rollout, node)] = RecordedCall(None, reason)
    return calls


class Replay:
    """Model that returns recorded answers: to each call the answer of the same call in a recording.

    With `any_prompt`, a call whose prompt has changed is answered as well.
    """

    def __init__(self, calls: Mapping[CallId, RecordedCall], *, any_prompt: bool = False) -> None:
        self._calls, self._any_prompt = calls, any_prompt
        self._changed: dict[tuple[str, int], str] = {}
        """First role of an episode whose prompt differs from the recording, by task and rollout."""

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode], *, any_prompt: bool = False) -> Self:
        """Return a Replay model that answers with the recorded calls of these episodes."""
        return cls(recorded_calls(episodes), any_prompt=any_prompt)

    @classmethod
    def from_file(cls, path: str | Path, *, any_prompt: bool = False) -> Self:
        """Return a replay of an episodes file; an incomplete last line is skipped with a warning in the log.

        Args:
            path: The file, or the folder of a run.
            any_prompt: True to answer calls whose prompt has changed.

        Raises:
            DataError: The file is missing, or is not a file of episodes.
        """
        file = Path(path)
        file = RunFolder(file).episodes if file.is_dir() else file
        try:
            replay = cls.from_episodes(read_episodes(file), any_prompt=any_prompt)
        except DataError as error:
            raise DataError(f"{error}. Expected a file of episodes, as `rolegraph run` writes it.") from error
        if is_cut(file):
            _logger.warning("the last line of %s was cut: its episode is not replayed", file)
        return replay

    async def complete(self, request: Request) -> Completion:
        """Return the recorded answer; raises ModelError if the answer is missing or the prompt differs."""
        call = request.id._replace(attempt=0)
        recorded_call = self._calls.get(call)
        if recorded_call is None:
            raise ModelError(f"Not recorded: {call}. {self._nearest(call)}")
        if recorded_call.answer is None:
            raise ModelError(f"Recorded as failed, {call}: {recorded_call.failure}")
        if recorded_call.messages and not self._any_prompt:
            difference = _difference(recorded_call.messages, request.messages)
            if difference:
                role = call.node.role
                first_role = self._changed.setdefault((call.task, call.rollout), role)
                before_it = "" if first_role == role else f", nor is the prompt of {first_role} before it"
                raise ModelError(
                    f"the prompt of {role} is not the recorded one{before_it}: {difference}; "
                    f"--replay-any (replay_any: true) replays the recorded answer ({call})"
                )
        return recorded_call.answer

    async def aclose(self) -> None:
        """Do nothing: a replay holds no connection."""

    @cached_property
    def _by_task(self) -> Mapping[str, list[CallId]]:
        calls: dict[str, list[CallId]] = {}
        for call in self._calls:
            calls.setdefault(call.task, []).append(call)
        return calls

    def _nearest(self, call: CallId) -> str:
        if calls := self._by_task.get(call.task):
            return f"The nearest call on record: {min(calls, key=lambda other: _distance(call, other))}."
        if self._by_task:
            some_task = next(iter(self._by_task))
            return f"The record holds {len(self._by_task)} other tasks, such as {some_task!r}."
        return "The record is empty."


def _distance(call: CallId, other: CallId) -> tuple[bool, int, int]:
    node, other_node = call.node, other.node
    return other_node.role != node.role, abs(other.rollout - call.rollout), abs(other_node.index - node.index)


def _difference(recorded: Sequence[Message], asked: Sequence[Message]) -> str:
    """Describe the first message in which a prompt differs from the recorded one; empty if both are equal."""
    was, new = ([f"{m['role']}: {m.get('content') or ''}" for m in prompt] for prompt in (recorded, asked))
    for number, (line, new_line) in enumerate(zip_longest(was, new), 1):
        if line != new_line:
            return f"message {number} was {_excerpt(line, new_line)}, and is {_excerpt(new_line, line)}"
    return ""


def _excerpt(text: str | None, other: str | None) -> str:
    """Quote `text` around its first difference from `other`; `missing` for None."""
    if text is None:
        return "missing"
    common_length = len(commonprefix((text, other or "")))  # noqa: RUF071  # of any two texts, not of paths
    start = max(text.rfind("\n", 0, common_length) + 1, common_length - VALUE_SHOWN.most // 2)
    end = start + VALUE_SHOWN.most
    return f"{'…' if start else ''}{text[start:end]!r}{'…' if text[end:] else ''}"


def _nodes(episode: Episode) -> Iterator[tuple[NodeId, Trajectory]]:
    """Yield (role and instance index, trajectory) for each trajectory of an episode.

    Episodes of rLLM have no index; their instances of a role are numbered in order.
    """
    node_counts = Counter(trajectory.node for trajectory in episode.trajectories)
    shared_roles = {node.role for node, times in node_counts.items() if times > 1}
    role_counts: Counter[str] = Counter()
    for trajectory in episode.trajectories:
        role_counts[trajectory.name] += 1
        index = role_counts[trajectory.name] if trajectory.name in shared_roles else trajectory.index
        yield NodeId(trajectory.name, index), trajectory


def _completion(step: Step) -> Completion:
    shared_fields: dict[str, Any] = {
        name: getattr(step, name) for name in Step._fields if name in Completion._fields
    }
    return Completion(
        text=step.model_response,
        finish_reason=step.metadata.get("finish_reason") or "stop",
        usage=step.usage,
        special_tokens=step.metadata.get("special_tokens") or (),
        unusable_numbers=step.metadata.get("unusable_numbers") or (),
        calls=calls_of(step.chat_completions[-1]) if step.chat_completions else (),
        **shared_fields,
    )
