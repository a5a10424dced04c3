"""When each turn of an episode earns its role's reward: at once, beside what goes on, or when all have ended.

A slow reward holds up nobody. One that reads what others earned waits for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.records import Task
from rolegraph.engine.run.isolation import Isolation
from rolegraph.engine.run.reading import NOTHING_SEEN, RewardReader, own
from rolegraph.engine.run.scoring import is_earned, score, score_isolated
from rolegraph.engine.run.seeing import Results
from rolegraph.engine.run.session import NodeResult
from rolegraph.engine.run.world import EnvironmentSession
from rolegraph.engine.vocabulary import Reward, RewardInputs

Spawn = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
"""Starts work that belongs to the episode, which ends where the work raises. Nothing here keeps it: an
episode that knew itself through its rewards would be left to the garbage collector."""


class EpisodeStop(Exception):
    """A node with `then: fail` failed: the episode ends here."""


def settle(role: RolePlan, task: Task, result: NodeResult, isolation: Isolation, spawn: Spawn) -> None:
    """Score a turn that has ended, unless its reward reads others; raises Stop."""
    reward = role.reward
    if result.failure is None and reward is not None and not role.defers_reward:
        seen = own(role, result) if reward.reads_turn else NOTHING_SEEN
        if reward.timeout is None:
            score(role, task, result, seen)
        else:
            spawn(_beside(role, task, result, seen, isolation))
    if result.failure is not None:
        _stop_at_failure(role, result)


class LateRewards:
    """The rewards of an episode that read others.

    Nodes and roles are known by their positions in the plan.
    """

    __slots__ = ("_isolation", "_plan", "_results", "_task", "_world")

    def __init__(
        self, plan: Plan, task: Task, results: Results, world: EnvironmentSession | None, isolation: Isolation
    ) -> None:
        self._plan, self._task, self._results = plan, task, results
        self._world, self._isolation = world, isolation

    async def score(self, spawn: Spawn) -> None:
        """Score each turn once those that its reward reads are scored; raises Stop."""
        scoring: dict[int, asyncio.Task[None]] = {}
        reader = RewardReader(self._plan, self._results, self._world)
        for position in self._plan.reward_order:
            role = self._plan.roles[position]
            for node, result in self._of_role(position):
                reward = role.reward
                if reward is None or not is_earned(role, result):
                    continue
                before = self._scored_before(node, reward, scoring)
                if before or reward.timeout is not None:
                    seen = partial(reader.all, node, result, reward)
                    scoring[node] = spawn(self._after(before, role, result, seen))
                else:
                    score(role, self._task, result, reader.all(node, result, reward))
                    _stop_at_failure(role, result)

    def _scored_before(
        self, node: int, reward: Reward, scoring: Mapping[int, asyncio.Task[None]]
    ) -> list[asyncio.Task[None]]:
        """What a reward has to wait for."""
        if not scoring:
            return []
        read = (see for see in self._plan.reward_inputs.get(node, ()) if see.name in reward.roles)
        return [scoring[other] for see in read for other in see.nodes if other in scoring]

    async def _after(
        self,
        before: Sequence[asyncio.Task[None]],
        role: RolePlan,
        result: NodeResult,
        seen: Callable[[], RewardInputs],
    ) -> None:
        if before:
            await asyncio.wait(before)
        await _beside(role, self._task, result, seen(), self._isolation)

    def _of_role(self, position: int) -> list[tuple[int, NodeResult]]:
        """A role's turns that ran, with their nodes."""
        return [
            (place, result)
            for place, (node, result) in enumerate(zip(self._plan.nodes, self._results, strict=True))
            if node.role == position and result is not None
        ]


async def _beside(
    role: RolePlan, task: Task, result: NodeResult, seen: RewardInputs, isolation: Isolation
) -> None:
    await score_isolated(role, task, result, seen, isolation=isolation)
    _stop_at_failure(role, result)


def _stop_at_failure(role: RolePlan, result: NodeResult) -> None:
    if result.failure is not None and role.spec.on_failure.then == "fail":
        raise EpisodeStop
