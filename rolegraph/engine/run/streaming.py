"""Many jobs through one plan: episodes in the order in which they finish, with bounded memory.

At most `concurrency` episodes run, and as many finished ones wait for the caller; a job is drawn when there
is room for it. `ServedEpisodes` makes episodes with the models that each job names, as a worker of a training
does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel, ServedModel, open_served
from rolegraph.engine.records import Episode, Observer, Task
from rolegraph.engine.run.scheduler import run_episode
from rolegraph.engine.run.turn import EpisodeJob
from rolegraph.engine.vocabulary.isolation import Isolation


class EpisodeMaker(Protocol):
    """Open models, in this process or on a cluster, that make the episodes of one workflow."""

    async def make(self, job: EpisodeJob, observe: Observer | None = None) -> Episode:
        """Run the episode of a job and return it; events such as finished calls are passed to `observe`."""
        ...


def jobs(
    tasks: Iterable[Task], rollouts: int = 1, seed: int | None = None, step: int | None = None
) -> Iterator[EpisodeJob]:
    """Yield a job for each task and rollout, all rollouts of a task together."""
    for task in tasks:
        for rollout in range(rollouts):
            yield EpisodeJob(task, rollout, seed, step=step)


def missing(planned: Iterable[EpisodeJob], finished: Iterable[tuple[str, int]]) -> Iterator[EpisodeJob]:
    """Yield the planned jobs that have no finished episode yet.

    Args:
        planned: All jobs.
        finished: (task id, rollout) of each finished episode; a pair that occurs twice counts for two jobs.
    """
    counts = Counter(finished)
    for job in planned:
        key = job.task["id"], job.rollout
        if counts[key]:
            counts[key] -= 1
        else:
            yield job


async def run_jobs(
    jobs: Iterable[EpisodeJob], make: Callable[[EpisodeJob], Awaitable[Episode]], concurrency: int = 64
) -> AsyncGenerator[Episode, None]:
    """Run the episodes of jobs concurrently, and yield each when it ends.

    Closing the iterator, or an error in it, cancels the running episodes and waits until they have ended.

    Args:
        jobs: The episodes to make, drawn one by one.
        make: Function that makes the episode of a job.
        concurrency: Largest number of running episodes.
    """
    jobs_left, workers_left = iter(jobs), concurrency
    finished_episodes: asyncio.Queue[Episode | Exception | None] = asyncio.Queue(concurrency)

    async def work() -> None:
        try:
            for job in jobs_left:
                await finished_episodes.put(await make(job))
        except Exception as error:
            await finished_episodes.put(error)
        await finished_episodes.put(None)

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        while workers_left:
            match await finished_episodes.get():
                case None:
                    workers_left -= 1
                case Exception() as error:
                    raise error
                case episode:
                    yield episode
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class ServedEpisodes(AbstractAsyncContextManager["ServedEpisodes"]):
    """Maker of episodes that opens a model when the first job names it.

    A model is closed when a job names another one and no running episode uses it: the weights of a training
    change with each step. All models are closed at the end of the block.

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
        """Run the episode of a job with the models that the job names; raises the errors of `open_served`."""
        self._in_use.update(job.models)
        try:
            if not self._models.keys() >= {*job.models}:
                await self._close([m for m in self._models if not self._in_use[m]])
            for m in job.models:
                if m not in self._models:
                    self._models[m] = asyncio.create_task(_open(m))
            models = [await asyncio.shield(self._models[m]) for m in job.models]
            return await run_episode(self._plan, job, models, isolation=self._isolation, observe=observe)
        finally:
            self._in_use.subtract(job.models)

    async def _close(self, unused: Sequence[ServedModel]) -> None:
        opening_tasks = [self._models.pop(served_model) for served_model in unused]
        for outcome in await asyncio.gather(*opening_tasks, return_exceptions=True):
            if isinstance(outcome, LimitedModel):
                await outcome.model.aclose()


async def _open(served: ServedModel) -> LimitedModel:
    return LimitedModel(await open_served(served), served.ref.concurrency)
