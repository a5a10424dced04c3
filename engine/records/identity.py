"""Which role instance, which call, which group: one identity each, and the seeds that follow from them.

Numbers count from 1; a rollout alone counts from 0, as in rLLM. Nothing here is parsed back from text: where
another system wants a string (rLLM's episode and group ids), it is rendered there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

SEEDS = 0x7FFFFFFF
"""Seeds lie below 2³¹."""


class NodeId(NamedTuple):
    """One turn of one role instance: a node of the DAG."""

    role: str
    index: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple's own is never used here
    """The instance's number."""
    round: int = 1

    def __str__(self) -> str:
        return f"{self.role} {self.index}" + (f", round {self.round}" if self.round > 1 else "")


class CallId(NamedTuple):
    """One model call. A replay knows a call by all but its attempt."""

    task: str
    rollout: int
    node: NodeId
    call: int = 1
    """Which call of the node's turn."""
    attempt: int = 0
    """How often it was made before, when its answer could not be read."""

    def __str__(self) -> str:
        call = f", call {self.call}" if self.call > 1 else ""
        return f"task {self.task!r}, rollout {self.rollout}, {self.node}{call}"


MAIN = "main"
"""The policy that roles share which name none: the spec's `model`, and what training makes of it."""
PolicyOf = Callable[[str, int], str]
"""The policy of a role's instance, by the role's name and the instance's number."""


class GroupKey(NamedTuple):
    """With what a trajectory or a turn is compared: its role's on the same task, over all rollouts."""

    task: str
    role: str
    policy: str = MAIN
    """Whose weights its answers came from."""
    round: int = 0
    """Where turns of one round are compared; 0 where it makes no difference."""
    prompt: str = ""
    """Where turns that were asked the same are compared: a digest of the messages; else empty."""

    @property
    def apart(self) -> dict[str, str | int]:
        """What sets the group apart from others of its task and role, by field; as JSON has it."""
        return {
            name: value
            for name, value in zip(self._fields[2:], self[2:], strict=True)
            if value != self._field_defaults[name]
        }


def derive_seed(seed: int, *purpose: object) -> int:
    """A seed of its own for each purpose."""
    key = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) & SEEDS


def salt_of(node: NodeId) -> int:
    """What sets a node's seeds apart from those of the episode's others."""
    return derive_seed(0, *node)


def call_seed(episode: int, salt: int, call: int, attempt: int) -> int:
    """The seed of one call from its episode's, so that no two calls of a run draw the same numbers."""
    return (episode + salt + call * 0x85EBCA6B + attempt * 0xC2B2AE35) & SEEDS
