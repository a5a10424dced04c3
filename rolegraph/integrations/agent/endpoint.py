"""Endpoint for one run of an agent program: the role's model answers its requests, in the APIs of `WIRES`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar, cast

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolegraph.engine.limits.tools import AGENT_REQUEST
from rolegraph.engine.vocabulary import Ask
from rolegraph.integrations.agent.chat_completions import CHAT_COMPLETIONS
from rolegraph.integrations.agent.messages import MESSAGES, estimate
from rolegraph.integrations.agent.responses import RESPONSES
from rolegraph.integrations.agent.wire import MODEL, Json, Wire
from rolegraph.serving.server import bounded_server, listen

T = TypeVar("T")
WIRES = (CHAT_COMPLETIONS, MESSAGES, RESPONSES)
"""The APIs that the endpoint serves."""
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 500: "api_error"}
_WAIT = 0.005


class AgentEndpoint:
    """Server on a free port of this machine, open during an `async with` block.

    Attributes:
        url: URL of the server, without a path.
        key: Key that each request must carry.
        failed: Future that gets the first error of `ask`; it never gets a result.
    """

    url: str

    def __init__(self, ask: Ask) -> None:
        self._ask, self.key = ask, secrets.token_urlsafe(24)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        routes = [
            *(Route(wire.path, partial(self._answer, wire), methods=["POST"]) for wire in WIRES),
            Route(f"{MESSAGES.path}/count_tokens", self._estimate, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        # The signals are those of the command that runs the workflow.
        self._server = bounded_server(Starlette(routes=routes), takes_signals=False)

    async def __aenter__(self) -> Self:
        listener = listen("127.0.0.1", 0)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(_WAIT)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        with suppress(asyncio.CancelledError):
            await self._serving
        if self.failed.done():
            self.failed.exception()  # marks it as retrieved
        else:
            self.failed.cancel()

    async def _models(self, request: Request) -> Response:
        if not self._is_allowed(request):
            return _error(401, "the key is not that of this run")
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _answer(self, wire: Wire, request: Request) -> Response:
        agent_request = await self._given(request, wire.read)
        if isinstance(agent_request, Response):
            return agent_request
        try:
            answer = await self._ask(agent_request.messages, agent_request.functions)
        except Exception as error:  # the run ends by it
            if not self.failed.done():
                self.failed.set_exception(error)
            return _error(500, "the model gave no answer")
        if agent_request.streams:
            return StreamingResponse(wire.events(answer, agent_request), media_type="text/event-stream")
        return JSONResponse(wire.body(answer))

    async def _estimate(self, request: Request) -> Response:
        reply = await self._given(request, estimate)
        return reply if isinstance(reply, Response) else JSONResponse(reply)

    async def _given(self, request: Request, read: Callable[[Json], T]) -> T | Response:
        """Parse a request's body with `read`; for an invalid body return the error response."""
        if not self._is_allowed(request):
            return _error(401, "the key is not that of this run")
        try:
            return read(await _body(request))
        except ValidationError as error:
            first_fault = error.errors(include_url=False)[0]
            return _error(400, f"{'.'.join(map(str, first_fault['loc']))}: {first_fault['msg']}")
        except ValueError as error:
            return _error(400, str(error))

    def _is_allowed(self, request: Request) -> bool:
        accepted_headers = {"x-api-key": self.key, "authorization": f"Bearer {self.key}"}
        return any(
            secrets.compare_digest(request.headers.get(name, "").encode(), value.encode())
            for name, value in accepted_headers.items()
        )


async def _body(request: Request) -> Json:
    """Read the body of a request.

    Raises:
        ValueError: The body is no JSON object, or too long.
    """
    body_bytes = bytearray()
    async for chunk in request.stream():
        body_bytes += chunk
        if len(body_bytes) > AGENT_REQUEST.most:
            raise ValueError(AGENT_REQUEST.exceeded("the request has"))
    body: Any = json.loads(body_bytes)
    if not isinstance(body, dict):
        raise ValueError("the request is not the JSON of an object")
    return cast("Json", body)


def _error(status: int, message: str) -> Response:
    error = {"message": message, "type": _ERRORS[status]}
    return JSONResponse({"type": "error", "error": error}, status)
