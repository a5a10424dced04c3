"""The tasks of one episode, which end together. Knows no plan and no model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class TaskGroup:
    """What is under way. Whatever raises ends all of it.

    asyncio's TaskGroup, less a callback for each task: those are a twentieth of what an episode costs.
    """

    __slots__ = ("_loop", "_settled", "_spawned", "_tasks", "stopped")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.stopped: Exception | None = None
        """What ended it, before all was done."""
        self._tasks: dict[int, tuple[asyncio.Task[None], Coroutine[None, None, None]]] = {}
        """Those under way with their work, by the order in which they began."""
        self._spawned = 0
        self._settled: asyncio.Future[None] | None = None
        """What somebody waits for."""

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work."""
        self._spawned = number = self._spawned + 1
        task = self._loop.create_task(self._watched(work, number))
        self._tasks[number] = task, work
        return task

    async def settled(self) -> None:
        """Wait until nothing is under way, or something raised."""
        if self._tasks and self.stopped is None:
            self._settled = self._loop.create_future()
            await self._settled

    async def cancel(self) -> None:
        """End what is under way, and wait for it."""
        under_way = [*self._tasks.values()]
        for task, _ in under_way:
            task.cancel()
        await asyncio.gather(*(task for task, _ in under_way), return_exceptions=True)
        for _, work in under_way:
            work.close()  # what never began, which Python would warn of

    async def _watched(self, work: Coroutine[None, None, None], number: int) -> None:
        """Do the work, note what went wrong, and tell who waits when nothing is left to wait for."""
        try:
            await work
        except Exception as error:
            self.stopped = self.stopped or error
        finally:
            del self._tasks[number]  # held no longer: an episode may have thousands
            settled = self._settled
            if settled is not None and (not self._tasks or self.stopped is not None) and not settled.done():
                settled.set_result(None)
