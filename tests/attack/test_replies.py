"""Tests of hostile HTTP responses: every client that reads those of strangers has the same bounds."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rolegraph.engine.errors import ModelError
from rolegraph.engine.limits.answers import COMPLETION_SECONDS
from rolegraph.engine.limits.tools import REPLY_SECONDS
from rolegraph.engine.models import Request as ModelRequest
from rolegraph.engine.models import open_model
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.vocabulary import ItemCall, ToolError, tools
from tests.models.edges import CALL, chat_answer, served

ZEROS = gzip.compress(b"[" + b"0" * 20_000_000)


async def drip() -> AsyncGenerator[bytes, None]:
    while True:
        yield b" "
        await asyncio.sleep(0.05)


def endpoint(answer: Callable[[], Response]) -> Any:
    """Serve one answer at every path but the list of models."""

    async def give(request: Request) -> Response:
        return Response("{}") if request.url.path.endswith("/models") else answer()

    return served(Starlette(routes=[Route("/{path:path}", give, methods=["GET", "POST"])]))


def ask_tool(item: Mapping[str, Any]) -> str:
    async def ask() -> str:
        made = tools.build(ItemCall.parse(dict(item)))
        assert made.open is not None
        async with made.open() as (function,):
            (name,) = function.parameters["properties"]
            return str(await function.call({name: "1"}))

    try:
        return asyncio.run(ask())
    except ToolError as error:
        return f"ToolError: {error}"


def ask_model(url: str) -> str:
    async def ask() -> str:
        model = await open_model(ModelRef(provider="openai", name="tiny", base_url=url))
        try:
            return (await model.complete(ModelRequest([], Sampling(), None, CALL))).text
        finally:
            await model.aclose()

    try:
        return asyncio.run(ask())
    except ModelError as error:
        return f"ModelError: {error}"


CLIENTS: Mapping[str, Callable[[str], str]] = {
    "http": lambda url: ask_tool({"http": None, "url": url}),
    "search": lambda url: ask_tool({"search": None, "url": url}),
    "model": ask_model,
}


def packed(times: int) -> bytes:
    body = ZEROS
    for _ in range(1, times):
        body = gzip.compress(body)
    return body


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("times", [1, 2])
def test_a_packed_response_is_not_unpacked(client: str, status: int, times: int) -> None:
    headers = {"content-encoding": ", ".join(["gzip"] * times)}
    with endpoint(lambda: Response(packed(times), status, headers)) as url:
        said = CLIENTS[client](url)
    assert said.startswith(("ToolError: rejected response", "ModelError: rejected response"))
    assert "Content-Encoding is 'gzip" in said


@pytest.mark.parametrize("client", ["http", "model"])
@pytest.mark.parametrize("charset", ["punycode", "utf-7", "unicode_escape", "idna"])
def test_a_text_is_decoded_as_utf_8_where_its_charset_is_an_odd_one(client: str, charset: str) -> None:
    # As punycode this is bücher, and 900,000 such bytes take 40 s.
    body = b'{"error": {"message": "bcher-kva +AGE-"}}'
    with endpoint(lambda: Response(body, 400, media_type=f"text/plain; charset={charset}")) as url:
        assert "bcher-kva +AGE-" in CLIENTS[client](url)


def test_of_thousands_of_cookies_a_model_s_client_sends_few_back() -> None:
    sent: list[int] = []

    async def bake(request: Request) -> Response:
        sent.append(len(request.cookies))
        answer = chat_answer("a")
        for number in range(100):
            answer.set_cookie(f"c{len(sent)}-{number}", "a")
        return answer

    async def ask(url: str) -> None:
        model = await open_model(ModelRef(provider="openai", name="tiny", base_url=url))
        for _ in range(5):
            await model.complete(ModelRequest([], Sampling(), None, CALL))
        await model.aclose()

    with served(Starlette(routes=[Route("/{path:path}", bake, methods=["GET", "POST"])])) as url:
        asyncio.run(ask(url))
    assert max(sent) <= 100


def test_latin_1_is_read_as_such() -> None:
    with endpoint(
        lambda: Response("é".encode("latin-1"), media_type="text/plain; charset=ISO-8859-1")
    ) as url:
        assert CLIENTS["http"](url) == "é"
    with endpoint(lambda: Response("é".encode(), media_type="text/plain")) as url:
        assert CLIENTS["http"](url) == "é"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [200, 400])
def test_a_response_that_never_ends_ends_for_its_reader(
    client: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.roles.tools.REPLY_SECONDS", REPLY_SECONDS._replace(most=1))
    monkeypatch.setattr(
        "rolegraph.engine.models.openai.COMPLETION_SECONDS", COMPLETION_SECONDS._replace(most=1)
    )
    with endpoint(lambda: StreamingResponse(drip(), status)) as url:
        assert "answer within 1 seconds" in CLIENTS[client](url)
