"""Setup of a training, and the episodes that it samples from the policies' current weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Episode, Observer, RunFolder, Task
from rolegraph.engine.run import Isolation, jobs, stream
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.policies import Policies


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Plan, data, open models and folder of a training; the caller opens and closes them."""

    plan: Plan
    seed: int
    steps: int
    """Number of training steps."""
    tasks: Sequence[Task]
    """Training tasks."""
    validation_tasks: Sequence[Task]
    """Validation tasks; empty if the spec has none."""
    policies: Policies
    models: Mapping[ModelRef, LimitedModel]
    """Models of frozen roles, and teachers."""
    isolation: Isolation
    folder: RunFolder
    observe: Observer


class Rollouts(AbstractAsyncContextManager["Rollouts"]):
    """Context manager that starts batches of episodes, and cancels unfinished ones when it exits."""

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        self._running: set[asyncio.Task[list[Episode]]] = set()

    async def __aexit__(self, *_: object) -> None:
        for batch in self._running:
            batch.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def start(self, tasks: Sequence[Task], rollouts: int, seed: int) -> asyncio.Task[list[Episode]]:
        """Start K episodes of each of P tasks with the policies' current weights.

        Args:
            tasks: the P tasks.
            rollouts: K.
            seed: seed of the batch; each episode derives its own.

        Returns:
            An asyncio task whose result is the P·K episodes, ordered by task, then by rollout.
        """
        setup = self._setup
        models = [
            setup.models[endpoint.model]
            if endpoint.policy is None
            else await setup.policies.sampler(endpoint.policy)
            for endpoint in setup.plan.endpoints
        ]
        batch = asyncio.create_task(self._collect(tasks, rollouts, seed, models))
        self._running.add(batch)
        batch.add_done_callback(self._running.discard)
        return batch

    async def _collect(
        self, tasks: Sequence[Task], rollouts: int, seed: int, models: Sequence[LimitedModel]
    ) -> list[Episode]:
        setup = self._setup
        episodes = stream(
            setup.plan,
            jobs(tasks, rollouts, seed),
            models,
            isolation=setup.isolation,
            concurrency=max(1, len(tasks) * rollouts),
            observe=setup.observe,
        )
        place = {task["id"]: number for number, task in enumerate(tasks)}
        return sorted([e async for e in episodes], key=lambda e: (place[e.task_id], e.rollout))
