"""Environments that an OpenEnv server keeps: a WebSocket session for each episode.

OpenEnv's HTTP requests keep no state. Replies of a server are limited in bytes, parts and time.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast
from urllib.parse import urlsplit

from pydantic import Field
from pydantic_core import from_json

from rolegraph.engine.connections import proxy_for, route, tls_context
from rolegraph.engine.limits.tools import ENV_BYTES, TOOL_CLOSE_SECONDS, TOOL_TEXT
from rolegraph.engine.vocabulary import (
    Environment,
    EnvironmentFailure,
    Transition,
    check_url,
    require_library,
)
from rolegraph.engine.vocabulary.foreign import plain_json
from rolegraph.engine.vocabulary.replies import RejectedReply, bounded
from rolegraph.roles.equality import as_text
from rolegraph.roles.json_text import value_at

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_SAID = 200
"""Largest number of characters that an error quotes from a server's message."""
_PAUSES = (0.1, 2.0)
"""Shortest and longest seconds between attempts to get a session that other processes may hold."""
_SPEC_FAULTS = ("missing", "extra_forbidden")
"""Types of pydantic's errors by which a server reports that the action has no field `field`."""

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
    field: the field of the environment's action that holds the role's action; an action that is a mapping is
      sent unchanged
    observation: the field in the observation that the player sees, such as prompt; left out, all of it
    reset: further parameters of a reset, beside the seed
    timeout: seconds for each answer of the server
    wait: seconds to wait for a session where the server has no free one
    """
    url_parts = urlsplit(check_url(url))
    require_library("websockets", "openenv", "OpenEnv environments")
    scheme = {"http": "ws", "https": "wss"}[url_parts.scheme.lower()]
    socket = url_parts._replace(scheme=scheme, path=f"{url_parts.path.rstrip('/')}/ws").geturl()
    server = _Server(url, socket, field, observation, reset or {}, timeout, wait, deque())
    return Environment(partial(OpenEnvSession, server), permissions=(url,))


class _Server(NamedTuple):
    """Address and options of an OpenEnv server, with a queue of the episodes that wait for a free session."""

    url: str
    socket: str
    """URL of the server's WebSocket."""
    field: str
    observation: str | None
    reset: Mapping[str, Any]
    timeout: float
    wait: float
    waiting: deque[asyncio.Future[None]]

    async def until_free(self, seconds: float, *, first: bool) -> bool:
        """Wait up to `seconds` for a session that another episode of this process gives back.

        Args:
            seconds: Time limit.
            first: True to put the episode at the head of the queue.

        Returns:
            True if a session is free.
        """
        queue_place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self.waiting.appendleft if first else self.waiting.append)(queue_place)
        try:
            await asyncio.wait([queue_place], timeout=seconds)
        finally:
            with suppress(ValueError):  # it was called
                self.waiting.remove(queue_place)
        return queue_place.done()

    def call_next(self) -> None:
        """Wake the episode that has waited longest, because a session is free."""
        if self.waiting:
            queue_place = self.waiting.popleft()
            queue_place.get_loop().call_soon_threadsafe(queue_place.set_result, None)

    def shown(self, observation: Mapping[str, Any]) -> str:
        """Return the text of an observation that the player sees: all its fields, or only the field
        `observation`."""
        if self.observation is None:
            # Newer servers repeat the metadata among the fields, also empty metadata.
            fields = {name: value for name, value in observation.items() if name != "metadata" or value}
            return as_text(next(iter(fields.values())) if len(fields) == 1 else fields)
        try:
            return as_text(value_at(observation, self.observation))
        except LookupError:
            fields_note = f"it has {', '.join(map(str, observation))[:_SAID] or 'no fields'}"
            message = f"the observation of {self.url} has no {self.observation!r}; {fields_note}"
            raise EnvironmentFailure(message) from None


class NoFreeSession(EnvironmentFailure):
    """Error of a server whose sessions are all in use."""


class RefusedAction(EnvironmentFailure):
    """Error of a server that cannot read an action. `types` are pydantic's names of the errors."""

    def __init__(self, message: str, types: tuple[str, ...]) -> None:
        self.types = types
        super().__init__(message)


