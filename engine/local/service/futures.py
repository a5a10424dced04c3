"""Operations that a client asks for now and fetches later, as the Tinker API has it.

`start` takes an operation on and gives its id at once; the same key again gives the same id, so that a
retried request is carried out once. Operations of one model run in the order of their seq_id, whatever the
order in which they arrive. Knows no torch and no wire format.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

R = TypeVar("R")

MAX_KEPT = 20_000
"""Finished operations whose results can still be fetched."""
MAX_KEPT_BYTES = 2**28
"""What their results may take up together."""
FIRST_SEQ_ID = 1
"""The seq_id of a model's first operation after its creation."""
GAP_SECONDS = 5.0
"""How long an operation waits for one before it that has not arrived."""


class Cancelled(Exception):
    """An operation that was stopped because its client no longer wanted it."""


class Turns:
    """Lets the operations of one model through in the order of their seq_id."""

    def __init__(self) -> None:
        self._next = FIRST_SEQ_ID
        self._waiting: set[int] = set()
        self._running = False
        self._changed = asyncio.Condition()

    async def take(self, seq_id: int, work: Callable[[], Awaitable[R]]) -> R:
        """Do the work when it is its turn."""
        async with self._changed:
            self._waiting.add(seq_id)
            self._changed.notify_all()
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: self._ready(seq_id, strict=True)), GAP_SECONDS
                )
            except TimeoutError:
                await self._changed.wait_for(lambda: self._ready(seq_id, strict=False))
            self._waiting.discard(seq_id)
            self._running = True
        try:
            return await work()
        finally:
            async with self._changed:
                self._running = False
                self._next = max(self._next, seq_id + 1)
                self._changed.notify_all()

    def _ready(self, seq_id: int, *, strict: bool) -> bool:
        if self._running or min(self._waiting) != seq_id:
            return False
        return not strict or seq_id <= self._next


class Futures:
    """Operations by id."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Task[object]] = OrderedDict()
        self._ids: dict[object, str] = {}
        self._keys: dict[str, object] = {}
        self._turns: dict[str, Turns] = {}
        self._counter = itertools.count(1)
        self._bytes = 0

    def start(self, key: object, work: Callable[[], Awaitable[object]]) -> str:
        """Take an operation on, unless one with that key was taken on before; returns its id."""
        if key is not None and key in self._ids:
            return self._ids[key]
        request_id = f"request-{next(self._counter)}"
        if key is not None:
            self._ids[key] = request_id
            self._keys[request_id] = key
        self._tasks[request_id] = asyncio.create_task(_awaited(work))
        self._tasks[request_id].add_done_callback(self._note_size)
        self._forget_old()
        return request_id

    def start_in_turn(self, model_id: str, seq_id: int | None, work: Callable[[], Awaitable[object]]) -> str:
        """As `start`, in the order of the model's seq_ids."""
        if seq_id is None:
            return self.start(None, work)
        turns = self._turns.setdefault(model_id, Turns())
        return self.start((model_id, seq_id), lambda: turns.take(seq_id, work))

    async def result(self, request_id: str, seconds: float) -> object:
        """The result. Raises what the operation raised, TimeoutError, Cancelled, or KeyError if unknown."""
        task = self._tasks[request_id]
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        if task.cancelled():
            raise Cancelled("the request was cancelled")
        return task.result()

    def cancel(self, request_id: str) -> None:
        """Stop an operation that nobody wants any more."""
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    def _note_size(self, task: asyncio.Task[object]) -> None:
        self._bytes += _size(task)

    def _forget_old(self) -> None:
        while len(self._tasks) > MAX_KEPT or self._bytes > MAX_KEPT_BYTES:
            old, task = next(iter(self._tasks.items()))
            if not task.done():
                return
            del self._tasks[old]
            self._bytes -= _size(task)
            if old in self._keys:
                del self._ids[self._keys.pop(old)]


def _size(task: asyncio.Task[object]) -> int:
    if task.cancelled() or task.exception() is not None:
        return 0
    result = task.result()
    return len(result) if isinstance(result, bytes) else 0


async def _awaited(work: Callable[[], Awaitable[object]]) -> object:
    return await work()
