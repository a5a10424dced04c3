"""Scoring at /v1: log-probabilities equal those of transformers and of the Tinker API."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import openai
import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import tinker

from rolegraph.local.launcher import LocalService
from rolegraph.local.service.batcher import SampleJob
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.openai_answers import CompletionAnswer
from rolegraph.local.service.openai_bodies import CompletionBody
from rolegraph.local.service.sampling import SampleRequest
from tests.local.client import plain_logprobs, prompt, sampler

pytestmark = pytest.mark.service
TEXT = "héllo ✓ x"
"""A text with characters that the model's tokenizer splits."""


@pytest.fixture
def chat(service: LocalService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.base_url}/v1", api_key=service.api_key, max_retries=0)


def score(chat: openai.OpenAI, service: LocalService, **options: Any) -> Any:
    given = {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 2, "model": service.model_name}
    extra = {"return_token_ids": True, **options.pop("extra_body", {})}
    return chat.completions.create(**{**given, **options}, extra_body=extra)


def test_an_echoed_prompt_is_scored_as_transformers_and_tinker_score_it(
    chat: openai.OpenAI, service: LocalService, client: tinker.ServiceClient, model_dir: Path
) -> None:
    found = score(chat, service)
    (choice,) = found.choices
    ids, scores = choice.model_extra["prompt_token_ids"], choice.logprobs
    assert (choice.text, choice.finish_reason, found.usage.completion_tokens) == (TEXT, "length", 0)
    assert scores.token_logprobs[0] is scores.top_logprobs[0] is None
    assert scores.token_logprobs[1:] == pytest.approx(plain_logprobs(model_dir, ids), abs=1e-4)
    tinkers = sampler(client, service).compute_logprobs(prompt(ids)).result()
    assert scores.token_logprobs[1:] == pytest.approx(tinkers[1:], abs=1e-4)


def test_offsets_point_into_the_text(chat: openai.OpenAI, service: LocalService) -> None:
    choice = score(chat, service, max_tokens=4, seed=1).choices[0]
    scores, count = choice.logprobs, len(choice.model_extra["prompt_token_ids"])
    assert choice.text.startswith(TEXT)
    assert len(scores.tokens) == len(scores.text_offset) == len(scores.top_logprobs) == count + 4
    assert scores.text_offset[count] == len(TEXT)
    for token, offset in zip(scores.tokens, scores.text_offset, strict=True):
        assert token == "\ufffd" or choice.text.startswith(token, offset)


def test_likeliest_tokens_include_the_own_one(chat: openai.OpenAI, service: LocalService) -> None:
    scores = score(chat, service, prompt="hello", max_tokens=6, temperature=0).choices[0].logprobs
    for token, own, top in zip(
        scores.tokens[1:], scores.token_logprobs[1:], scores.top_logprobs[1:], strict=True
    ):
        assert top[token] >= own
        assert len(top) <= 3
    for own, top in zip(scores.token_logprobs[5:], scores.top_logprobs[5:], strict=True):
        assert own == max(top.values())


def test_prompts_may_be_texts_or_token_ids(chat: openai.OpenAI, service: LocalService) -> None:
    whole = score(chat, service).choices[0]
    ids = whole.model_extra["prompt_token_ids"]
    for given in ([TEXT], ids, [ids]):
        (choice,) = score(chat, service, prompt=given).choices
        assert (choice.text, choice.logprobs) == (whole.text, whole.logprobs)
    first, second = score(chat, service, prompt=["hello", TEXT]).choices
    assert (first.text, second.text) == ("hello", TEXT)
    assert second.logprobs.token_logprobs[1:] == pytest.approx(whole.logprobs.token_logprobs[1:], abs=1e-4)
    two = score(chat, service, prompt=["hello", TEXT], n=2, max_tokens=3, seed=1)
    assert [choice.text.startswith(("hello", TEXT)) for choice in two.choices] == [True] * 4
    assert two.usage.prompt_tokens == len(ids) + 5
    assert score(chat, service, echo=False, logprobs=None).choices[0].text == ""


