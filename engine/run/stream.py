"""Many tasks × K rollouts through one Workflow: episodes as they finish, with bounded memory.

At most `concurrency` episodes are in flight and as many wait to be taken; tasks are drawn only when there is
room. Episodes come in the order in which they finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator

from engine.records import Episode, Task
from engine.run.scheduler import Workflow


async def stream(
    workflow: Workflow, tasks: Iterable[Task], *, rollouts: int = 1, concurrency: int = 64
) -> AsyncGenerator[Episode, None]:
    """Yield an episode for each task and rollout.

    Closing the iterator, or an error in it, cancels what is in flight and waits for it to end.
    """
    jobs = _jobs(tasks, rollouts)
    done: asyncio.Queue[Episode | BaseException | None] = asyncio.Queue(maxsize=concurrency)
    working = concurrency

    async def work() -> None:
        nonlocal working
        try:
            for task, rollout in jobs:
                episode = await workflow.run_episode(task, rollout)
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


def _jobs(tasks: Iterable[Task], rollouts: int) -> Iterator[tuple[Task, int]]:
    for task in tasks:
        for rollout in range(rollouts):
            yield task, rollout
