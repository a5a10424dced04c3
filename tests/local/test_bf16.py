"""Local models in bfloat16: as float32 to two digits, on any processor, and chosen by the spec alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
from tinker import types  # noqa: E402

from rolegraph.engine.models import Services  # noqa: E402
from rolegraph.engine.spec import ModelRef  # noqa: E402
from rolegraph.local.launcher import LocalService, running  # noqa: E402
from tests.local.client import PROMPT, datum, plain_logprobs, prompt, sampler, trainer  # noqa: E402

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def service(model_dir: Path) -> Iterator[LocalService]:
    with running(model_dir, bf16=True) as service:
        yield service


def test_log_probabilities_are_those_of_float32_to_two_digits(
    client: Any, service: LocalService, model_dir: Path
) -> None:
    logprobs = sampler(client, service).compute_logprobs(prompt()).result()[1:]
    exact = plain_logprobs(model_dir, PROMPT)
    assert logprobs == pytest.approx(exact, abs=0.05)
    assert logprobs != pytest.approx(exact, abs=1e-5)


def test_training_keeps_small_changes_of_the_weights_and_samples_with_them(
    client: Any, service: LocalService
) -> None:
    training = trainer(client, service, rank=16)
    losses: list[float] = []
    for _ in range(25):
        step = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(step.result().metrics["loss:sum"])
    assert losses[-1] < 0.1 < 1.0 < losses[0]
    greedy = types.SamplingParams(max_tokens=len(PROMPT) - 1, temperature=0.0)
    trained = training.save_weights_and_get_sampling_client().result()
    sampled = trained.sample(prompt(PROMPT[:1]), 1, greedy).result().sequences[0]
    assert list(sampled.tokens) == PROMPT[1:]


def test_a_spec_chooses_the_service_of_its_numbers(model_dir: Path) -> None:
    exact = ModelRef(provider="local", name=str(model_dir))
    with Services() as services:
        urls = [
            asyncio.run(services.located(ref)).ref.base_url
            for ref in (exact, exact.model_copy(update={"bf16": True}), exact)
        ]
    assert urls[0] == urls[2] != urls[1]


@pytest.mark.parametrize("other", ["openai:x", "tinker:x", {"provider": "local", "base_url": "http://x"}])
def test_a_model_that_is_served_elsewhere_has_no_such_key(other: object) -> None:
    with pytest.raises(ValueError, match="`bf16` is for a `local` model"):
        ModelRef.model_validate({**ModelRef.expand_shorthand(other), "bf16": True})  # pyright: ignore[reportGeneralTypeIssues]
