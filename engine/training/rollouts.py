"""Setup of a training, and the episodes that it samples from the policies' current weights."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Episode, Observer, PastCopy, RunFolder, Task
from rolegraph.engine.run import Isolation, jobs, stream
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.past import Opponents, PastSelves
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
    past: PastSelves
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

    async def start(
        self, tasks: Sequence[Task], rollouts: int, seed: int, opponents: Sequence[Opponents] = ()
    ) -> asyncio.Task[list[Episode]]:
        """Start K episodes of each of P tasks with the policies' current weights.

        Args:
            tasks: the P tasks.
            rollouts: K.
            seed: seed of the batch; each episode derives its own.
            opponents: past selves that each task plays against; none are the policies' starts.

        Returns:
            An asyncio task whose result is the P·K episodes, ordered by task, then by rollout.
        """
        alike: dict[tuple[tuple[str, PastCopy], ...], list[Task]] = {}
        nobody: Opponents = {}
        for task, against in zip(tasks, opponents or [nobody] * len(tasks), strict=True):
            alike.setdefault(tuple(against.items()), []).append(task)
        tables = {against: await self._models(dict(against)) for against in alike}
        parts = [
            self._track(self._collect(own, rollouts, seed, tables[against], dict(against)))
            for against, own in alike.items()
        ]
        return self._track(self._joined(parts, [task["id"] for task in tasks]))

    def _track(self, work: Coroutine[None, None, list[Episode]]) -> asyncio.Task[list[Episode]]:
        """Start work that is cancelled when this context manager exits."""
        started = asyncio.create_task(work)
        self._running.add(started)
        started.add_done_callback(self._running.discard)
        return started

    async def _models(self, against: Opponents) -> list[LimitedModel]:
        """Return the models of the plan's endpoints."""
        setup = self._setup
        models: list[LimitedModel] = []
        for endpoint in setup.plan.endpoints:
            copy = against.get(endpoint.past) if endpoint.past else None
            if endpoint.policy is not None:
                models.append(await setup.policies.sampler(endpoint.policy))
            elif copy is not None and endpoint.past is not None and copy.sampler is not None:
                models.append(await setup.past.model(endpoint.past, copy.sampler, copy.version))
            else:
                models.append(setup.models[endpoint.model])
        return models

    async def _joined(
        self, parts: Sequence[asyncio.Task[list[Episode]]], order: Sequence[str]
    ) -> list[Episode]:
        place = {task: number for number, task in enumerate(order)}
        episodes = [episode for part in parts for episode in await part]
        return sorted(episodes, key=lambda e: (place[e.task_id], e.rollout))

    async def _collect(
        self,
        tasks: Sequence[Task],
        rollouts: int,
        seed: int,
        models: Sequence[LimitedModel],
        against: Opponents,
    ) -> list[Episode]:
        """Run the episodes of tasks with the same models; note the past selves in their metadata."""
        setup = self._setup
        episodes = stream(
            setup.plan,
            jobs(tasks, rollouts, seed),
            models,
            isolation=setup.isolation,
            concurrency=max(1, len(tasks) * rollouts),
            observe=setup.observe,
        )
        noted = {"past": {name: copy.version for name, copy in against.items()}} if against else {}
        return [e._replace(metadata={**e.metadata, **noted}) async for e in episodes]
