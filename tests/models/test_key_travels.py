"""Tests over real sockets that secrets of the environment reach no other origin and no proxy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, Request, open_model
from rolegraph.engine.spec import ModelRef, Sampling
from tests.models.edges import CALL, chat_answer, served

Headers = list[dict[str, str]]
METHODS = ["GET", "POST", "CONNECT"]


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("TINKER_API_KEY", "tml-mine")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-mine")


@contextmanager
def recording(path: str, location: str | None = None) -> Iterator[tuple[str, Headers]]:
    """Serve and record the headers of all requests; redirect requests of `path` to `location`."""
    heard: Headers = []

    async def answer(request: Asked) -> Response:
        heard.append(dict(request.headers))
        if location is not None and request.url.path.endswith(path):
            return RedirectResponse(location, status_code=307)
        return chat_answer("two")

    with served(Starlette(routes=[Route("/{rest:path}", answer, methods=METHODS)])) as url:
        yield url, heard


def ask(url: str) -> Completion:
    async def run() -> Completion:
        model = await open_model(ModelRef(provider="openai", name="tiny", base_url=url))
        try:
            return await model.complete(Request([{"role": "user", "content": "?"}], Sampling(), None, CALL))
        finally:
            await model.aclose()

    return asyncio.run(run())


def test_no_key_follows_a_redirect_to_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-API-Key: secret")
    with (
        recording("") as (elsewhere, heard),
        recording("/chat/completions", f"{elsewhere}/v1/chat/completions") as (url, here),
    ):
        with pytest.raises(ModelError, match=f"it redirects to {elsewhere}"):
            ask(f"{url}/v1")
        assert heard == []
        assert any(headers.get("x-api-key") == "secret" for headers in here)


def test_a_redirect_at_the_same_origin_is_followed() -> None:
    with recording("/v1/chat/completions", "/v2/chat/completions") as (url, _):
        assert ask(f"{url}/v1").text == "two"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reaches itself by 0.0.0.0 as Linux does")
def test_what_names_the_person_goes_only_where_the_key_may() -> None:
    with recording("") as (url, heard):
        ask(url)
        assert all(headers["openai-organization"] == "org-mine" for headers in heard)
        heard.clear()
        # The address is outside loopback, so it comes from the spec only.
        ask(url.replace("127.0.0.1", "0.0.0.0"))
        sent = " ".join(value for headers in heard for value in headers.values())
        assert heard
        assert not any(name.startswith("openai-") for headers in heard for name in headers)
        assert "mine" not in sent


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_what_is_meant_for_this_machine_goes_to_no_proxy(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with recording("") as (proxy, heard), recording("") as (url, here):
        monkeypatch.setenv(variable, proxy)
        monkeypatch.setenv("no_proxy", "example.org")
        assert ask(f"{url}/v1").text == "two"
        assert heard == []
        assert any("sk-mine" in headers.get("authorization", "") for headers in here)


def test_a_tinker_service_that_sends_its_callers_on_gets_no_key() -> None:
    with recording("") as (elsewhere, heard), recording("/healthz", elsewhere) as (url, here):
        with pytest.raises(UsageError, match=f"{url} redirects"):
            asyncio.run(open_model(ModelRef(provider="tinker", name="x", base_url=url)))
        assert heard == []
        assert not any("tml-mine" in str(headers) for headers in here)
