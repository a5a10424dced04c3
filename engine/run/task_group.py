"""The tasks of one episode: its own, and those that are spawned beside it. Knows no plan and no model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskGroup:
    """What is under way. Whatever raises ends all of it.

    asyncio's TaskGroup, less a callback for each task: those are a twentieth of what an episode costs.
    """

    __slots__ = ("_finished", "_interrupted", "_loop", "_own", "_spawned", "_tasks", "stopped")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.stopped: Exception | None = None
        """What ended it, before all was done."""
        self._tasks: dict[int, tuple[asyncio.Task[None], Coroutine[None, None, None]]] = {}
        """Those under way with their work, but for the episode's own, by the order in which they began."""
        self._spawned = 0
        self._own: asyncio.Task[Any] | None = None
        """The task of the episode itself, while it is at a part of the work or waits."""
        self._interrupted = False
        """Whether it was stopped at that."""
        self._finished: asyncio.Future[None] | None = None
        """What it waits for, once its own part is done."""

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work beside the episode's own."""
        self._spawned = number = self._spawned + 1
        task = self._loop.create_task(self._watched(work, number))
        self._tasks[number] = task, work
        return task

    async def settled(self, work: Coroutine[None, None, None] | None) -> None:
        """Do work, and wait until nothing is under way beside it, or something raised.

        The work needs no task of its own: it has the episode's, which is cancelled where work elsewhere
        raises.
        """
        own = asyncio.current_task()
        assert own is not None
        self._own, self._finished = own, None
        try:
            if work is not None:
                await self._watched(work, 0)
            if self._tasks and self.stopped is None:
                self._finished = self._loop.create_future()
                await self._finished
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
        finally:
            self._own = None
        if self._interrupted and own.uncancel():  # somebody else cancelled it, too
            raise asyncio.CancelledError

    async def cancel(self) -> None:
        """End what is under way, and wait for it."""
        under_way = [*self._tasks.values()]
        for task, _ in under_way:
            task.cancel()
        await asyncio.gather(*(task for task, _ in under_way), return_exceptions=True)
        for _, work in under_way:
            work.close()  # what never began, which Python would warn of

    async def _watched(self, work: Coroutine[None, None, None], number: int) -> None:
        """Do the work, note what went wrong, and tell `settled` when nothing is left to wait for.

        `number` is the task's that does it; the episode's own has none, which is 0.
        """
        try:
            await work
        except Exception as error:
            self.stopped = self.stopped or error
        finally:
            if number:
                self._tasks.pop(number, None)  # held no longer: an episode may have thousands
                if not self._tasks or self.stopped is not None:
                    self._wake()

    def _wake(self) -> None:
        """Let `settled` go on where it waits; only what raised stops the episode's own work."""
        if self._finished is not None:
            if not self._finished.done():
                self._finished.set_result(None)
        elif self._own is not None and self.stopped is not None:
            self._interrupted = self._interrupted or self._own.cancel()
