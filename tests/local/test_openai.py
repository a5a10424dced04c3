"""OpenAI's own client against /v1: every call is served, or refused with the name of the missing feature."""

from __future__ import annotations

from typing import Any

import openai
import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService

pytestmark = pytest.mark.service
HI: list[Any] = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SERVED: list[dict[str, Any]] = [
    {},
    {"temperature": None, "top_p": None, "n": None, "stop": None, "seed": None, "logprobs": None},
    {"temperature": 0, "max_completion_tokens": 3, "max_tokens": None},
    {"n": 3, "seed": -7},
    {"stop": ["a", "b"], "user": "me"},
    {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
    {"response_format": {"type": "text"}, "store": False, "service_tier": "auto"},
    {"logprobs": True, "top_logprobs": 3},
    {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
    {"messages": [*HI, {"role": "assistant", "content": "a", "refusal": None, "audio": None}, *HI]},
    {"extra_body": {"top_k": 1, "return_token_ids": True}},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": -1}, "presence_penalty"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"stream": True, "extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs"),
    ({"n": 1000}, "n"),
    ({"extra_body": {"top_k": 10**30}}, "top_k"),
    ({"extra_body": {"min_p": 0.1}}, "min_p"),
    ({"extra_body": {"best_of": 2}}, "best_of"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]


HINTED: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"a": "b"}, "store": True}, "metadata, store"),
    ({"extra_body": {"prompt_cache_key": "x"}}, "prompt_cache_key"),
    ({"tools": [{**TOOL, "function": {"name": "add", "strict": True}}], "tool_choice": "none"}, "strict"),
    ({"messages": [{"role": "user", "content": "hi", "name": "me"}]}, "name"),
    ({"extra_body": {"repetition_penalty": 1.0, "skip_special_tokens": True}}, ""),
]
"""Options that are taken without effect, with the names in the answer's header."""


@pytest.fixture
def chat(service: LocalService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.base_url}/v1", api_key=service.api_key, max_retries=0)


def ask(chat: openai.OpenAI, service: LocalService, **options: Any) -> Any:
    given = {"messages": HI, "max_tokens": 6, "seed": 3, "model": service.model_name, **options}
    return chat.chat.completions.create(**given)


@pytest.mark.parametrize("options", SERVED, ids=lambda options: "+".join(options) or "plain")
def test_a_call_with_a_supported_option_is_served(
    chat: openai.OpenAI, service: LocalService, options: dict[str, Any]
) -> None:
    found = ask(chat, service, **options)
    assert len(found.choices) == (options.get("n") or 1)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens > 0


@pytest.mark.parametrize(("options", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_an_unsupported_feature_is_refused_by_name(
    chat: openai.OpenAI, service: LocalService, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=rf"\b{name}\b") as refused:
        ask(chat, service, **options)
    assert (refused.value.type, refused.value.code) == ("invalid_request_error", None)


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"stop": ["e", "qu"]}, {"temperature": 0}], ids=str)
def test_a_stream_tells_what_the_whole_answer_is(
    chat: openai.OpenAI, service: LocalService, options: dict[str, Any]
) -> None:
    asked = {"max_tokens": 40, "logprobs": True, "extra_body": {"return_token_ids": True}, **options}
    whole = ask(chat, service, **asked)
    texts, ids, reasons, counted = dict[int, str](), dict[int, list[int]](), dict[int, str](), None
    streamed = ask(chat, service, **asked, stream=True, stream_options={"include_usage": True})
    for chunk in streamed:
        counted = chunk.usage or counted
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ids.setdefault(choice.index, []).extend(choice.model_extra["token_ids"])
            assert len(choice.logprobs.content) == len(choice.model_extra["token_ids"])
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert ids == {choice.index: choice.model_extra["token_ids"] for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert counted == whole.usage


@pytest.mark.parametrize(("options", "names"), HINTED)
def test_a_hint_is_taken_and_named(
    chat: openai.OpenAI, service: LocalService, options: dict[str, Any], names: str
) -> None:
    given = {"messages": HI, "max_tokens": 6, "seed": 3, "model": service.model_name, **options}
    answer = chat.chat.completions.with_raw_response.create(**given)
    assert answer.headers.get("x-rolegraph-without-effect", "") == names
    assert answer.parse().choices[0].finish_reason in ("stop", "length")


def complete(chat: openai.OpenAI, service: LocalService, **options: Any) -> Any:
    given = {"prompt": "hello", "max_tokens": 20, "seed": 3, "model": service.model_name, **options}
    return chat.completions.create(**given)


def test_completions_take_texts_and_ids_and_can_be_streamed(
    chat: openai.OpenAI, service: LocalService
) -> None:
    found = complete(chat, service, logprobs=0, extra_body={"return_token_ids": True})
    (choice,) = found.choices
    ids = choice.model_extra["prompt_token_ids"]
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == found.usage.completion_tokens
    for prompt in (ids, ["hello"], [ids]):
        assert complete(chat, service, prompt=prompt).choices[0].text == choice.text
    two = complete(chat, service, prompt=["hello", "you"], n=2)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert two.choices[0].text == choice.text
    pieces = list(complete(chat, service, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == choice.text
    assert pieces[-1].choices[0].finish_reason == choice.finish_reason


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"suffix": "x"}, "suffix is not served here: the model continues a text"),
        ({"best_of": 3}, "best_of is served only where it equals n"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_completions_do_not_serve_is_refused_by_name(
    chat: openai.OpenAI, service: LocalService, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=name):
        complete(chat, service, **options)


def test_models_are_listed_and_found_and_another_is_not(chat: openai.OpenAI, service: LocalService) -> None:
    (model,) = chat.models.list().data
    assert model.id == service.model_name
    assert chat.models.retrieve(model.id).id == model.id
    for call in (
        lambda: chat.models.retrieve("gpt"),
        lambda: ask(chat, service, model="gpt"),
        lambda: chat.embeddings.create(model=model.id, input="x"),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            call()
        assert refused.value.code == "not_found"
    with pytest.raises(openai.AuthenticationError) as unknown:
        chat.with_options(api_key="wrong").models.list()
    assert unknown.value.code == "invalid_api_key"


def test_weights_that_have_diverged_are_said_to_be(chat: openai.OpenAI, service: LocalService) -> None:
    import tinker

    from tests.local.client import PROMPT, datum, trainer

    client = tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)
    training = trainer(client, service)
    training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    training.optim_step(tinker.AdamParams(learning_rate=1e29)).result()
    path = training.save_weights_for_sampler("diverged").result().path
    with pytest.raises(openai.BadRequestError, match="diverged"):
        ask(chat, service, model=path)