def test_a_streamed_echo_is_the_whole_one(chat: openai.OpenAI, service: LocalService) -> None:
    options = {"max_tokens": 12, "seed": 3}
    whole = score(chat, service, **options).choices[0]
    pieces = [piece.choices[0] for piece in score(chat, service, stream=True, **options)]
    assert "".join(piece.text for piece in pieces) == whole.text
    for field in ("tokens", "token_logprobs", "text_offset"):
        joined = [value for piece in pieces for value in getattr(piece.logprobs, field)]
        assert joined == getattr(whole.logprobs, field)


def test_a_stream_decodes_each_token_for_its_log_probability_once(model_dir: Path) -> None:
    model, decoded = LocalModel(model_dir, threads=1), list[list[int]]()
    texts = model.tokenizer("héllo ✓ x" * 8, add_special_tokens=False).input_ids

    class Counting:
        tokenizer = model.tokenizer

        def decode(self, rows: list[list[int]]) -> list[str]:
            decoded.extend(rows)
            return model.decode(rows)

    def increments(step: int) -> list[dict[str, Any]]:
        sample = SampleRequest([5, 6], len(texts))
        body = CompletionBody(model="tiny", prompt=[5, 6], logprobs=0, echo=True)
        job = SampleJob(None, [sample], prompt_logprobs=[math.nan, -1.0])
        answer = CompletionAnswer(0, job, body, cast("Any", Counting()), [5, 6])
        found: list[dict[str, Any]] = []
        for start in range(0, len(texts), step):
            sample.tokens += texts[start : start + step]
            sample.logprobs += [-1.0] * len(texts[start : start + step])
            choice = answer.increment()
            assert choice is not None
            found.append(choice["logprobs"])
        return found

    (whole,) = increments(len(texts))
    decoded.clear()
    pieces = increments(1)
    assert sum(len(row) == 1 for row in decoded) <= len(texts) + 4
    for field in ("tokens", "token_logprobs", "text_offset"):
        assert [value for piece in pieces for value in piece[field]] == whole[field]


@pytest.mark.parametrize("count", [0, 2])
def test_prompt_logprobs_have_the_form_of_vllm(
    count: int, chat: openai.OpenAI, service: LocalService
) -> None:
    choice = score(chat, service, extra_body={"prompt_logprobs": count}).choices[0]
    first, *rows = choice.model_extra["prompt_logprobs"]
    ids, logprobs = choice.model_extra["prompt_token_ids"], choice.logprobs.token_logprobs
    assert first is None
    for token, logprob, row in zip(ids[1:], logprobs[1:], rows, strict=True):
        assert row[str(token)]["logprob"] == logprob
        assert count <= len(row) <= count + 1
        assert [it["rank"] for it in row.values()][:count] == [1, 2][:count]


def test_a_chat_has_likeliest_tokens_and_scores_of_its_prompt(
    chat: openai.OpenAI, service: LocalService
) -> None:
    answer = chat.chat.completions.create(
        model=service.model_name,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        extra_body={"prompt_logprobs": 0, "return_token_ids": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    for entry in logprobs.content or ():
        assert entry.logprob == entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    extra: Any = answer.model_extra
    assert len(extra["prompt_logprobs"]) == len(extra["prompt_token_ids"])


@pytest.mark.parametrize("size", [300, 30_000])
def test_a_prompt_beyond_the_context_is_refused_in_openais_words(
    size: int, chat: openai.OpenAI, service: LocalService
) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256") as text:
        score(chat, service, prompt="x" * size)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256") as message:
        chat.chat.completions.create(
            model=service.model_name, messages=[{"role": "user", "content": "x" * size}]
        )
    assert (text.value.type, text.value.param) == ("invalid_request_error", "prompt")
    assert (message.value.type, message.value.param) == ("invalid_request_error", "messages")
    assert text.value.code == message.value.code == "context_length_exceeded"


def test_a_prompt_that_fills_the_context_is_scored(chat: openai.OpenAI, service: LocalService) -> None:
    scores = score(chat, service, prompt="x" * 256).choices[0].logprobs
    assert len(scores.token_logprobs) == 256
