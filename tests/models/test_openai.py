"""Tests of the official client against a real endpoint on this machine: requests, records and failures."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rolegraph.engine.errors import ContextFull, ModelError, UsageError, WorldError
from rolegraph.engine.models import Completion, Request, ServedModel, open_model, open_served
from rolegraph.engine.prompts.tools import answer_message, result_message
from rolegraph.engine.records import Message
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.vocabulary import Function, ToolCall
from tests.models.edges import CALL, Answer, Endpoint, chat_answer, free_port, serving
from tests.models.full_contexts import FULL

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]


def fault(status: int, message: str, **fields: Any) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "x", **fields}}, status_code=status)


def logprobs(*values: float) -> dict[str, Any]:
    content = [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]
    return {"logprobs": {"content": content, "refusal": None}}


def ask(
    endpoint: Endpoint,
    *,
    times: int = 1,
    sampling: Sampling | None = None,
    seed: int | None = None,
    name: str | None = "tiny",
    key: str | None = None,
    messages: Sequence[Message] = MESSAGES,
    tools: Sequence[Function] = (),
) -> list[Completion]:
    """Open the model at `endpoint` and ask it `times` times, one after the other."""

    async def run() -> list[Completion]:
        ref = ModelRef(provider="openai", name=name, base_url=endpoint.base_url)
        model = await open_served(ServedModel(ref, api_key=key))
        try:
            request = Request(messages, sampling or Sampling(), seed, CALL, tools)
            return [(await model.complete(request)).checked() for _ in range(times)]
        finally:
            await model.aclose()

    return asyncio.run(run())


def failure(answer: Answer, **options: Any) -> ModelError:
    with serving(answer) as endpoint, pytest.raises(ModelError) as caught:
        ask(endpoint, **options)
    return caught.value


def test_an_answer_keeps_text_ids_logprobs_and_finish_reason() -> None:
    with serving(
        lambda _: chat_answer(
            "two",
            finish="length",
            choice={**logprobs(-0.5, -0.25), "token_ids": [7, 8]},
            prompt_token_ids=[1, 2, 3],
        )
    ) as endpoint:
        (completion,) = ask(endpoint)
    assert completion == Completion(
        text="two",
        prompt_ids=array("i", [1, 2, 3]),
        response_ids=array("i", [7, 8]),
        logprobs=array("d", [-0.5, -0.25]),
        finish_reason="length",
    )


@pytest.mark.parametrize(("ids", "counted"), [({}, True), ({"token_ids": [7]}, True), (None, False)])
def test_tokens_that_have_no_ids_are_counted_by_the_server(ids: dict[str, Any] | None, counted: bool) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
    choice = {"token_ids": [7], "prompt_token_ids": [1]} if ids is None else ids
    with serving(lambda _: chat_answer("two", usage=usage, choice=choice)) as endpoint:
        (completion,) = ask(endpoint)
    assert completion.usage == ({"prompt_tokens": 11, "completion_tokens": 2} if counted else {})


def test_ids_are_found_where_other_servers_put_them() -> None:
    choice = {"response_token_ids": [7], "prompt_token_ids": [1, 2], **logprobs(-0.5)}
    with serving(lambda _: chat_answer("two", choice=choice)) as endpoint:
        (completion,) = ask(endpoint)
    assert (*completion.prompt_ids, *completion.response_ids) == (1, 2, 7)


def test_logprobs_that_do_not_match_the_ids_are_left_out() -> None:
    with serving(lambda _: chat_answer("two", choice={"token_ids": [7, 8], **logprobs(-0.5)})) as endpoint:
        (completion,) = ask(endpoint)
    assert (*completion.response_ids, *completion.logprobs) == (7, 8)
    assert completion.unusable_numbers == ("1 log-probabilities for 2 token ids",)


def test_the_request_says_how_to_sample() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=64, stop=["END"])
    with serving(lambda _: chat_answer("two")) as endpoint:
        ask(endpoint, sampling=sampling, seed=17)
    (body,) = endpoint.bodies
    assert body["messages"] == MESSAGES
    sent = {key: body[key] for key in ("model", "temperature", "top_p", "max_tokens", "stop", "seed")}
    assert sent == {
        "model": "tiny",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 64,
        "stop": ["END"],
        "seed": 17,
    }
    assert body["logprobs"] is True
    assert body["return_token_ids"] is True


@pytest.mark.parametrize("refused", [["return_token_ids"], ["return_token_ids", "logprobs"]])
@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_server_that_refuses_logprobs_or_ids_is_asked_without_and_remembered(
    refused: list[str], status: int
) -> None:
    def strict(body: dict[str, Any]) -> Response:
        wrong = [name for name in refused if name in body]
        return fault(status, f"Unrecognized argument: {wrong[0]}") if wrong else chat_answer("two")

    with serving(strict) as endpoint:
        first, second = ask(endpoint, times=2)
    assert first.text == second.text == "two"
    assert len(endpoint.bodies) == len(refused) + 2
    assert ("logprobs" in endpoint.bodies[-1]) == ("logprobs" not in refused)


def test_a_bad_request_is_not_tried_again_and_gives_the_servers_words() -> None:
    too_long = "This model's maximum context length is 512 tokens; your request has 600."
    error = failure(lambda _: fault(400, too_long))
    assert too_long in str(error)
    assert not error.transient


def test_a_bad_request_after_a_good_one_costs_one_call() -> None:
    replies = iter([chat_answer("two"), fault(400, "too long")])
    with serving(lambda _: next(replies)) as endpoint, pytest.raises(ModelError, match="too long"):
        ask(endpoint, times=2)
    assert len(endpoint.bodies) == 2


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_overload_and_server_faults_may_pass_and_are_left_to_the_scheduler(status: int) -> None:
    replies = iter([fault(status, "busy"), chat_answer("two")])

    async def run(endpoint: Endpoint) -> None:
        model = await open_model(ModelRef(provider="openai", name="tiny", base_url=endpoint.base_url))
        with pytest.raises(ModelError, match=f"answers {status}: busy") as caught:
            await model.complete(Request(MESSAGES, Sampling(), None, CALL))
        assert caught.value.transient
        assert len(endpoint.bodies) == 1
        assert (await model.complete(Request(MESSAGES, Sampling(), None, CALL))).text == "two"
        await model.aclose()

    with serving(lambda _: next(replies)) as endpoint:
        asyncio.run(run(endpoint))


@pytest.mark.parametrize("status", [429, 503])
def test_how_long_a_server_asks_to_wait_is_known(status: int) -> None:
    def busy(_: dict[str, Any]) -> Response:
        answer = fault(status, "busy")
        answer.headers["Retry-After"] = "7"
        return answer

    assert failure(busy).after == 7.0
    assert failure(lambda _: fault(status, "busy")).after is None


def test_a_spent_quota_does_not_pass() -> None:
    assert not failure(lambda _: fault(429, "You have no credit.", code="insufficient_quota")).transient


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_by_its_variable_and_never_shown(status: int) -> None:
    error = failure(lambda _: fault(status, "Incorrect key: sk-secret-123"), key="sk-secret-123")
    assert "refuses the key in OPENAI_API_KEY (Incorrect key: [key])" in str(error)
    assert not error.transient


def test_an_endpoint_on_this_machine_needs_no_key_and_gets_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(lambda _: chat_answer("two")) as endpoint:
        ask(endpoint)
        assert set(endpoint.keys) == {"Bearer none"}
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        ask(endpoint)
        assert endpoint.keys[-1] == "Bearer sk-mine"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_that_the_server_sets_apart_is_thought(field: str) -> None:
    with serving(lambda _: chat_answer("2", message={field: "one and one\n"})) as endpoint:
        (completion,) = ask(endpoint)
    assert (completion.thought, completion.text) == ("one and one", "2")


@pytest.mark.parametrize("content", ["<think>one and one</think>\n2", "one and one\n</think>\n2"])
def test_reasoning_inside_the_text_is_thought_also_when_the_prompt_opened_it(content: str) -> None:
    with serving(lambda _: chat_answer(content)) as endpoint:
        (completion,) = ask(endpoint)
    assert (completion.thought, completion.text) == ("one and one", "2")


def test_an_answer_cut_off_while_reasoning_has_no_text() -> None:
    with serving(lambda _: chat_answer(None, finish="length", message={"reasoning": "one and"})) as endpoint:
        (completion,) = ask(endpoint)
    assert (completion.thought, completion.text, completion.finish_reason) == ("one and", "", "length")


def test_refused_and_filtered_answers_are_model_errors() -> None:
    refusal = failure(lambda _: chat_answer(None, message={"refusal": "I would rather not."}))
    assert "refused to answer: I would rather not." in str(refusal)
    assert "content_filter" in str(failure(lambda _: chat_answer("", finish="content_filter")))


def test_an_error_inside_a_good_status_may_pass() -> None:
    error = failure(lambda _: JSONResponse({"error": {"message": "upstream overloaded"}}))
    assert "upstream overloaded" in str(error)
    assert error.transient


def test_a_page_that_is_no_answer_says_that_the_url_may_be_wrong() -> None:
    error = failure(lambda _: PlainTextResponse("<html>hello</html>"))
    assert "often ends in /v1" in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("<html>busy</html>", media_type="text/html"),
        PlainTextResponse('{"choices": [{"mess', media_type="application/json"),
        PlainTextResponse("[" * 100_000, media_type="application/json"),
        JSONResponse({"choices": [5], "object": "chat.completion"}),
        JSONResponse({"choices": 5}),
        JSONResponse({"choices": [{"message": None}]}),
        JSONResponse({"choices": [{"message": {"content": {"a": 1}}}]}),
        chat_answer("", message={"tool_calls": [{"type": "function", "function": {"name": 3}}]}),
        chat_answer("", message={"tool_calls": [7]}),
        JSONResponse(None),
        JSONResponse([1]),
        Response(b"\xff\xfe\x00", media_type="application/json"),
    ],
)
def test_garbage_with_a_good_status_may_pass(answer: Response) -> None:
    error = failure(lambda _: answer)
    assert error.transient
    assert "OpenAI's chat completions" in str(error)


def test_without_a_name_the_only_model_is_taken() -> None:
    with serving(lambda _: chat_answer("two"), models=["the-one"]) as endpoint:
        ask(endpoint, name=None)
    assert endpoint.bodies[0]["model"] == "the-one"


@pytest.mark.parametrize(("models", "says"), [(["a", "b"], "offers a, b"), ([], "lists no models")])
def test_without_a_name_several_models_or_none_is_a_usage_error(models: list[str], says: str) -> None:
    with (
        serving(lambda _: chat_answer("two"), models=models) as endpoint,
        pytest.raises(UsageError, match=says),
    ):
        ask(endpoint, name=None)


def test_an_endpoint_that_is_down_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(WorldError, match=rf"Nothing answers at {url} \("):
        asyncio.run(open_model(ModelRef(provider="openai", name="tiny", base_url=url)))


def test_an_endpoint_that_goes_down_may_come_back() -> None:
    async def run() -> None:
        with serving(lambda _: chat_answer("two")) as endpoint:
            model = await open_model(ModelRef(provider="openai", name="tiny", base_url=endpoint.base_url))
        with pytest.raises(ModelError, match="Cannot reach http://127") as caught:
            await model.complete(Request(MESSAGES, Sampling(), None, CALL))
        assert caught.value.transient
        await model.aclose()

    asyncio.run(run())


def test_openai_itself_needs_a_key() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY is not set"):
        asyncio.run(open_model(ModelRef(provider="openai", name="gpt")))


def test_what_is_no_url_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'localhost:8000' is not a URL"):
        asyncio.run(open_model(ModelRef(provider="openai", name="tiny", base_url="localhost:8000")))


def test_headers_of_the_environment_go_to_no_url_that_only_the_spec_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Secret: mine")
    with pytest.raises(UsageError, match="OPENAI_CUSTOM_HEADERS is not sent to https") as caught:
        asyncio.run(open_model(ModelRef(provider="openai", name="tiny", base_url="https://evil.example/v1")))
    assert "OPENAI_API_KEY" not in str(caught.value)


async def _add(arguments: Any) -> int:
    return 0


ADD = Function("add", "Adds.", {"type": "object", "properties": {"a": {}}}, _add)


def test_tools_are_offered_and_what_is_asked_of_them_comes_back_with_its_id() -> None:
    asked = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a": '}},
    ]
    with serving(lambda _: chat_answer(None, finish="tool_calls", message={"tool_calls": asked})) as endpoint:
        (completion,) = ask(endpoint, tools=[ADD])
    assert completion.text == ""
    assert completion.finish_reason == "stop"
    assert completion.calls == (ToolCall("add", {"a": 1}, "c1"), ToolCall("add", {}, "c2", '{"a": '))
    (tool,) = endpoint.bodies[0]["tools"]
    assert tool == {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": ADD.parameters},
    }


def test_results_are_sent_back_under_the_ids_of_their_calls() -> None:
    calls = (ToolCall("add", {"a": 1}, "c1"), ToolCall("add", {}, "c2", '{"a": '))
    messages = [
        *MESSAGES,
        answer_message("Hm.", "let me think", calls),
        *(result_message(call, "2") for call in calls),
    ]
    with serving(lambda _: chat_answer("two")) as endpoint:
        ask(endpoint, tools=[ADD], messages=messages)
    answer, *sent = endpoint.bodies[0]["messages"][2:]
    assert answer["content"] == "Hm."
    assert "reasoning" not in answer
    written = [(call["id"], call["function"]["arguments"]) for call in answer["tool_calls"]]
    assert written == [("c1", '{"a": 1}'), ("c2", "{}")], (
        "servers read them again, and refuse what is no JSON"
    )
    assert sent == [{"role": "tool", "content": "2", "tool_call_id": id} for id in ("c1", "c2")]


def test_nothing_is_said_of_tools_where_there_are_none() -> None:
    with serving(lambda _: chat_answer("two")) as endpoint:
        ask(endpoint)
    assert "tools" not in endpoint.bodies[0]


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("content", "text", "thought"),
    [
        ([{"type": "text", "text": "tw"}, {"type": "text", "text": "o"}], "two", ""),
        ([THINKING, {"type": "text", "text": "two"}], "two", "hm"),
        ([{"type": "reasoning", "reasoning": "hm"}, {"type": "output_text", "text": "two"}], "two", "hm"),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, "two"], "two", "hm"),
        ([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "two"}], "two", ""),
        ([{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "two"}], "two", ""),
        ({"type": "text", "text": "two"}, "two", ""),
        ([], "", ""),
        (None, "", ""),
        ("two", "two", ""),
    ],
)
def test_content_in_parts_is_read(content: Any, text: str, thought: str) -> None:
    with serving(lambda _: chat_answer(None, message={"content": content})) as endpoint:
        (completion,) = ask(endpoint)
    assert (completion.text, completion.thought) == (text, thought)


def test_a_refusal_in_a_part_is_a_refusal() -> None:
    parts = [{"type": "refusal", "refusal": "I would rather not."}]
    error = failure(lambda _: chat_answer(None, message={"content": parts}))
    assert "refused to answer: I would rather not." in str(error)


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ({"content": [{"type": "image_url", "image_url": {}}]}, "content: a part has the type"),
        ({"content": 5}, "content"),
        ({"content": "x", "tool_calls": [7]}, "tool_calls.0"),
    ],
)
def test_a_form_that_cannot_be_read_is_named_and_the_url_is_not_blamed(message: Any, names: str) -> None:
    error = failure(lambda _: chat_answer(None, message=message))
    assert names in str(error)
    assert "URL" not in str(error)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ({"name": "ask", "arguments": {"q": 1}}, ToolCall("ask", {"q": 1}, "c1")),
        ({"name": "ask"}, ToolCall("ask", {}, "c1")),
        ({"name": "ask", "arguments": None}, ToolCall("ask", {}, "c1")),
        ({"name": "ask", "arguments": ""}, ToolCall("ask", {}, "c1")),
        ({"name": "ask", "arguments": " "}, ToolCall("ask", {}, "c1")),
        ({"name": "ask", "arguments": "null"}, ToolCall("ask", {}, "c1")),
        ({"name": "ask", "arguments": [1]}, ToolCall("ask", {}, "c1", malformed="[1]")),
        ({"name": "ask", "arguments": {"q": "\ud83d"}}, ToolCall("ask", {"q": "\ufffd"}, "c1")),
        ({"name": "ask", "arguments": '{"q": "\\ud83d"}'}, ToolCall("ask", {}, "c1", '{"q": "\\ud83d"}')),
        ({"name": None, "arguments": "{}"}, ToolCall("", {}, "c1", malformed="{}")),
    ],
)
def test_arguments_of_any_form_are_read_or_malformed(function: Any, call: ToolCall) -> None:
    calls = [{"id": "c1", "type": "function", "function": function}]
    with serving(lambda _: chat_answer(None, message={"tool_calls": calls})) as endpoint:
        (completion,) = ask(endpoint)
    assert completion.calls == (call,)


def test_an_unpaired_surrogate_in_an_answer_is_a_replacement_character() -> None:
    with serving(lambda _: chat_answer("a\ud83db 😀")) as endpoint:
        (completion,) = ask(endpoint)
    assert completion.text == "a\ufffdb 😀"


@pytest.mark.parametrize(
    "usage",
    [None, [], "n/a", {}, {"prompt_tokens": None}, {"prompt_tokens": "many"}, {"cost": -5.0}],
)
def test_a_usage_of_any_form_leaves_the_answer(usage: Any) -> None:
    with serving(lambda _: chat_answer("two", usage=usage)) as endpoint:
        (completion,) = ask(endpoint)
    assert (completion.text, completion.usage) == ("two", {})


@pytest.mark.parametrize(
    ("finish", "read"),
    [
        (None, "stop"),
        ("eos_token", "stop"),
        (7, "stop"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
    ],
)
def test_the_words_for_the_end_of_an_answer(finish: Any, read: str) -> None:
    with serving(lambda _: chat_answer("two", finish=finish)) as endpoint:
        (completion,) = ask(endpoint)
    assert completion.finish_reason == read


def test_a_choice_without_a_message_is_an_empty_answer_where_it_was_cut_and_else_named() -> None:
    with serving(lambda _: chat_answer(None, choice={"message": None}, finish="length")) as endpoint:
        (completion,) = ask(endpoint)
    assert (completion.text, completion.finish_reason) == ("", "length")
    error = failure(lambda _: chat_answer(None, choice={"message": None}))
    assert "has no message" in str(error)
    assert "URL" not in str(error)


def test_an_error_in_a_choice_is_the_servers() -> None:
    broken = {"error": {"message": "upstream is gone", "code": 502}}
    error = failure(lambda _: chat_answer("", finish="error", choice=broken))
    assert "upstream is gone" in str(error)
    assert error.transient


@pytest.mark.parametrize(
    ("answer", "is_url"),
    [
        (JSONResponse({"detail": "Not Found"}, status_code=404), True),
        (PlainTextResponse("<html>404</html>", status_code=404), True),
        (PlainTextResponse("", status_code=405), True),
        (fault(404, "The model `tiny` does not exist."), False),
        (JSONResponse({"object": "error", "message": "no such model"}, status_code=404), False),
        (JSONResponse({"detail": "ok"}), True),
        (PlainTextResponse('{"choices": [{"mess'), False),
        (JSONResponse({"choices": []}), False),
    ],
)
def test_the_url_is_doubted_where_nothing_of_the_protocol_is_there(answer: Response, is_url: bool) -> None:
    assert ("Is the URL right?" in str(failure(lambda _: answer))) == is_url


@pytest.mark.parametrize("status", [200, 400, 413, 422])
@pytest.mark.parametrize("message", FULL.values(), ids=FULL)
def test_a_prompt_beyond_the_context_is_context_full(message: str, status: int) -> None:
    error = failure(lambda _: fault(status, message))
    assert isinstance(error, ContextFull)
    assert message[:20] in str(error)


def test_the_code_and_an_error_without_an_object_name_a_full_context_as_well() -> None:
    assert isinstance(failure(lambda _: fault(400, "x", code="context_length_exceeded")), ContextFull)
    text = {"error": FULL["TGI"], "error_type": "validation"}
    assert isinstance(failure(lambda _: JSONResponse(text, status_code=422)), ContextFull)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
        (429, "Request too large for this model on tokens per min (TPM): Limit 10000"),
        (400, "The model refuses: some text"),
        (400, "string too long. Expected a string with maximum length 1048576"),
        (400, "The tool's description exceeds the maximum length of 1024 characters"),
        (400, "Invalid 'user': string too long. Expected a string with maximum length 64"),
        (400, "max_tokens exceeds the limit of 4096"),
    ],
)
def test_other_refusals_are_not_context_full(status: int, message: str) -> None:
    assert not isinstance(failure(lambda _: fault(status, message)), ContextFull)


def test_a_full_context_costs_one_call() -> None:
    with serving(lambda _: fault(400, FULL["OpenAI"])) as endpoint:
        with pytest.raises(ContextFull):
            ask(endpoint)
        assert len(endpoint.bodies) == 1
