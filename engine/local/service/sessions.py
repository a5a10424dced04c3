"""Sessions of clients: their operations, models and samplers, and the end of those whose client is gone.

A session lives as long as requests of its client arrive. One whose client is a running process of this
machine is never ended for silence: the process may be stopped, or busy in a call that blocks the SDK's
heartbeats. The ids of a session's models, samplers and operations begin with the session's id and a colon.
Knows no HTTP and no torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.errors import NotFoundError, QueueFull
from rolegraph.engine.local.service.futures import FutureStore

_HEARTBEAT_SECONDS = 10.0
"""Interval of the SDK's heartbeats, which it sends from a thread of its own."""
_logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ClientSession:
    """State of one client."""

    id: str
    futures: FutureStore
    process: int | None = None
    """Process id of the client, if it was running on this machine when the session began."""
    silent: float = 0.0
    """Seconds since the client's last request; not counting time in which the service was blocked."""
    polls: int = 0
    """The number of the client's requests that are waiting for a result."""
    models: set[str] = field(default_factory=set[str])
    """Ids of the models, including those being created."""
    sampling: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Checkpoint path of each sampling session by its id; None for the base model."""


class SessionStore:
    """The open sessions.

    `end` frees what a session holds; `silent` is the number of seconds without a request after which a client
    counts as gone.
    """

    def __init__(self, end: Callable[[ClientSession], Awaitable[None]], silent: float) -> None:
        self._end, self._silent = end, silent
        self._sessions: dict[str, ClientSession] = {}

    def begin(self, process: object = None) -> ClientSession:
        """Begin a session; `process` is the process id that the client has sent, of any type.

        Raises:
            QueueFull: too many sessions are open.
        """
        if len(self._sessions) >= limits.SESSIONS.most:
            raise QueueFull(f"{limits.SESSIONS} are open here; finish some")
        text = str(process)
        number = int(text) if text.isdecimal() and len(text) < 10 and is_running(int(text)) else None
        name = f"session-{secrets.token_hex(6)}"
        session = ClientSession(name, FutureStore(f"{name}:request-"), number)
        self._sessions[name] = session
        return session

    def find(self, owned_id: str) -> ClientSession | None:
        """Return the session with an id, or the one that owns the model, sampler or operation with the id.

        Counts as a sign of life of its client. None if there is no such session.
        """
        session = self._sessions.get(owned_id.partition(":")[0])
        if session is not None:
            session.silent = 0.0
        return session

    def get(self, session_id: str | None) -> ClientSession:
        """Return a session by its id; counts as a sign of life of its client. Raises NotFoundError."""
        session = self.find(session_id or "")
        if session is None or session.id != session_id:
            raise NotFoundError(f"there is no session {session_id!r}; it was never created, or is finished")
        return session

    def open(self) -> list[ClientSession]:
        """Return the open sessions, the oldest first."""
        return list(self._sessions.values())

    async def finish(self, session: ClientSession) -> None:
        """End a session: cancel its operations and free what it holds."""
        if self._sessions.pop(session.id, None) is not None:
            session.futures.close()
            await self._end(session)

    async def watch(self) -> None:
        """End the sessions whose clients are gone, until cancelled.

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
