"""OpenAI's chat completions for one run of an agent program, answered by the role's model."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, Self

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolegraph.engine.http_server import bounded_server, listen
from rolegraph.engine.limits.tools import AGENT_REQUEST
from rolegraph.engine.prompts.chat_bodies import ChatFields, StreamFields
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.engine.vocabulary import AgentAnswer, Ask

MODEL = "rolegraph"
"""Name of the model in the list of models; requests may name any."""
_WAIT = 0.005


class AgentRequest(ChatFields, StreamFields):
    """The parts of a request that count; the spec's `sampling` has the place of all others."""


class AgentEndpoint:
    """Server on a free port of this machine, open for the time of an `async with` block.

    Attributes:
        url: Base URL, which ends with /v1.
        key: Key that each request must carry.
        failed: Future that gets the first error of `ask`; it has no result.
    """

    url: str

    def __init__(self, ask: Ask) -> None:
        self._ask, self.key = ask, secrets.token_urlsafe(24)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
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
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
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

    async def _chat(self, request: Request) -> Response:
        if not self._is_allowed(request):
            return _error(401, "the key is not that of this run")
        try:
            body = await _body(request)
        except ValueError as error:
            return _error(400, str(error))
        try:
            answer = await self._ask([message.message() for message in body.messages], body.functions)
        except Exception as error:  # the run ends by it
            if not self.failed.done():
                self.failed.set_exception(error)
            return _error(500, "the model gave no answer")
        if not body.stream:
            choice = {"index": 0, "message": _message(answer), "finish_reason": _reason(answer)}
            return JSONResponse({**_head("chat.completion"), "choices": [choice], "usage": _usage(answer)})
        return StreamingResponse(_events(answer, with_usage=body.with_usage), media_type="text/event-stream")

    def _is_allowed(self, request: Request) -> bool:
        given = request.headers.get("authorization", "")
        return secrets.compare_digest(given.encode(), f"Bearer {self.key}".encode())


async def _body(request: Request) -> AgentRequest:
    """Read the parts of a request that count; raises ValueError for a body that cannot be read."""
    text = bytearray()
    async for chunk in request.stream():
        text += chunk
        if len(text) > AGENT_REQUEST.most:
            raise ValueError(AGENT_REQUEST.exceeded("the request has"))
    given: Any = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("the request is not the JSON of an object")
    try:
        return AgentRequest.model_validate(
            {name: given[name] for name in AgentRequest.model_fields if name in given}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _message(answer: AgentAnswer) -> Mapping[str, Any]:
    # OpenAI's API has no call without a name.
    return answer_message(answer.text, calls=[call for call in answer.calls if call.name])


def _reason(answer: AgentAnswer) -> str:
    if any(call.name for call in answer.calls):
        return "tool_calls"
    return "length" if answer.is_cut else "stop"


def _usage(answer: AgentAnswer) -> Mapping[str, int]:
    total = answer.prompt_tokens + answer.answer_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.answer_tokens,
        "total_tokens": total,
    }


def _head(kind: str) -> dict[str, Any]:
    id = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": id, "object": kind, "created": int(time.time()), "model": MODEL}


async def _events(answer: AgentAnswer, *, with_usage: bool) -> AsyncGenerator[str, None]:
    """Yield the answer as the events of a stream: the whole message, the reason of its end, the usage."""
    head, message = _head("chat.completion.chunk"), dict(_message(answer))
    if "tool_calls" in message:
        message["tool_calls"] = [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": message, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": _reason(answer)},
    ]
    chunks: list[dict[str, Any]] = [{**head, "choices": [choice]} for choice in choices]
    if with_usage:
        chunks.append({**head, "choices": [], "usage": _usage(answer)})
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status)
