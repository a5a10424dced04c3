"""Identities of role instances, calls and groups, and the seeds derived from them.

Numbers count from 1, except rollouts, which count from 0 as in rLLM. No identity is parsed from text; where
rLLM needs a string id, the bridge formats it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

SEEDS = 0x7FFFFFFF
"""Bit mask of seeds, which are below 2³¹."""


class NodeId(NamedTuple):
    """Identity of a turn of a role instance, which is a node of the DAG."""

    role: str
    """Name of the role."""
    index: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index is never used here
    """Number of the role's instance."""
    round: int = 1
    """Round of the role's loop."""

    def __str__(self) -> str:
        return f"{self.role} {self.index}" + (f", round {self.round}" if self.round > 1 else "")


class CallId(NamedTuple):
    """Identity of a model call. A replay finds the recorded call by all fields except `attempt`."""

    task: str
    """`id` of the task."""
    rollout: int
    """Number of the rollout, from 0."""
    node: NodeId
    """Turn that makes the call."""
    call: int = 1
    """Number of the call in its turn."""
    attempt: int = 0
    """Number of earlier attempts at the call, whose answers could not be parsed."""

    def __str__(self) -> str:
        call = f", call {self.call}" if self.call > 1 else ""
        return f"task {self.task!r}, rollout {self.rollout}, {self.node}{call}"


MAIN = "main"
"""Name of the default policy: the spec's `model` and its trained weights."""
PolicyOf = Callable[[str, int], str]
"""Function from a role's name and an instance's number to the name of the policy."""


class Extent(StrEnum):
    """Tasks whose members a group compares, as the spec's key `over` states it."""

    TASK = "task"
    """One task."""
    BATCH = "batch"
    """All tasks of a step."""

    def task_of(self, task: str) -> str:
        """Return the `task` of the key of a group with a member of `task`; empty for a group over all
        tasks."""
        return task if self is Extent.TASK else ""

    def tasks(self, batch_size: int) -> int:
        """Return the number of tasks whose members a group compares."""
        return 1 if self is Extent.TASK else batch_size

    @property
    def phrase(self) -> str:
        """Words for the tasks, in messages: `on this task` or `over all tasks of the step`."""
        return "on this task" if self is Extent.TASK else "over all tasks of the step"


class GroupKey(NamedTuple):
    """Identity of a group: trajectories or turns of one role on one task over all rollouts, or on all tasks
    of a step.

    The fields after `task` and `role` distinguish the groups of a role.
    """

    task: str
    """`id` of the task; empty for a group over all tasks of a step."""
    role: str
    """Name of the role; empty for a group over all roles of the policy."""
    policy: str = MAIN
    """Name of the policy whose weights answered."""
    round: int = 0
    """Round of the compared turns; 0 if turns of all rounds, or trajectories, are compared."""
    prompt: str = ""
    """Digest of the prompt, if only turns with the same prompt are compared; else empty."""
    by: str = ""
    """Digest of the value of the spec's expression, if only members with the same value are compared; else
    empty."""
    part: int = 0
    """Position of the grouping, from 0, in the role's list of groupings."""

    @property
    def apart(self) -> dict[str, str | int]:
        """Fields after `task` and `role` that differ from their defaults."""
        values = zip(self._fields[2:], self[2:], strict=True)
        return {name: value for name, value in values if value != self._field_defaults[name]}


def derive_seed(seed: int, *purpose: object) -> int:
    """Derive a seed below 2³¹ for a purpose from another seed."""
    key = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) & SEEDS


def salt_of(node: NodeId) -> int:
    """Return the number from which the seeds of a turn's calls are derived, different for each turn of an
    episode."""
    return derive_seed(0, *node)


def call_seed(episode: int, salt: int, call: int, attempt: int) -> int:
    """Derive the sampling seed of one attempt of a model call from the episode's seed and the node's salt."""
    return (episode + salt + call * 0x85EBCA6B + attempt * 0xC2B2AE35) & SEEDS
