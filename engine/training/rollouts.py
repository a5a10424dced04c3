"""Episodes of the policy in training, with the weights that it has when they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from engine.models.limit import Gate
from engine.records import Episode, Task
from engine.run.scheduler import Workflow
from engine.run.stream import stream
from engine.spec.models import ModelRef
from engine.training.setup import Setup

POLICY = ModelRef(provider="tinker", name="the policy in training")
"""Stands for the policy in a plan whose trainable roles sample from it."""


class Rollouts:
    """Episodes of the current policy. Weights are asked for once for each version."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._plan = replace(
            setup.plan,
            roles=tuple(replace(r, model=POLICY) if r.trainable else r for r in setup.plan.roles),
        )
        self._gate: tuple[int, Gate] | None = None
        self._ahead: set[asyncio.Task[list[Episode]]] = set()

    async def __aenter__(self) -> Rollouts:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)

    async def start(self, tasks: Sequence[Task], rollouts: int, seed: int) -> asyncio.Task[list[Episode]]:
        """Begin the episodes of some tasks with the weights as they are now: K for each, in order."""
        gates = dict(self._setup.gates)
        gates[POLICY] = await self._policy()
        workflow = Workflow(self._plan, gates, self._setup.isolation, seed)

        async def run() -> list[Episode]:
            found = [
                e async for e in stream(workflow, tasks, rollouts=rollouts, concurrency=len(tasks) * rollouts)
            ]
            place = {task["id"]: number for number, task in enumerate(tasks)}
            return sorted(found, key=lambda e: (place[e.task_id], e.rollout_idx))

        task = asyncio.create_task(run())
        self._ahead.add(task)
        task.add_done_callback(self._ahead.discard)
        return task

    async def _policy(self) -> Gate:
        learner = self._setup.learner
        if self._gate is None or self._gate[0] != learner.version:
            self._gate = (
                learner.version,
                Gate(await learner.sampler(), self._setup.plan.spec.model.concurrency),
            )
        return self._gate[1]
