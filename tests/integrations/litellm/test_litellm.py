"""Models of other providers by LiteLLM, each on a stub of its provider's own wire format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import rolegraph as rg
from rolegraph.engine.records import RunFolder, read_episodes
from rolegraph.integrations.litellm.model import LiteLLMClient
from tests.cli.conftest import Command
from tests.cli.conftest import rolegraph as rolegraph
from tests.models.edges import served
from tests.models.test_refused_fields import write_sums

litellm: Any = pytest.importorskip("litellm", reason="needs the extra `litellm`")
pytestmark = pytest.mark.litellm
ANSWER = "<answer>42</answer>"
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-stub-1234567890",
    "GEMINI_API_KEY": "gemini-stub-1234567890",
    "OPENAI_API_KEY": "sk-stub-1234567890",
    "AWS_ACCESS_KEY_ID": "AKIASTUB",
    "AWS_SECRET_ACCESS_KEY": "stub-secret-1234567890",
    "AWS_REGION_NAME": "us-east-1",
}


def anthropic(body: Mapping[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 7}
    content = [{"type": "text", "text": ANSWER}]
    whole = {"id": "m1", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
    return {**whole, "content": content, "stop_reason": "end_turn", "stop_sequence": None}


def gemini(body: Mapping[str, Any]) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": ANSWER}]}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 7, "totalTokenCount": 12}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}


def bedrock(body: Mapping[str, Any]) -> dict[str, Any]:
    usage = {"inputTokens": 5, "outputTokens": 7, "totalTokens": 12}
    message = {"role": "assistant", "content": [{"text": ANSWER}]}
    whole = {"output": {"message": message}, "metrics": {"latencyMs": 1}}
    return {**whole, "stopReason": "end_turn", "usage": usage}


def responses(body: Mapping[str, Any]) -> dict[str, Any]:
    text = {"type": "output_text", "text": ANSWER, "annotations": []}
    message = {"type": "message", "id": "o1", "status": "completed", "role": "assistant", "content": [text]}
    usage = {
        "input_tokens": 5,
        "output_tokens": 7,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole = {"id": "r1", "object": "response", "created_at": 0, "status": "completed", "error": None}
    rest = {"model": body["model"], "parallel_tool_calls": True, "tools": []}
    return {**whole, **rest, "output": [message], "usage": usage}


PATHS = {"/messages": anthropic, ":generateContent": gemini, "/converse": bedrock, "/responses": responses}


class Stub:
    """Server of four providers' APIs, which records the requests."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.url = ""

    async def answer(self, request: Request) -> Response:
        path, body = request.url.path, json.loads(await request.body())
        self.bodies.append((path, body))
        say = next((say for end, say in PATHS.items() if path.endswith(end)), None)
        return JSONResponse(say(body)) if say else JSONResponse({"error": path}, status_code=404)


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    with served(Starlette(routes=[Route("/{path:path}", stub.answer, methods=["POST"])])) as url:
        stub.url = url
        yield stub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sums(tmp_path, 8)


@pytest.mark.parametrize(
    ("model", "end", "left_out"),
    [
        ("anthropic/claude-sonnet-4-5", "/messages", "seed"),
        ("gemini/gemini-2.5-flash", ":generateContent", ""),
        ("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0", "/converse", "seed"),
        ("openai/responses/gpt-4.1", "/responses", ""),
    ],
)
def test_a_provider_is_asked_in_its_own_form(
    model: str, end: str, left_out: str, folder: Path, stub: Stub, rolegraph: Command
) -> None:
    where = ("--model", f"litellm:{model}", "--base-url", stub.url, "--out", "run")
    done = rolegraph("run", "sums.yaml", *where, **KEYS)
    assert done.returncode == 0, done.stderr
    run = RunFolder(folder / "run")
    episodes = [*read_episodes(run.episodes)]
    assert len(episodes) == 8 and all(it.is_correct for it in episodes), episodes[0].failures
    assert {path.endswith(end) for path, _ in stub.bodies} == {True}
    step = episodes[0].trajectories[0].steps[0]
    assert (step.prompt_tokens, step.response_tokens) == (5, 7)
    assert step.usage.get("cost", 0) > 0 and "cost" in done.stdout
    assert left_out in {*run.info().left_out.get(f"litellm:{model}", ()), ""}


def test_its_cost_is_that_of_the_providers_price(folder: Path, stub: Stub, rolegraph: Command) -> None:
    where = ("--model", "litellm:anthropic/claude-sonnet-4-5", "--base-url", stub.url, "--out", "run")
    done = rolegraph("run", "sums.yaml", "--json", *where, **KEYS)
    counted = 5 * 3e-6 + 7 * 15e-6  # dollars of a prompt and an answer token
    assert json.loads(done.stdout)["roles"]["solver"]["cost"] == pytest.approx(8 * counted)
    found = rg.forecast(rg.load(folder / "sums.yaml", "data.train=rows.jsonl"), run=folder / "run")
    assert found.cost == pytest.approx(found.episodes * counted)


def test_a_field_that_the_provider_does_not_take_ends_the_run(
    folder: Path, stub: Stub, rolegraph: Command
) -> None:
    where = ("--model", "litellm:anthropic/claude-sonnet-4-5", "--base-url", stub.url, "--out", "run")
    done = rolegraph("run", "sums.yaml", "sampling.seed=7", *where, **KEYS)
    assert done.returncode == 2 and "takes no `seed`" in done.stderr and not stub.bodies


def test_a_key_goes_to_no_url_that_only_the_spec_names(folder: Path, rolegraph: Command) -> None:
    model = "model={provider: litellm, name: anthropic/claude-sonnet-4-5, base_url: 'https://example.com'}"
    done = rolegraph("run", "sums.yaml", model, "--out", "run", **KEYS)
    assert done.returncode == 2 and "would get the provider's key" in done.stderr


def test_an_unknown_provider_is_named(folder: Path, rolegraph: Command) -> None:
    done = rolegraph("run", "sums.yaml", "--model", "litellm:nowhere-model", "--out", "run", **KEYS)
    assert done.returncode == 2 and "knows no provider of nowhere-model" in done.stderr


def test_a_body_has_no_parameter_of_litellm(folder: Path, stub: Stub, rolegraph: Command) -> None:
    """A URL among the fields would get the provider's key."""
    where = ("--model", "litellm:anthropic/claude-sonnet-4-5", "--base-url", stub.url, "--out", "run")
    body = (
        "roles.solver.model.body={base_url: 'http://127.0.0.1:9', num_retries: 3, thinking: {type: disabled}}"
    )
    done = rolegraph("run", "sums.yaml", body, "--limit", "1", *where, **KEYS)
    assert done.returncode == 0, done.stderr
    assert stub.bodies[0][1].get("thinking") == {"type": "disabled"}


def test_fields_that_are_no_json_are_written_as_text() -> None:
    class Library:
        """LiteLLM with an answer whose fields a provider's client parsed."""

        async def acompletion(self, **fields: Any) -> Any:
            return litellm.ModelResponse(expires=datetime(2026, 1, 2), signature=b"x")

    client = LiteLLMClient(Library(), "stub", None, frozenset(), frozenset())
    whole = json.loads(asyncio.run(client.post("stub/m", [], {})))
    assert (whole["expires"], whole["signature"]) == ("2026-01-02T00:00:00", "x")
