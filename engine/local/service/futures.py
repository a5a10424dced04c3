"""Operations that a client asks for now and fetches later, as the Tinker API has it.

`start` takes an operation on and gives its id at once; the same key again gives the same id, so that a
retried request is carried out once. Operations of one model run in the order of their seq_id, whatever the
order in which they arrive. Each session has its own, and their ids cannot be guessed. Knows no torch and no
wire format.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rolegraph.engine.limits import service as limits

R = TypeVar("R")

FIRST_SEQ_ID = 1
"""The seq_id of a model's first operation after its creation."""
GAP_SECONDS = 5.0
"""How long an operation waits for one before it that has not arrived."""


class OperationCancelled(Exception):
    """An operation that was stopped because its client no longer wanted it."""


class QueueFull(Exception):
    """Too much is asked for at a time; later there may be room."""


class TurnOrder:
    """Lets the operations of one model through in the order of their seq_id."""

    def __init__(self) -> None:
        self._next = FIRST_SEQ_ID
        self._waiting: set[int] = set()
        self._over: set[int] = set()
        """Those beyond `_next` that nobody has to wait for: they were cancelled."""
        self._running = False
        self._changed = asyncio.Condition()

    async def take(self, seq_id: int, work: Callable[[], Awaitable[R]]) -> R:
        """Do the work when it is its turn. One that is cancelled before holds up no other."""
        self._waiting.add(seq_id)
        try:
            async with self._changed:
                self._changed.notify_all()
                await self._turn(seq_id)
                self._running = True
        except asyncio.CancelledError:
            await self._pass(seq_id)
            raise
        self._waiting.discard(seq_id)
        try:
            return await work()
        finally:
            self._next, self._running = max(self._next, seq_id), False
            await self._pass(seq_id)

    async def _turn(self, seq_id: int) -> None:
        try:
            await asyncio.wait_for(
                self._changed.wait_for(lambda: self._ready(seq_id, strict=True)), GAP_SECONDS
            )
        except TimeoutError:
            await self._changed.wait_for(lambda: self._ready(seq_id, strict=False))

    async def _pass(self, seq_id: int) -> None:
        """Go on to the next that is not over."""
        async with self._changed:
            self._waiting.discard(seq_id)
            self._over.add(seq_id)
            while self._next in self._over:
                self._next += 1
            self._over = {over for over in self._over if over > self._next}
            self._changed.notify_all()

    def _ready(self, seq_id: int, *, strict: bool) -> bool:
        if self._running or min(self._waiting) != seq_id:
            return False
        return not strict or seq_id <= self._next


class FutureStore:
    """The operations of one session, the `owner`, by id. `index` says of every id whose it is."""

    def __init__(self, owner: str, index: dict[str, str]) -> None:
        self._owner, self._index = owner, index
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._finished: OrderedDict[str, int] = OrderedDict()
        """How many bytes each result has, in the order in which they came."""
        self._ids: dict[object, str] = {}
        self._keys: dict[str, object] = {}
        self._turns: dict[str, TurnOrder] = {}
        self._bytes = 0

    def start(self, key: object, work: Callable[[], Awaitable[object]]) -> str:
        """Take an operation on, unless one with that key was taken on before; returns its id. Raises Full."""
        if key is not None and key in self._ids:
            return self._ids[key]
        if len(self._tasks) - len(self._finished) >= limits.PENDING.most:
            raise QueueFull(f"{limits.PENDING} of this session are not done yet; wait for some")
        request_id = f"request-{secrets.token_hex(16)}"
        if key is not None:
            self._ids[key] = request_id
            self._keys[request_id] = key
        task = self._tasks[request_id] = asyncio.create_task(_awaited(work))
        self._index[request_id] = self._owner
        task.add_done_callback(lambda task: self._finish(request_id, task))
        return request_id

    def start_in_turn(self, model_id: str, seq_id: int | None, work: Callable[[], Awaitable[object]]) -> str:
        """As `start`, in the order of the model's seq_ids."""
        if seq_id is None:
            return self.start(None, work)
        turns = self._turns.setdefault(model_id, TurnOrder())
        return self.start((model_id, seq_id), lambda: turns.take(seq_id, work))

    async def result(self, request_id: str, seconds: float) -> object:
        """The result. Raises what the operation raised, TimeoutError, Cancelled, or KeyError if unknown."""
        task = self._tasks[request_id]
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        if task.cancelled():
            raise OperationCancelled("the request was cancelled")
        return task.result()

    def cancel(self, request_id: str) -> None:
        """Stop an operation that nobody wants any more."""
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    def end(self) -> None:
        """Stop and forget them all."""
        for request_id, task in list(self._tasks.items()):
            task.cancel()
            self._forget(request_id)

    def _finish(self, request_id: str, task: asyncio.Task[object]) -> None:
        """Note a result, and forget the oldest where there are too many."""
        size = _size(task)
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
        self._index.pop(request_id, None)
        self._bytes -= self._finished.pop(request_id, 0)
        if request_id in self._keys:
            del self._ids[self._keys.pop(request_id)]


def _size(task: asyncio.Task[object]) -> int:
    if task.cancelled() or task.exception() is not None:
        return 0
    result = task.result()
    return len(result) if isinstance(result, bytes) else 0


async def _awaited(work: Callable[[], Awaitable[object]]) -> object:
    return await work()
