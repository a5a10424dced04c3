"""Answers that come as events: joined into what the same answer at once would be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from starlette.responses import Response

from rolegraph.engine.errors import ContextFull, ModelError
from rolegraph.engine.models.openai import OpenAIModel
from rolegraph.engine.models.openai_answers import read_answer
from rolegraph.engine.models.openai_fields import Taken
from rolegraph.engine.models.openai_stream import joined
from rolegraph.engine.models.types import Completion, LocalService, Request
from rolegraph.engine.spec import Sampling
from tests.models.edges import CALL, chat_stream, serving
from tests.models.test_openai import MESSAGES, ask, failure


def events(*chunks: object, end: str = "data: [DONE]\n\n", line: str = "\n") -> bytes:
    body = ": comment\n\n" + "".join(f"event: chunk\ndata: {json.dumps(it)}\n\n" for it in chunks) + end
    return body.replace("\n", line).encode()


def delta(finish: str | None = None, choice: Any = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish, **(choice or {})}]}


def call(id: str | None, name: str | None, arguments: Any, index: int | None = None) -> dict[str, Any]:
    written: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "id": id}
    return written if index is None else {**written, "index": index}


@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_a_stream_has_text_reasoning_ids_scores_and_usage(line: str) -> None:
    def scored(logprob: float, id: int) -> dict[str, Any]:
        return {"logprobs": {"content": [{"token": "t", "logprob": logprob}]}, "token_ids": [id]}

    body = events(
        {**delta(role="assistant", content=""), "prompt_token_ids": [1, 2]},
        delta(reasoning_content="so "),
        delta(reasoning_content="be it"),
        delta(content="4", choice=scored(-0.5, 7)),
        delta(content="2", choice=scored(-0.25, 8)),
        delta("stop"),
        {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}},
        line=line,
    )
    answer = read_answer(body)
    assert answer.choices
    (choice,) = answer.choices
    assert choice.message and choice.message.content.text == "42"
    assert choice.message.reasoning_content == "so be it"
    assert (choice.ids, [it.logprob for it in choice.scores]) == ([7, 8], [-0.5, -0.25])
    assert (answer.prompt_ids, choice.finish_reason) == ([1, 2], "stop")
    assert answer.usage == {"prompt_tokens": 2, "completion_tokens": 2}


CALLS = {
    "in pieces": [call("a", "f", '{"x"', 0), call(None, None, ": 1}", 0), call("b", "g", "{}", 1)],
    "a name in each": [call("a", "f", '{"x"', 0), call("a", "f", ": 1}", 0), call("b", "g", "{}", 1)],
    "all with index 0": [call("a", "f", '{"x": 1}', 0), call("b", "g", "{}", 0)],
    "without an index": [call("a", "f", '{"x": 1}'), call("b", "g", "{}")],
    "without ids": [call(None, "f", '{"x": 1}', 0), call(None, "g", "{}", 1)],
    "without either": [call("", "f", '{"x": 1}'), call("", "g", "{}")],
    "the rest without a name": [call("a", "f", '{"x"'), call(None, None, ": 1}"), call("b", "g", "{}")],
    "the rest with an id": [call(None, "f", '{"x"'), call("a", None, ": 1}"), call("b", "g", "{}")],
    "as an object": [call("a", "f", {"x": 1}, 0), call("b", "g", {}, 1)],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_joined_however_a_server_numbers_them(name: str) -> None:
    parts = [delta(tool_calls=[it]) for it in CALLS[name]]
    answer = read_answer(events(*parts, delta("tool_calls")))
    assert answer.choices and answer.choices[0].message
    made = [it.function for it in answer.choices[0].message.tool_calls or () if it.function]
    assert [(it.name, json.loads(it.arguments or "{}")) for it in made] == [("f", {"x": 1}), ("g", {})]


def test_a_stream_of_one_whole_message_is_read() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "42"}, "finish_reason": "length"}]}
    answer = read_answer(events(whole))
    assert answer.choices and answer.choices[0].is_cut
    assert answer.choices[0].message and answer.choices[0].message.content.text == "42"


def test_a_whole_message_after_deltas_adds_what_they_lack() -> None:
    made = call("a", "f", "{}")
    whole = {"role": "assistant", "content": "42", "reasoning": "so", "tool_calls": [made]}
    end = {"choices": [{"index": 0, "delta": {}, "message": whole, "finish_reason": "stop"}]}
    parts = (delta(role="assistant", content="4"), delta(content="2"), delta(tool_calls=[made]))
    answer = read_answer(events(*parts, end))
    assert answer.choices and (message := answer.choices[0].message)
    assert (message.content.text, message.thought, len(message.tool_calls or ())) == ("42", "so", 1)
    assert message.tool_calls and message.tool_calls[0].function
    assert message.tool_calls[0].function.arguments == "{}"


def lines_to_join(count: int) -> int:
    """Return the number of lines of code that run for a stream of so many calls."""
    body = events(*(delta(tool_calls=[call(f"c{n}", "f", "{}", 0)]) for n in range(count)))
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        joined(body)
    finally:
        sys.settrace(before)
    return lines


def test_the_work_for_a_stream_grows_with_its_calls() -> None:
    assert lines_to_join(800) < 5 * lines_to_join(200)


def test_a_stream_that_breaks_off_may_be_tried_again() -> None:
    error = failure(lambda _: chat_stream("4", finish=None))
    assert error.transient and "broke off" in str(error)


def test_an_error_in_a_stream_is_the_answer_s() -> None:
    def answer(message: str) -> Response:
        body = events(delta(content="4"), {"error": {"message": message, "code": 500}}, end="")
        return Response(body, media_type="text/event-stream")

    error = failure(lambda _: answer("the engine is gone"))
    assert error.transient and "the engine is gone" in str(error)
    full = "This model's maximum context length is 512 tokens; your request has 600."
    assert isinstance(failure(lambda _: answer(full)), ContextFull)


@pytest.mark.parametrize("body", [b"data: 4\n\n", b"data: {\n\n", b"data: \xff\n\n", b"data:", b": x\n\n"])
def test_events_that_are_no_answer_are_a_failure(body: bytes) -> None:
    assert failure(lambda _: Response(body, media_type="text/event-stream")).transient


def test_the_way_is_learned_once() -> None:
    def answer(body: dict[str, Any]) -> Response:
        error = {"error": {"message": "stream must be true", "param": "stream"}}
        return chat_stream("two") if body.get("stream") else Response(json.dumps(error), status_code=400)

    with serving(answer) as endpoint:
        assert [it.text for it in ask(endpoint, times=3)] == ["two"] * 3
    assert [it.get("stream", False) for it in endpoint.bodies] == [False, True, True, True]
    assert endpoint.bodies[-1]["stream_options"] == {"include_usage": True}


def test_a_failure_that_speaks_of_a_stream_asks_for_none() -> None:
    replies = iter([Response("stream timeout", status_code=504), Response("stream timeout", status_code=504)])
    with serving(lambda _: next(replies)) as endpoint, pytest.raises(ModelError, match="stream timeout"):
        ask(endpoint)
    assert ["stream" in it for it in endpoint.bodies] == [False]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda it: (
        st.lists(it, max_size=3)
        | st.dictionaries(st.sampled_from(["index", "id", "function", "name", "arguments", "content"]), it)
    ),
    max_leaves=8,
)
PARTS = st.sampled_from(["content", "tool_calls", "reasoning", "refusal", "role"])


@given(st.lists(st.dictionaries(PARTS, JSON, max_size=3) | JSON, max_size=4))
def test_any_stream_is_an_answer_or_a_fault(deltas: list[Any]) -> None:
    with contextlib.suppress(ValueError):
        read_answer(events(*({"choices": [{"index": 0, "delta": it}]} for it in deltas)))


@pytest.mark.service
def test_the_own_service_s_stream_is_its_answer_at_once(service: LocalService) -> None:
    async def answer(*, streams: bool) -> Completion:
        url = f"{service.base_url}/v1"
        client = AsyncOpenAI(base_url=url, api_key=service.api_key, max_retries=0)
        model = OpenAIModel(client, service.model_name, key=service.api_key, taken=Taken(streams=streams))
        try:
            return await model.complete(Request(MESSAGES, Sampling(max_tokens=24), 3, CALL))
        finally:
            await model.aclose()

    at_once, streamed = (asyncio.run(answer(streams=it)) for it in (False, True))
    assert streamed == at_once and streamed.response_ids and streamed.logprobs and streamed.prompt_ids