class OpenEnvSession:
    """Session of a server in one episode."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._socket: ClientConnection | None = None
        self._seen = ""
        """Text that the player saw last."""

    async def reset(self, seed: int, players: int) -> Transition:
        """Connect, and start an episode of the environment; wait while the server has no free session."""
        await self.close()
        server, pause, has_waited = self._server, _PAUSES[0], False
        deadline = monotonic() + server.wait
        # Environments take seeds of NumPy, which takes none above.
        message = {"type": "reset", "data": {**server.reset, "seed": seed % 2**32}}
        while True:
            try:
                self._socket = await _connect(server)
                return await self._transition(message)
            except NoFreeSession as no_session:
                await self._disconnect()
                if monotonic() + pause > deadline:
                    raise EnvironmentFailure(f"{no_session}; none became free in {server.wait:g} s") from None
            is_free = await server.until_free(pause, first=has_waited)
            # The server may take a moment to end the other session.
            has_waited, pause = True, _PAUSES[0] if is_free else min(2 * pause, _PAUSES[1])

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        """Send the player's action, empty text for a missing one; the observation reports an unreadable
        action."""
        action = "" if actions.get(0) is None else actions[0]
        data = cast("Message", action) if isinstance(action, dict) else {self._server.field: action}
        try:
            return await self._transition({"type": "step", "data": data})
        except RefusedAction as refused:
            if data is not action and action != "" and any(kind in _SPEC_FAULTS for kind in refused.types):
                message = f"{self._server.url}: {refused}; `field` names the field of its action"
                raise EnvironmentFailure(message) from None
            return Transition({0: f"{self._seen}\n\n{refused}"})

    async def close(self) -> None:
        """End the session, and let the next waiting episode have it."""
        if self._socket is not None:
            try:
                await self._disconnect()
            finally:
                self._server.call_next()

    async def _disconnect(self) -> None:
        """Close the WebSocket, and wait at most a few seconds for the server to agree."""
        from websockets.exceptions import ConnectionClosed

        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(TimeoutError, ConnectionClosed):
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
        info: dict[str, Any] = {"observation": observation}
        with suppress(EnvironmentFailure):  # the server cannot give a state
            info["state"] = await self._ask({"type": "state"})
        await self.close()  # a server has few sessions, and later roles may take their time
        with suppress(ValueError):  # too large to be recorded
            return Transition({}, rewards, done=True, info=plain_json(info, TOOL_TEXT))
        return Transition({}, rewards, done=True)

    async def _ask(self, message: Message) -> Message:
        """Send a message to the server and return the data of its reply; raises EnvironmentFailure for an
        error."""
        from websockets.exceptions import ConnectionClosed

        assert self._socket is not None, "an environment is reset first"
        url, seconds = self._server.url, self._server.timeout
        try:
            async with asyncio.timeout(seconds):
                with suppress(ConnectionClosed):  # the server's last message says why
                    await self._socket.send(json.dumps(message))
                frames = bounded(self._socket.recv_streaming(decode=False), ENV_BYTES, "it has")
                text = b"".join([frame async for frame in frames])
            reply = from_json(text)
        except TimeoutError:
            raise EnvironmentFailure(f"{url} does not answer within {seconds:g} s") from None
        except ConnectionClosed as error:
            raise EnvironmentFailure(f"{url} has closed the session: {str(error)[:_SAID]}") from None
        except (RejectedReply, ValueError) as error:
            raise EnvironmentFailure(f"rejected message from {url}: {str(error)[:_SAID]}") from None
        match reply:
            case {"type": "observation" | "state", "data": {**data}}:
                return data
            case {"type": "error", "data": {**data}}:
                raise _failure(url, data)
            case _:
                raise EnvironmentFailure(f"{url} gives no message of OpenEnv's protocol")


def _failure(url: str, data: Message) -> EnvironmentFailure:
    """Return the EnvironmentFailure for an error reply: `NoFreeSession` from a full server, `RefusedAction`
    for a bad action."""
    message = f"{url} answers {str(data.get('code'))[:_SAID]}: {str(data.get('message'))[:_SAID]}"
    match data:
        case {"code": "CAPACITY_REACHED"}:
            return NoFreeSession(message)
        case {"code": "VALIDATION_ERROR", "errors": [*errors]}:
            field_errors = [cast("Message", error) for error in errors if isinstance(error, Mapping)]
            field_messages = [f"{_place(error)}: {error.get('msg')}" for error in field_errors]
            refusal = f"the action is refused: {'; '.join(field_messages)[:_SAID]}"
            return RefusedAction(refusal, tuple(str(error.get("type")) for error in field_errors))
        case _:
            return EnvironmentFailure(message)


def _place(error: Message) -> str:
    """Return the dotted path of a pydantic error, such as `arguments.message`; `action` without a path."""
    path = error.get("loc")
    return ".".join(map(str, cast("list[object]", path))) if isinstance(path, list) and path else "action"


async def _connect(server: _Server) -> ClientConnection:
    """Open a WebSocket to the server; raises EnvironmentFailure where it cannot be reached."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    is_encrypted = server.socket.startswith("wss:")
    try:
        connector: Any = connect(
            server.socket,
            proxy=proxy_for(server.url),
            ssl=tls_context(server.url) if is_encrypted else None,
            compression=None,  # a thousand compressed bytes may hold a million
            open_timeout=server.timeout,
            close_timeout=TOOL_CLOSE_SECONDS.most,
            ping_interval=None,  # an environment that computes may answer no ping
            max_size=ENV_BYTES.most,
        )
        connector.process_redirect = _refuse_redirect
        return await connector
    except TimeoutError:
        raise EnvironmentFailure(f"{server.url} does not answer within {server.timeout:g} s") from None
    except (OSError, ImportError, ValueError, WebSocketException) as error:
        message = str(error)[:_SAID] or type(error).__name__
        raise EnvironmentFailure(f"cannot connect to {server.url}{route(server.url)}: {message}") from None


def _refuse_redirect(error: Exception) -> Exception:
    """Return the error unchanged, so that the client stops: the user's permission is for one address."""
    return error
