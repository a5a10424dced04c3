"""Sessions of clients: their operations, models and samplers, and the end of those whose client is gone.

A client starts an operation with one request and fetches its result with another. A retried request has the
same request id, so that it is carried out once. Operations of one model run in the order of their seq_id, in
whatever order their requests arrive.

A session lives as long as requests of its client arrive. One whose client is a running process of this
machine is never ended for silence: the process may be stopped, or busy in a call that blocks the SDK's
heartbeats. The ids of a session's models, samplers and operations begin with the session's id, which cannot
be guessed, and a colon. Knows no HTTP and no torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from rolegraph.local import limits
from rolegraph.local.service.errors import NotFoundError, RequestError

R = TypeVar("R")
Work = Callable[[], Coroutine[Any, Any, R]]

FIRST_SEQ_ID = 1
"""The seq_id of a model's first operation after its creation."""
GAP_SECONDS = 5.0
"""Seconds that an operation waits for an earlier seq_id whose request has not arrived."""
_HEARTBEAT_SECONDS = 10.0
"""Interval of the SDK's heartbeats, which it sends from a thread of its own."""
_logger = logging.getLogger(__name__)


class TurnOrder:
    """Queue of one model's operations, which run one at a time in the order of their seq_ids."""

    def __init__(self) -> None:
        self._next = FIRST_SEQ_ID
        self._waiting: set[int] = set()
        self._over: set[int] = set()
        """seq_ids from `_next` on that are already finished or cancelled."""
        self._turn = asyncio.Condition()
        """Condition whose lock is held by the running operation."""

    async def run(self, seq_id: int, work: Work[R]) -> R:
        """Run `work` once all lower seq_ids are done, and return its result; a cancelled call does not block
        later ones."""
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
            self._over = {seq for seq in self._over if seq > self._next}
            async with self._turn:
                self._turn.notify_all()

    async def _wait_for_turn(self, seq_id: int) -> None:
        try:
            async with asyncio.timeout(GAP_SECONDS):
                await self._turn.wait_for(lambda: seq_id == min(self._waiting) and seq_id <= self._next)
        except TimeoutError:
            await self._turn.wait_for(lambda: seq_id == min(self._waiting))


class Operations:
    """The operations of one session and the results that have not been forgotten, by request id."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._finished: dict[str, int] = {}
        """Size in bytes of each finished result, by request id, the oldest first."""
        self._bytes = 0
        self._turns: defaultdict[str, TurnOrder] = defaultdict(TurnOrder)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tasks

    def start(self, request_id: str, work: Work[object]) -> str:
        """Start an operation, unless it was started before; return its request id.

        Raises:
            RequestError: Too many operations of this session are unfinished.
        """
        if request_id not in self._tasks:
            if len(self._tasks) - len(self._finished) >= limits.PENDING.most:
                message = f"{limits.PENDING} of this session are not done yet; wait for some"
                raise RequestError(message, status=429)
            task = self._tasks[request_id] = asyncio.create_task(work())
            task.add_done_callback(partial(self._record, request_id))
        return request_id

    def start_in_turn(self, model_id: str, seq_id: int | None, work: Work[object]) -> str:
        """Start an operation of a model after those with lower seq_ids; return its request id.

        An operation without a seq_id starts at once.
        """
        if seq_id is None:
            return self.start(f"{model_id}:{secrets.token_hex(8)}", work)
        return self.start(f"{model_id}:{seq_id}", lambda: self._turns[model_id].run(seq_id, work))

    async def result(self, request_id: str, seconds: float) -> object:
        """Wait up to `seconds` for an operation and return its result.

        Raises:
            TimeoutError: The operation is not finished.
            RequestError: The operation was cancelled.
            Exception: Whatever the operation raised.
        """
        task = self._tasks[request_id]
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        if task.cancelled():
            raise RequestError("the request was cancelled")
        return task.result()

    def cancel(self, request_id: str) -> None:
        """Cancel an operation; does nothing if there is no such operation."""
        if request_id in self._tasks:
            self._tasks[request_id].cancel()

    def close(self) -> None:
        """Cancel and forget every operation."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _record(self, request_id: str, task: asyncio.Task[object]) -> None:
        """Record that an operation is finished; beyond the limits, forget the oldest results."""
        # Asking for the exception also marks it as retrieved, so that asyncio logs no warning.
        result = None if task.cancelled() or task.exception() else task.result()
        if request_id not in self._tasks:
            return
        self._finished[request_id] = size = len(result) if isinstance(result, bytes) else 0
        self._bytes += size
        while len(self._finished) > 1 and (
            len(self._finished) > limits.KEPT.most or self._bytes > limits.KEPT_BYTES.most
        ):
            oldest = next(iter(self._finished))
            del self._tasks[oldest]
            self._bytes -= self._finished.pop(oldest)


