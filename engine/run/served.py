"""Episodes with the models that each job names, as a worker of a training makes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel, ServedModel, open_served
from rolegraph.engine.records import Episode, Observer
from rolegraph.engine.run.scheduler import run_episode
from rolegraph.engine.run.turn import EpisodeJob
from rolegraph.engine.vocabulary.isolation import Isolation


class ServedEpisodes(AbstractAsyncContextManager["ServedEpisodes"]):
    """Maker of episodes that opens a model when the first job names it.

    A model is closed when a job names another one and no running episode uses it: the weights of a training
    change with each step. The end of the block closes all.

    Args:
        plan: The workflow.
        isolation: The processes for rewards and tools with a time limit.
    """

    def __init__(self, plan: Plan, isolation: Isolation) -> None:
        self._plan, self._isolation = plan, isolation
        self._models: dict[ServedModel, asyncio.Task[LimitedModel]] = {}
        self._in_use = Counter[ServedModel]()

    async def __aexit__(self, *_: object) -> None:
        await self._close([*self._models])

    async def make(self, job: EpisodeJob, observe: Observer | None = None) -> Episode:
        """Make the episode of a job with its models; raises the errors of `open_served`."""
        self._in_use.update(job.models)
        try:
            if not self._models.keys() >= {*job.models}:
                await self._close([served for served in self._models if not self._in_use[served]])
            models = [await asyncio.shield(self._opening(served)) for served in job.models]
            return await run_episode(self._plan, job, models, isolation=self._isolation, observe=observe)
        finally:
            self._in_use.subtract(job.models)

    def _opening(self, served: ServedModel) -> asyncio.Task[LimitedModel]:
        """Return the task that opens a model, the same for all jobs."""
        if served not in self._models:
            self._models[served] = asyncio.create_task(_open(served))
        return self._models[served]

    async def _close(self, unused: Sequence[ServedModel]) -> None:
        opening = [self._models.pop(served) for served in unused]
        for found in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(found, LimitedModel):
                await found.model.aclose()


async def _open(served: ServedModel) -> LimitedModel:
    return LimitedModel(await open_served(served), served.ref.concurrency)
