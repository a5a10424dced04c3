"""Tools in the service's chat completions, by OpenAI's own client, and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx
import openai
import pytest

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts import Tokenizer
from rolegraph.local.launcher import BASE_MODEL
from tests.edge import RIGHT

pytest.importorskip("torch", reason="needs the extra `local`")

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
]
ASK = {"role": "user", "content": "3 + 4?"}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>'


class ScriptedBackend:
    """A backend that answers with given texts and records the prompts."""

    name = "small"

    def __init__(self, *texts: str) -> None:
        self.texts, self.prompts = list(texts), list[str]()
        self.tokenizer: Any = load_tokenizer(BASE_MODEL)
        eos = self.tokenizer.eos_token_id
        self.model = SimpleNamespace(
            tokenizer=self.tokenizer,
            context=2048,
            vocabulary=len(self.tokenizer),
            end_ids=frozenset({eos}),
        )

    def check_name(self, name: str) -> None:
        assert name == self.name

    async def sample(self, job: Any) -> None:
        for request in job.requests:
            self.prompts.append(decode(self.tokenizer, request.prompt))
            text = self.texts.pop(0)
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            request.tokens.extend([*ids, self.tokenizer.eos_token_id])
            request.logprobs.extend([0.0] * len(request.tokens))
            request.reason = "stop"


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def chat(model: ScriptedBackend, *asked: dict[str, Any]) -> list[Any]:
    """Send requests one after the other and return the answers."""
    from starlette.applications import Starlette

    from rolegraph.local.service.endpoints import ERROR_HANDLERS
    from rolegraph.local.service.openai_api import OpenAIService

    service = OpenAIService(cast("Any", model))
    app = Starlette(routes=service.routes(), exception_handlers=ERROR_HANDLERS)

    async def run() -> list[Any]:
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        async with openai.AsyncOpenAI(
            base_url="http://here/v1", api_key="none", max_retries=0, http_client=web
        ) as client:
            return [await client.chat.completions.create(model="small", **options) for options in asked]

    return asyncio.run(run())


def test_a_call_is_answered_as_openai_has_it_and_its_result_is_read() -> None:
    model = ScriptedBackend(f"Let me see. {CALL}", RIGHT)
    (first,) = chat(model, {"messages": [ASK], "tools": TOOLS})
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "add", '{"a": 3}')
    assert '"name": "add"' in model.prompts[0]

    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    messages = [ASK, choice.message.model_dump(exclude_none=True), result]
    (second,) = chat(model, {"messages": messages, "tools": TOOLS})
    assert second.choices[0].message.content == RIGHT
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].finish_reason == "stop"
    assert f"Let me see.{CALL}<|im_end|>\n<|im_start|>tool\n7<|im_end|>" in model.prompts[1]


def test_a_call_that_cannot_be_read_is_text() -> None:
    (answer,) = chat(ScriptedBackend("<tool_call>add 3"), {"messages": [ASK], "tools": TOOLS})
    assert answer.choices[0].message.content == "<tool_call>add 3"
    assert (answer.choices[0].message.tool_calls, answer.choices[0].finish_reason) == (None, "stop")


def test_without_tools_nothing_is_a_call() -> None:
    model = ScriptedBackend(CALL, CALL)
    for answer in chat(
        model, {"messages": [ASK]}, {"messages": [ASK], "tools": TOOLS, "tool_choice": "none"}
    ):
        assert answer.choices[0].message.content == CALL
    assert model.prompts == ["<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n"] * 2
