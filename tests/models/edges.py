"""Test doubles outside the process: an HTTP endpoint on a free port, and a tokenizer folder on disk."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.records import CallId, NodeId

CALL = CallId("t", 0, NodeId("solver"))
"""Call for tests in which the choice of call does not matter."""

Answer = Callable[[dict[str, Any]], Response | Awaitable[Response]]


def chat_answer(
    text: str | None, *, finish: str = "stop", message: Any = None, choice: Any = None, **fields: Any
) -> Response:
    """Return a chat completion, with extra fields on the message, on the choice, and on the whole."""
    said = {"role": "assistant", "content": text, **(message or {})}
    only = {"index": 0, "message": said, "finish_reason": finish, **(choice or {})}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [only]}
    # In ASCII, since a text may have an unpaired surrogate.
    return Response(json.dumps({**whole, **fields}), media_type="application/json")


def chat_stream(text: str, *, choice: Any = None, finish: str | None = "stop", **fields: Any) -> Response:
    """Return a chat completion as events, one for each character, and `[DONE]` where it has a `finish`."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": it} for it in text)]
    chunks = [{"choices": [{"index": 0, "delta": it, "finish_reason": None}]} for it in deltas]
    if finish:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish, **(choice or {})}]})
    events = [json.dumps({"object": "chat.completion.chunk", **it, **fields}) for it in chunks]
    body = "".join(f"data: {it}\n\n" for it in [*events, *(["[DONE]"] if finish else [])])
    return Response(body, media_type="text/event-stream")


class Endpoint:
    """OpenAI-compatible endpoint that answers by the function `answer` and records its requests."""

    def __init__(self, answer: Answer, models: list[str] | None) -> None:
        self._answer = answer
        self._models = models
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.base_url = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._list),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _list(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization", ""))
        if self._models is None:
            return JSONResponse({"error": {"message": "no such route"}}, status_code=404)
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "us"} for name in self._models]
        return JSONResponse({"object": "list", "data": rows})

    async def _complete(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization", ""))
        self.bodies.append(body := await request.json())
        answer = self._answer(body)
        return answer if isinstance(answer, Response) else await answer


@contextmanager
def serving(answer: Answer, models: list[str] | None = None) -> Iterator[Endpoint]:
    """Serve an OpenAI-compatible endpoint for the time of the block."""
    endpoint = Endpoint(answer, models if models is not None else ["tiny"])
    with served(endpoint.app()) as url:
        endpoint.base_url = f"{url}/v1"
        yield endpoint


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """Serve `app` on a free port of this machine for the time of the block, and yield its URL."""
    server = Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    server.serves.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.end()
        thread.join()


class Server(uvicorn.Server):
    """Uvicorn server that stops at once; the original takes up to two tenths of a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = threading.Event()

    async def main_loop(self) -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        self.end = partial(loop.call_soon_threadsafe, over.set)
        await self.on_tick(0)
        self.serves.set()
        await over.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Write a byte-level tokenizer with turn markers; its end-of-text token is not its end-of-turn token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|text|>", additional_special_tokens=["<|start|>", "<|end|>"]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    return folder
