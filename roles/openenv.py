"""Environments that an OpenEnv server keeps: a WebSocket session for each episode.

A session is the server's own environment: HTTP requests of OpenEnv have none between a reset and a step. What
a server sends is bounded in bytes, parts and time, as other replies are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import urlsplit

from pydantic import Field
from pydantic_core import from_json

from rolegraph.engine.limits.answers import COMPLETION_PARTS
from rolegraph.engine.limits.tools import ENV_BYTES, TOOL_CLOSE_SECONDS, TOOL_TEXT
from rolegraph.engine.records.jsonl import parts_of
from rolegraph.engine.vocabulary import (
    Environment,
    EnvironmentFailure,
    Transition,
    check_url,
    require_library,
)
from rolegraph.engine.vocabulary.foreign import plain_json
from rolegraph.roles.equality import as_text
from rolegraph.roles.json_text import value_at

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_FRAME = 50
"""Bytes that a frame of a message takes in memory beyond its own; a server may send each byte as a frame."""
_SAID = 200
"""Characters of a server's own message that an error quotes."""
_PAUSES = (0.1, 2.0)
"""Seconds before the first and the last attempts to get a session; each is twice the one before."""
_SPEC_FAULTS = ("missing", "extra_forbidden")
"""Types of pydantic's errors by which a server says that `field` is not the action's."""

Message = Mapping[str, Any]


def openenv(
    url: str,
    /,
    *,
    field: str = "message",
    observation: str | None = None,
    reset: dict[str, Any] | None = None,
    timeout: Annotated[float, Field(gt=0, le=3600)] = 60.0,
    wait: Annotated[float, Field(ge=0, le=86_400)] = 600.0,
) -> Environment:
    """Act in an environment that an OpenEnv server keeps, with one session for each episode. One player.

    url: the server's URL, such as http://127.0.0.1:8000; it must be allowed on the command line
    field: the field of the environment's action that holds the role's action; a mapping is sent as it is
    observation: the place in the observation that the player sees, such as prompt; left out, all of it
    reset: further parameters of a reset, beside the seed
    timeout: seconds for each answer of the server
    wait: seconds to wait for a session where the server has no free one
    """
    parts = urlsplit(check_url(url))
    require_library("websockets", "openenv", "OpenEnv environments")
    scheme = {"http": "ws", "https": "wss"}[parts.scheme.lower()]
    socket = parts._replace(scheme=scheme, path=f"{parts.path.rstrip('/')}/ws").geturl()
    server = _Server(url, socket, field, observation, reset or {}, timeout, wait)
    return Environment(partial(OpenEnvSession, server), permissions=(url,))


@dataclass(frozen=True, slots=True)
class _Server:
    """Server and options of an `openenv` environment."""

    url: str
    socket: str
    """URL of the server's WebSocket."""
    field: str
    observation: str | None
    reset: Mapping[str, Any]
    timeout: float
    wait: float

    @property
    def is_here(self) -> bool:
        """True where the server runs on this machine, so that no proxy is asked."""
        return urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")

    def shown(self, observation: Mapping[str, Any]) -> str:
        """Return the text that a player sees of an observation; that of an only field is the text itself."""
        if self.observation is None:
            # Newer servers repeat the metadata among the fields, also where there is none.
            fields = {name: value for name, value in observation.items() if name != "metadata" or value}
            return as_text(next(iter(fields.values())) if len(fields) == 1 else fields)
        try:
            return as_text(value_at(observation, self.observation))
        except LookupError:
            has = ", ".join(map(str, observation))[:_SAID] or "no fields"
            raise EnvironmentFailure(
                f"the observation of {self.url} has no {self.observation!r}, which `observation` names; "
                f"it has {has}"
            ) from None


class NoFreeSession(EnvironmentFailure):
    """Error of a server all of whose sessions are in use."""


class RefusedAction(EnvironmentFailure):
    """Error of a server that cannot read an action. `types` are pydantic's names of the errors."""

    def __init__(self, message: str, types: tuple[str, ...]) -> None:
        self.types = types
        super().__init__(message)


