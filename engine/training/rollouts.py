"""Episodes of the policies in training, with the weights that they have when the episodes begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Episode, Task
from rolegraph.engine.run import jobs, stream
from rolegraph.engine.training.setup import TrainingSetup


class Rollouts:
    """Starts batches of episodes, and cancels those that nobody took."""

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        self._ahead: set[asyncio.Task[list[Episode]]] = set()

    async def __aenter__(self) -> Rollouts:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)

    async def start(self, tasks: Sequence[Task], rollouts: int, seed: int) -> asyncio.Task[list[Episode]]:
        """Begin the episodes of some tasks with the weights as they are now: K for each, in order."""
        models = await self._models()
        setup = self._setup

        async def run() -> list[Episode]:
            episodes = stream(
                setup.plan,
                jobs(tasks, rollouts, seed),
                models,
                isolation=setup.isolation,
                concurrency=len(tasks) * rollouts,
                observe=setup.observe,
            )
            place = {task["id"]: number for number, task in enumerate(tasks)}
            return sorted([e async for e in episodes], key=lambda e: (place[e.task_id], e.rollout))

        batch = asyncio.create_task(run())
        self._ahead.add(batch)
        batch.add_done_callback(self._ahead.discard)
        return batch

    async def _models(self) -> list[LimitedModel]:
        """The models of the plan's endpoints: a policy's latest weights, or a model as it is."""
        setup = self._setup
        return [
            setup.models[endpoint.model]
            if endpoint.policy is None
            else await setup.policies.sampler(endpoint.policy)
            for endpoint in setup.plan.endpoints
        ]