@dataclass(eq=False, slots=True)
class ClientSession:
    """State of one client: its models, samplers, operations and last request."""

    id: str
    process: int | None = None
    """Process id of the client, if it was running on this machine when the session began."""
    silent: float = 0.0
    """Seconds since the client's last request; not counting time in which the service was blocked."""
    polls: int = 0
    """The number of the client's requests that are waiting for a result."""
    operations: Operations = field(default_factory=Operations)
    models: set[str] = field(default_factory=set[str])
    """Ids of the models, including those being created."""
    sampling: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Checkpoint path of each sampling session by its id; None for the base model."""


class SessionStore:
    """The open sessions of all clients.

    `end` is a function that frees the models and checkpoints of a session that has ended; `silent` is the
    number of seconds without a request after which a client counts as gone.
    """

    def __init__(self, end: Callable[[ClientSession], Awaitable[None]], silent: float) -> None:
        self._end, self._silent = end, silent
        self._sessions: dict[str, ClientSession] = {}

    def begin(self, process: object = None) -> ClientSession:
        """Begin a session; `process` is the process id that the client has sent, of any type.

        Raises:
            RequestError: Too many sessions are open.
        """
        if len(self._sessions) >= limits.SESSIONS.most:
            raise RequestError(f"{limits.SESSIONS} are open here; finish some", status=429)
        text = str(process)
        process_id = int(text) if text.isdecimal() and len(text) < 10 and is_running(int(text)) else None
        session = ClientSession(f"session-{secrets.token_hex(6)}", process_id)
        self._sessions[session.id] = session
        return session

    def find(self, owned_id: str) -> ClientSession | None:
        """Return the session with this id, or with a model, sampler or operation of this id; None if there is
        no such session.

        The call counts as a request of the session's client.
        """
        session = self._sessions.get(owned_id.partition(":")[0])
        if session is not None:
            session.silent = 0.0
        return session

    def get(self, session_id: str | None) -> ClientSession:
        """Return a session by its id; raises NotFoundError. The call counts as a request of the session's
        client."""
        session = self.find(session_id or "")
        if session is None or session.id != session_id:
            raise NotFoundError(f"there is no session {session_id!r}; it was never created, or is finished")
        return session

    def open(self) -> list[ClientSession]:
        """Return the open sessions, the oldest first."""
        return list(self._sessions.values())

    async def finish(self, session: ClientSession) -> None:
        """End a session: cancel its operations, and free its models and checkpoints."""
        if self._sessions.pop(session.id, None) is not None:
            session.operations.close()
            await self._end(session)

    async def watch(self) -> None:
        """Check until cancelled for clients that are gone, and end their sessions.

        Silence is counted in the pauses of this loop: while the machine sleeps, or the service is too busy to
        read requests, no time passes for the clients.
        """
        pause = min(_HEARTBEAT_SECONDS, self._silent / 4)
        while True:
            await asyncio.sleep(pause)
            for session in self.open():
                session.silent = 0.0 if session.polls else session.silent + pause
                if not self._is_gone(session):
                    continue
                try:
                    await self.finish(session)
                except Exception:  # the other sessions still have to be watched
                    _logger.exception("the resources of the session %s could not be freed", session.id)

    def _is_gone(self, session: ClientSession) -> bool:
        if session.silent < min(limits.LEFT_SECONDS.most, self._silent):
            return False
        if session.process is not None:
            return not is_running(session.process)
        return session.silent >= self._silent


def is_running(process: int) -> bool:
    """Return True if a process of this machine is running; always False on Windows."""
    if os.name != "posix" or process <= 0:
        return False  # elsewhere, signal 0 is a real signal
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
