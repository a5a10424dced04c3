"""Tests of the Tinker model against the project's own service, with a real model and tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, Request, ServedModel, open_served
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.spec import ModelRef, Sampling
from tests.models.edges import CALL, write_tokenizer

torch = pytest.importorskip("torch")
local: Any = pytest.importorskip("rolegraph.local.launcher")

pytestmark = pytest.mark.service

CONTEXT = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of a few thousand random weights over the byte tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = write_tokenizer(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Any]:
    with local.running(folder) as running:
        yield running


def ask(service: Any, folder: Path, *requests: Request) -> list[Completion]:
    """Send all requests at once to the service's first model."""

    async def run() -> list[Completion]:
        ref = ModelRef(provider="tinker", base_url=service.base_url)
        model = await open_served(ServedModel(ref, api_key=service.api_key, tokenizer_dir=folder))
        try:
            return list(await asyncio.gather(*(model.complete(request) for request in requests)))
        finally:
            await model.aclose()

    return asyncio.run(run())


def request(seed: int | None = None, content: str = "1 + 1?", **sampling: object) -> Request:
    options = {"max_tokens": 12, **sampling}
    return Request([{"role": "user", "content": content}], Sampling.model_validate(options), seed, CALL)


def test_many_at_once_are_answered_with_a_logprob_for_every_token(service: Any, folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    answers = ask(service, folder, *(request(seed) for seed in range(64)))
    for answer in answers:
        ids, logprobs = answer.response_ids, answer.logprobs
        assert 1 <= len(ids) <= 12
        assert len(logprobs) == len(ids)
        assert max(logprobs) <= 0.0
        assert (answer.finish_reason == "length") == (len(ids) == 12 and ids[-1] not in (256, 258))
        assert tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert len({tuple(answer.response_ids) for answer in answers}) > 32


def test_the_same_seed_draws_the_same_answer_and_temperature_zero_needs_none(
    service: Any, folder: Path
) -> None:
    one, same, other = ask(service, folder, request(7), request(7), request(8))
    assert one.response_ids == same.response_ids != other.response_ids
    first, second = ask(service, folder, request(temperature=0.0), request(temperature=0.0))
    assert first.response_ids == second.response_ids


def test_a_prompt_beyond_the_models_context_does_not_fit(service: Any, folder: Path) -> None:
    with pytest.raises(ModelError, match=f"context is {CONTEXT} tokens"):
        ask(service, folder, request(content="x" * CONTEXT))


def test_another_key_is_refused(service: Any, folder: Path) -> None:
    ref = ModelRef(provider="tinker", base_url=service.base_url)
    with pytest.raises(UsageError, match="refuses the key in TINKER_API_KEY"):
        asyncio.run(open_served(ServedModel(ref, api_key="tml-another", tokenizer_dir=folder)))


def test_a_model_that_is_not_served_is_a_usage_error(service: Any, folder: Path) -> None:
    ref = ModelRef(provider="tinker", name="no-such-model", base_url=service.base_url)
    with pytest.raises(UsageError, match="cannot sample from 'no-such-model'"):
        asyncio.run(open_served(ServedModel(ref, api_key=service.api_key, tokenizer_dir=folder)))


def test_weights_that_a_service_does_not_have_are_told_with_where_they_are(
    service: Any, folder: Path
) -> None:
    ref = ModelRef(provider="tinker", base_url=service.base_url, checkpoint="tinker://a/sampler_weights/b")
    with pytest.raises(UsageError, match="name the folder of their training in place"):
        asyncio.run(open_served(ServedModel(ref, api_key=service.api_key, tokenizer_dir=folder)))
