"""Operations that a client starts with one request and fetches the results of with another.

`FutureStore.start` starts an operation and returns its id; the same key again gives the same id, so that a
retried request is carried out once. Operations of one model run in the order of their seq_id, in whatever
order their requests arrive. Each session has its own store. Ids cannot be guessed. Knows no torch and no
HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.errors import OperationCancelled, QueueFull

R = TypeVar("R")

FIRST_SEQ_ID = 1
"""The seq_id of a model's first operation after its creation."""
GAP_SECONDS = 5.0
"""Seconds that an operation waits for an earlier seq_id whose request has not arrived."""


class TurnOrder:
    """Queue of one model's operations, which run one at a time in the order of their seq_ids."""

    def __init__(self) -> None:
        self._next = FIRST_SEQ_ID
        self._waiting: set[int] = set()
        self._over: set[int] = set()
        """Finished or cancelled seq_ids from `_next` on."""
        self._turn = asyncio.Condition()
        """Held by the operation that runs."""

    async def run(self, seq_id: int, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run `work` when the turn of `seq_id` comes; cancelled before, it delays no later seq_id."""
        self._waiting.add(seq_id)
        try:
            async with self._turn:
                self._turn.notify_all()
                await self._wait_for_turn(seq_id)
                self._next = max(self._next, seq_id)
                return await work()
        finally:
            self._waiting.discard(seq_id)
            self._over.add(seq_id)
            while self._next in self._over:
                self._next += 1
            self._over = {over for over in self._over if over > self._next}
            async with self._turn:
                self._turn.notify_all()

    async def _wait_for_turn(self, seq_id: int) -> None:
        try:
            async with asyncio.timeout(GAP_SECONDS):
                await self._turn.wait_for(lambda: seq_id == min(self._waiting) and seq_id <= self._next)
        except TimeoutError:
            await self._turn.wait_for(lambda: seq_id == min(self._waiting))


class FutureStore:
    """The operations of one session and the results that have not been forgotten, by request id.

    Every request id begins with `prefix`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._finished: OrderedDict[str, int] = OrderedDict()
        """Bytes of each result, the oldest first."""
        self._ids: dict[object, str] = {}
        self._keys: dict[str, object] = {}
        self._turns: dict[str, TurnOrder] = {}
        self._bytes = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tasks

    def start(self, key: object, work: Callable[[], Coroutine[Any, Any, object]]) -> str:
        """Start an operation, unless one with that key (not None) was started; return its request id.

        Raises:
            QueueFull: too many operations of this session are unfinished.
        """
        if key is not None and key in self._ids:
            return self._ids[key]
        if len(self._tasks) - len(self._finished) >= limits.PENDING.most:
            raise QueueFull(f"{limits.PENDING} of this session are not done yet; wait for some")
        request_id = f"{self._prefix}{secrets.token_hex(16)}"
        if key is not None:
            self._ids[key] = request_id
            self._keys[request_id] = key
        task = self._tasks[request_id] = asyncio.create_task(work())
        task.add_done_callback(lambda task: self._record(request_id, task))
        return request_id

    def start_in_turn(
        self, model_id: str, seq_id: int | None, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> str:
        """Start an operation like `start`, to run in the order of the model's seq_ids."""
        if seq_id is None:
            return self.start(None, work)
        turns = self._turns.setdefault(model_id, TurnOrder())
        return self.start((model_id, seq_id), lambda: turns.run(seq_id, work))

    async def result(self, request_id: str, seconds: float) -> object:
        """Wait up to `seconds` for an operation and return its result.

        Raises:
            TimeoutError: the operation is not finished.
            OperationCancelled: the operation was cancelled.
            Exception: whatever the operation raised.
        """
        task = self._tasks[request_id]
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        if task.cancelled():
            raise OperationCancelled("the request was cancelled")
        return task.result()

    def cancel(self, request_id: str) -> None:
        """Cancel an operation, if it is there."""
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Cancel and forget every operation."""
        for request_id, task in list(self._tasks.items()):
            task.cancel()
            self._forget(request_id)

    def _record(self, request_id: str, task: asyncio.Task[object]) -> None:
        """Record a finished operation, and forget the oldest ones beyond the limits."""
        size = _result_bytes(task)
        if request_id not in self._tasks:
            return
        self._finished[request_id] = size
        self._bytes += size
        while len(self._finished) > 1 and (
            len(self._finished) > limits.KEPT.most or self._bytes > limits.KEPT_BYTES.most
        ):
            self._forget(next(iter(self._finished)))

    def _forget(self, request_id: str) -> None:
        del self._tasks[request_id]
        self._bytes -= self._finished.pop(request_id, 0)
        if request_id in self._keys:
            del self._ids[self._keys.pop(request_id)]


def _result_bytes(task: asyncio.Task[object]) -> int:
    # Asking for the exception also marks it as retrieved, so that asyncio logs no warning.
    if task.cancelled() or task.exception() is not None:
        return 0
    result = task.result()
    return len(result) if isinstance(result, bytes) else 0
