"""Turns of an episode, each with its calls, reward and failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolegraph.engine.records import Episode, Message, NodeId, Step, Trajectory


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One model call, or one tool run of a role without a model, with its messages."""

    step: Step
    earlier: Sequence[Message]
    """Messages of the prompt that the previous call already had in its prompt or response; for the first call
    of a fork, those that the forked turn had."""
    prompt: Sequence[Message]
    """Messages of the prompt that the previous call did not have."""
    answer: Message
    """Message of the response; empty if none was recorded."""
    used: Sequence[tuple[str, str]]
    """Names of the tools that ran, each with its error or an empty text."""
    demonstration: str
    """Demonstration of the turn; empty without a demonstration."""
    forked: NodeId | None = None
    """Turn of another role whose conversation the turn continues."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """Turn of a role instance; without calls if it failed before an answer."""

    node: NodeId
    calls: Sequence[CallRecord] = ()
    trajectory: Trajectory | None = None
    failure: Mapping[str, Any] | None = None
    """`name` and `message` of the failure, and `place` where the user's code raised."""
    is_last: bool = True
    """True where the turn is the last of its trajectory."""

    @property
    def seconds(self) -> float:
        """Sum of the durations of the calls, in seconds, without waits for a free slot; 0 if not recorded."""
        return sum(call.step.metadata.get("seconds", 0.0) for call in self.calls)

    @property
    def span(self) -> tuple[float, float] | None:
        """Start of the first call and end of the last, in seconds from the start of the episode.

        None without a call, and for records of earlier versions, which lack these times.
        """
        if not self.calls:
            return None
        first_metadata, last_metadata = self.calls[0].step.metadata, self.calls[-1].step.metadata
        start, end = first_metadata.get("started"), last_metadata.get("started")
        return None if start is None or end is None else (start, end + last_metadata.get("seconds", 0.0))

    @property
    def reward(self) -> float | None:
        """Reward of the turn's last call; for a turn without calls, the reward of its trajectory."""
        if self.calls:
            return self.calls[-1].step.reward
        return None if self.trajectory is None else self.trajectory.reward

    @property
    def masked(self) -> bool:
        """True if the turn is left out of the gradient."""
        return any(call.step.masked for call in self.calls)

    @property
    def begins_anew(self) -> bool:
        """True if the turn started a new conversation."""
        return any(call.step.metadata.get("restarted") for call in self.calls)

    @property
    def state(self) -> str:
        """State of the turn in one word: `failed`, `masked` or `done`."""
        return "failed" if self.failure is not None else "masked" if self.masked else "done"


def turns(episode: Episode) -> dict[NodeId, TurnRecord]:
    """Return a TurnRecord for each turn of an episode, failed turns without an answer included, by node."""
    failures = episode.failures
    chats = {
        trajectory.node._replace(round=step.round): step.chat_completions
        for trajectory in episode.trajectories
        for step in trajectory.steps
    }
    by_node: dict[NodeId, TurnRecord] = {}
    for trajectory in episode.trajectories:
        messages_before: Sequence[Message] = ()
        steps_by_turn = trajectory.turns
        for number, steps in enumerate(steps_by_turn, 1):
            calls: list[CallRecord] = []
            for step in steps:
                fork_place = step.metadata.get("forked")
                trunk = None if fork_place is None else NodeId(**fork_place)
                calls.append(_asked(step, messages_before if trunk is None else chats.get(trunk, ()), trunk))
                messages_before = step.chat_completions
            node = NodeId(trajectory.name, trajectory.index, steps[0].round)
            is_last = number == len(steps_by_turn)
            failure = failures.get(node)
            if failure is None and is_last and trajectory.failure is not None and not failures:
                failure = trajectory.failure.to_dict()  # of another writer, who notes no failures of turns
            by_node[node] = TurnRecord(node, calls, trajectory, failure, is_last)
        if not trajectory.steps and trajectory.failure is not None:
            failed = next((node for node in failures if node[:2] == trajectory.node[:2]), trajectory.node)
            by_node[failed] = TurnRecord(failed, (), trajectory, trajectory.failure.to_dict())
    for node, failure in failures.items():
        by_node.setdefault(node, TurnRecord(node, failure=failure, is_last=False))
    return by_node


def _asked(step: Step, before: Sequence[Message], forked: NodeId | None) -> CallRecord:
    chat = [*step.chat_completions]
    answer: Message = chat.pop() if chat and chat[-1].get("role") == "assistant" else {}
    demonstration = step.metadata.get("demonstration")
    repeated_count = len(before) if before and chat[: len(before)] == [*before] else 0
    return CallRecord(
        step=step,
        earlier=chat[:repeated_count],
        prompt=chat[repeated_count:],
        answer=answer,
        used=[(used["name"], used.get("error", "")) for used in step.metadata.get("calls", ())],
        demonstration=demonstration["text"] if demonstration else "",
        forked=forked,
    )
