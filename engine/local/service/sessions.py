"""Clients' sessions: who is there, what each has under way, and who is taken for gone.

A session lives as long as it is heard of; one whose process is known, and lives, is never taken for gone:
it may be stopped, or in a computation that lets no heartbeat through. Knows no HTTP and no torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.futures import FutureStore, QueueFull

_HEARTBEAT_SECONDS = 10.0
"""How often the SDK sends a heartbeat, from a thread of its own."""
_logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ClientSession:
    """One client."""

    id: str
    futures: FutureStore
    process: int | None = None
    """Its process, where that was seen on this machine."""
    silent: float = 0.0
    """Seconds since it was last heard of, of those in which the service was there to hear."""
    polls: int = 0
    """Its calls that wait for a result now; a lost one lasts no longer than a poll."""
    owned: set[str] = field(default_factory=set[str])
    """Ids of its models and sampling sessions, also of those that are no more."""
    models: set[str] = field(default_factory=set[str])
    """Ids of its models, also of those that are about to be."""
    sampling: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """The checkpoint that each sampling session draws from; None for the base model."""


class SessionStore:
    """All sessions. `end` frees what one held; `silent` is the silence after which it is taken for gone."""

    def __init__(
        self, end: Callable[[ClientSession], Awaitable[None]], silent: float = limits.SILENT_SECONDS.most
    ) -> None:
        self._end, self._silent = end, silent
        self._all: dict[str, ClientSession] = {}
        self._owners: dict[str, ClientSession] = {}
        """Whose each model and sampling session is, by id."""
        self._requests: dict[str, str] = {}

    def begin(self, process: object = None) -> ClientSession:
        """A new session; `process` is what the client says that its process id is. Raises Full."""
        if len(self._all) >= limits.SESSIONS.most:
            raise QueueFull(f"{limits.SESSIONS} are open here; finish some")
        said = str(process)
        number = int(said) if said.isdecimal() and len(said) < 10 and is_running(int(said)) else None
        name = f"session-{secrets.token_hex(6)}"
        session = self._all[name] = ClientSession(name, FutureStore(name, self._requests), number)
        return session

    def get(self, session_id: str | None) -> ClientSession | None:
        """A session, of which something has been heard just now."""
        return self._heard(self._all.get(session_id or ""))

    def of(self, owned: str) -> ClientSession | None:
        """The session of a model or a sampling session, as `get`."""
        return self._heard(self._owners.get(owned))

    def of_request(self, request_id: str) -> ClientSession | None:
        """The session of an operation, as `get`."""
        return self.get(self._requests.get(request_id))

    def own(self, session: ClientSession, owned: str) -> None:
        """Note whose a model or a sampling session is."""
        self._owners[owned] = session
        session.owned.add(owned)

    def open(self) -> list[ClientSession]:
        """Those that go on, in the order in which they began. To ask is not to hear of them."""
        return list(self._all.values())

    async def finish(self, session: ClientSession) -> None:
        """End a session: what it has under way is stopped, what it held is freed."""
        if self._all.pop(session.id, None) is None:
            return
        for owned in session.owned:
            self._owners.pop(owned, None)
        session.futures.end()
        await self._end(session)

    async def watch(self) -> None:
        """End the sessions whose clients are gone, for ever.

        Only time in which this loop ran counts as silence: while the machine slept, or the service was too
        busy to hear, nobody is missed.
        """
        pause = min(_HEARTBEAT_SECONDS, self._silent / 4)
        while True:
            await asyncio.sleep(pause)
            for session in list(self._all.values()):
                session.silent = 0.0 if session.polls else session.silent + pause
                if not self._is_gone(session):
                    continue
                try:
                    await self.finish(session)
                except Exception:  # the others are still to be watched
                    _logger.exception("what the session %s held could not be freed", session.id)

    def _is_gone(self, session: ClientSession) -> bool:
        if session.silent < min(limits.LEFT_SECONDS.most, self._silent):
            return False
        if session.process is not None:
            return not is_running(session.process)
        return session.silent >= self._silent

    def _heard(self, session: ClientSession | None) -> ClientSession | None:
        if session is not None:
            session.silent = 0.0
        return session

    def __len__(self) -> int:
        return len(self._all)


def is_running(process: int) -> bool:
    """Whether a process of this machine lives."""
    if os.name != "posix" or process <= 0:
        return False  # elsewhere the signal 0 is a signal
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