@dataclass(slots=True)
class OpenEnvSession:
    """Session of a server in one episode."""

    _server: _Server
    _socket: ClientConnection | None = field(default=None, init=False)
    _seen: str = field(default="", init=False)
    """Text that the player saw last."""

    async def reset(self, seed: int, players: int) -> Transition:
        """Connect, and start an episode of the environment; wait while the server has no free session."""
        loop, (pause, longest) = asyncio.get_running_loop(), _PAUSES
        end = loop.time() + self._server.wait
        # Environments take seeds of NumPy, which takes none above.
        message = {"type": "reset", "data": {**self._server.reset, "seed": seed % 2**32}}
        while True:
            await self.close()
            try:
                self._socket = await _connect(self._server)
                return await self._transition(message)
            except NoFreeSession as full:
                if loop.time() + pause > end:
                    said = f"no session has become free within {self._server.wait:g} s"
                    raise EnvironmentFailure(f"{full}; {said}") from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        """Send the player's action; a missing one is empty text. The player is told of an unreadable one."""
        action = actions.get(0)
        is_text = action is not None and not isinstance(action, Mapping)
        named = cast("Message", action) if isinstance(action, Mapping) else {self._server.field: action or ""}
        try:
            return await self._transition({"type": "step", "data": named})
        except RefusedAction as refused:
            if is_text and any(kind in _SPEC_FAULTS for kind in refused.types):
                hint = "`field` names the field of its action"
                raise EnvironmentFailure(f"{self._server.url}: {refused}; {hint}") from None
            return Transition({0: f"{self._seen}\n\n{refused}"})

    async def close(self) -> None:
        """End the session; the server has a few seconds to agree."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(TimeoutError, *_closed()):
                async with asyncio.timeout(TOOL_CLOSE_SECONDS.most):
                    await socket.send('{"type": "close"}')
                    await socket.close()

    async def _transition(self, message: Message) -> Transition:
        match await self._ask(message):
            case {"observation": {**observation}, "done": bool(done), **rest}:
                pass
            case _:
                raise EnvironmentFailure(f"{self._server.url} gives no observation of OpenEnv's protocol")
        reward = rest.get("reward")
        rewards = {} if reward is None else {0: reward}
        if not done:
            self._seen = self._server.shown(observation)
            return Transition({0: self._seen}, rewards)
        info = {"observation": observation, "state": await self._state()}
        await self.close()  # a server has few sessions, and later roles may take their time
        with suppress(ValueError):  # too large to be recorded
            return Transition({}, rewards, done=True, info=plain_json(info, TOOL_TEXT))
        return Transition({}, rewards, done=True)

    async def _state(self) -> Message | None:
        """Return the environment's state; None where the server cannot give it."""
        try:
            return await self._ask({"type": "state"})
        except EnvironmentFailure:
            return None

    async def _ask(self, message: Message) -> Message:
        """Send a message and return the data of the reply."""
        if self._socket is None:
            raise RuntimeError("an environment that is not reset cannot be asked")
        url, seconds = self._server.url, self._server.timeout
        try:
            async with asyncio.timeout(seconds):
                with suppress(*_closed()):  # the server's last message says why
                    await self._socket.send(json.dumps(message))
                text = b"".join([part async for part in _bounded(self._socket)])
            reply = from_json(text)
        except TimeoutError:
            raise EnvironmentFailure(f"{url} does not answer within {seconds:g} s") from None
        except _closed() as error:
            raise EnvironmentFailure(f"{url} has closed the session: {str(error)[:_SAID]}") from None
        except ValueError as error:
            raise EnvironmentFailure(f"rejected message from {url}: {str(error)[:_SAID]}") from None
        match reply:
            case {"type": "observation" | "state", "data": {**data}}:
                return data
            case {"type": "error", "data": {**data}}:
                raise _failure(url, data)
            case _:
                raise EnvironmentFailure(f"{url} gives no message of OpenEnv's protocol")


def _failure(url: str, data: Message) -> EnvironmentFailure:
    """Return the error of a reply: its code, and the server's words up to a length."""
    said = f"{url} answers {str(data.get('code'))[:_SAID]}: {str(data.get('message'))[:_SAID]}"
    match data:
        case {"code": "CAPACITY_REACHED"}:
            return NoFreeSession(said)
        case {"code": "VALIDATION_ERROR", "errors": [*errors]}:
            found = [cast("Message", error) for error in errors if isinstance(error, Mapping)]
            places = [f"{_place(error)}: {error.get('msg')}" for error in found]
            refused = f"the action is refused: {'; '.join(places)[:_SAID]}"
            return RefusedAction(refused, tuple(str(error.get("type")) for error in found))
        case _:
            return EnvironmentFailure(said)


def _place(error: Message) -> str:
    """Return the place of an error of pydantic, such as `arguments.message`."""
    loc = error.get("loc")
    return ".".join(map(str, cast("list[object]", loc))) if isinstance(loc, list) and loc else "action"


async def _bounded(socket: ClientConnection) -> AsyncIterator[bytes]:
    """Yield the frames of the next message; raise ValueError where it has too many bytes or parts."""
    size = parts = 0
    async for frame in socket.recv_streaming(decode=False):
        size, parts = size + len(frame) + _FRAME, parts + parts_of(frame)
        for limit, found in ((ENV_BYTES, size), (COMPLETION_PARTS, parts)):
            if found > limit.most:
                raise ValueError(limit.exceeded("it has"))
        yield frame


async def _connect(server: _Server) -> ClientConnection:
    """Open a WebSocket; raise EnvironmentFailure where the server cannot be reached."""
    from websockets.exceptions import WebSocketException

    try:
        return await _direct()(
            server.socket,
            proxy=None if server.is_here else True,
            compression=None,  # a thousand compressed bytes may hold a million
            open_timeout=server.timeout,
            close_timeout=TOOL_CLOSE_SECONDS.most,
            ping_interval=None,  # an environment that computes may answer no ping
            max_size=ENV_BYTES.most,
        )
    except TimeoutError:
        raise EnvironmentFailure(f"{server.url} does not answer within {server.timeout:g} s") from None
    except (OSError, ValueError, WebSocketException) as error:
        said = str(error)[:_SAID] or type(error).__name__
        raise EnvironmentFailure(f"{server.url} cannot be asked: {said}") from None


@cache
def _direct() -> Any:
    """Return a `connect` that follows no redirect: the permission is for one address."""
    from websockets.asyncio.client import connect

    class Direct(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    return Direct


@cache
def _closed() -> tuple[type[Exception], ...]:
    """Return the error of a connection that is closed; importing it waits for the first session."""
    from websockets.exceptions import ConnectionClosed

    return (ConnectionClosed,)
