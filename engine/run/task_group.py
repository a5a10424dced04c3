"""The tasks of one episode, which end together. Knows no plan and no model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class TaskGroup:
    """What is under way. Whatever raises ends all of it.

    asyncio's TaskGroup, less a callback for each task: those are a twentieth of what an episode costs.
    """

    __slots__ = ("_error", "_loop", "_settled", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[Coroutine[None, None, None], asyncio.Task[None]] = {}
        """By their work, in the order in which they began; no longer than they are under way, as an episode
        may have thousands."""
        self._error: Exception | None = None
        """What was raised first."""
        self._settled: asyncio.Future[None] | None = None
        """What somebody waits for."""

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work."""
        task = self._tasks[work] = self._loop.create_task(self._watched(work))
        return task

    async def settled(self) -> None:
        """Wait until nothing is under way; raises what work raised, when all else has been ended."""
        if self._tasks and self._error is None:
            self._settled = self._loop.create_future()
            await self._settled
        if self._error is not None:
            await self.cancel()
            raise self._error

    async def cancel(self) -> None:
        """End what is under way, and wait for it."""
        under_way = {**self._tasks}
        for task in under_way.values():
            task.cancel()
        await asyncio.gather(*under_way.values(), return_exceptions=True)
        for work in under_way:
            work.close()  # what never began, which Python would warn of

    async def _watched(self, work: Coroutine[None, None, None]) -> None:
        """Do the work, note what went wrong, and tell who waits when nothing is left to wait for."""
        try:
            await work
        except Exception as error:
            self._error = self._error or error
        finally:
            del self._tasks[work]
            settled = self._settled
            if settled is not None and (not self._tasks or self._error is not None) and not settled.done():
                settled.set_result(None)
