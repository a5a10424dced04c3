"""Many jobs through one Plan: episodes as they finish, with bounded memory.

At most `concurrency` episodes are in flight and as many wait to be taken; jobs are drawn only when there is
room. Episodes come in the order in which they finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Episode, Observer
from rolegraph.engine.run.isolation import Isolation
from rolegraph.engine.run.scheduler import EpisodeJob, run_episode


async def stream(
    plan: Plan,
    jobs: Iterable[EpisodeJob],
    models: Sequence[LimitedModel],
    *,
    isolation: Isolation,
    concurrency: int = 64,
    observe: Observer | None = None,
) -> AsyncGenerator[Episode, None]:
    """Yield an episode for each job. `models` are those of `plan.endpoints`.

    Closing the iterator, or an error in it, cancels what is in flight and waits for it to end.
    """
    waiting = iter(jobs)
    done: asyncio.Queue[Episode | BaseException | None] = asyncio.Queue(maxsize=concurrency)
    working = concurrency

    async def work() -> None:
        nonlocal working
        try:
            for job in waiting:
                episode = await run_episode(plan, job, models, isolation=isolation, observe=observe)
                try:
                    done.put_nowait(episode)
                except asyncio.QueueFull:
                    await done.put(episode)
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
