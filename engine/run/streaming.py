"""Many jobs through one plan: episodes in the order in which they finish, with bounded memory.

At most `concurrency` episodes run, and as many wait to be taken; a job is drawn when there is room for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Episode, Observer, Task
from rolegraph.engine.run.scheduler import run_episode
from rolegraph.engine.run.turn import EpisodeJob, is_large
from rolegraph.engine.vocabulary.isolation import Isolation


class EpisodeMaker(Protocol):
    """Models that are open in this process or on a cluster, and make the episodes of one workflow."""

    async def make(self, job: EpisodeJob, observe: Observer | None = None) -> Episode:
        """Make the episode of a job, and send its events to an observer."""
        ...


def jobs(tasks: Iterable[Task], rollouts: int = 1, seed: int | None = None) -> Iterator[EpisodeJob]:
    """Yield a job for each task and rollout, all rollouts of a task together."""
    for task in tasks:
        large = is_large(task)  # once for all rollouts
        for rollout in range(rollouts):
            yield EpisodeJob(task, rollout, seed, large)


def missing(planned: Iterable[EpisodeJob], finished: Iterable[tuple[str, int]]) -> Iterator[EpisodeJob]:
    """Yield the jobs that have no episode yet.

    Args:
        planned: All jobs.
        finished: The task id and the rollout of each episode; one that occurs twice counts for two jobs.
    """
    counts = Counter(finished)
    for job in planned:
        key = job.task["id"], job.rollout
        if counts[key]:
            counts[key] -= 1
        else:
            yield job


def stream(
    plan: Plan,
    jobs: Iterable[EpisodeJob],
    models: Sequence[LimitedModel],
    *,
    isolation: Isolation,
    concurrency: int = 64,
    observe: Observer | None = None,
) -> AsyncGenerator[Episode, None]:
    """Run jobs in this process, and yield their episodes as `run_jobs` does.

    Args:
        plan: The workflow.
        jobs: The episodes to run, drawn one by one.
        models: The models of `plan.endpoints`, in that order.
        isolation: The processes for rewards and tools with a time limit.
        concurrency: The most episodes that run at a time.
        observe: Receives the events of all episodes.
    """
    return run_jobs(
        jobs, lambda job: run_episode(plan, job, models, isolation=isolation, observe=observe), concurrency
    )


async def run_jobs(
    jobs: Iterable[EpisodeJob], make: Callable[[EpisodeJob], Awaitable[Episode]], concurrency: int
) -> AsyncGenerator[Episode, None]:
    """Make the episodes of jobs, and yield each when it ends.

    Closing the iterator, or an error in it, cancels the episodes that run and waits until they have ended.

    Args:
        jobs: The episodes to make, drawn one by one.
        make: Function that makes the episode of a job.
        concurrency: The most episodes in flight.
    """
    waiting = iter(jobs)
    done: asyncio.Queue[Episode | BaseException | None] = asyncio.Queue(maxsize=concurrency)
    working = concurrency

    async def work() -> None:
        nonlocal working
        try:
            for job in waiting:
                episode = await make(job)
                if done.full():
                    await done.put(episode)
                else:
                    done.put_nowait(episode)
        except Exception as error:
            await done.put(error)
        working -= 1
        if working == 0:
            await done.put(None)

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        while (episode := await done.get()) is not None:
            if isinstance(episode, BaseException):
                raise episode
            yield episode
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
