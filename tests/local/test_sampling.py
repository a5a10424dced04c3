"""Sampling and scoring through the Tinker SDK's own client, against transformers alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from tinker import types  # noqa: E402

from rolegraph.local.launcher import LocalService  # noqa: E402
from tests.local.client import PROMPT, plain_logprobs, prompt, sampler  # noqa: E402

pytestmark = pytest.mark.service


def test_sampled_logprobs_are_those_of_a_plain_forward_pass_at_the_temperature(
    client: tinker.ServiceClient, service: LocalService, model_dir: Path
) -> None:
    params = types.SamplingParams(max_tokens=12, temperature=0.7, seed=3, stop=[])
    (sequence,) = sampler(client, service).sample(prompt(), 1, params).result().sequences
    assert len(sequence.tokens) == 12
    assert sequence.stop_reason == "length"
    expected = plain_logprobs(model_dir, [*PROMPT, *sequence.tokens], 0.7)[len(PROMPT) - 1 :]
    assert sequence.logprobs == pytest.approx(expected, abs=1e-4)


def test_compute_logprobs_is_a_plain_forward_pass(
    client: tinker.ServiceClient, service: LocalService, model_dir: Path
) -> None:
    found = sampler(client, service).compute_logprobs(prompt()).result()
    assert found[0] is None
    assert found[1:] == pytest.approx(plain_logprobs(model_dir, PROMPT), abs=1e-4)


@pytest.mark.parametrize("last", [None, 2])
def test_the_likeliest_tokens_at_each_of_a_prompt_s_are_a_plain_forward_pass_s(
    client: tinker.ServiceClient, service: LocalService, model_dir: Path, last: int | None
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1).topk(3)
    params = types.SamplingParams(max_tokens=1)
    one = sampler(client, service)
    (first, *found) = (
        one.sample(
            prompt(),
            1,
            params,
            include_prompt_logprobs=True,
            topk_prompt_logprobs=3,
            prompt_logprobs_last_n=last,
        )
        .result()
        .topk_prompt_logprobs
    )
    unscored = 0 if last is None else len(found) - last
    assert [first, *found[:unscored]] == [None] * (1 + unscored)
    for place in range(unscored, len(found)):
        ids, logprobs = zip(*found[place], strict=True)
        assert list(ids) == expected.indices[place].tolist()
        assert logprobs == pytest.approx(expected.values[place].tolist(), abs=1e-4)


def test_the_same_seed_says_the_same_alone_and_in_a_batch_with_others(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    one = sampler(client, service)
    params = types.SamplingParams(max_tokens=20, seed=11, stop=[])
    alone = one.sample(prompt(), 1, params).result().sequences[0].tokens

    async def crowd() -> list[list[int]]:
        others = [
            one.sample_async(prompt(PROMPT * (1 + n % 7)), 1, types.SamplingParams(max_tokens=5 + n, seed=n))
            for n in range(40)
        ]
        found = await asyncio.gather(one.sample_async(prompt(), 1, params), *others)
        return [response.sequences[0].tokens for response in found]

    assert asyncio.run(crowd())[0] == alone


def test_samples_of_one_request_differ_and_repeat_with_the_seed(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    params = types.SamplingParams(max_tokens=8, seed=5, stop=[])
    one = sampler(client, service)
    first, second = (one.sample(prompt(), 4, params).result().sequences for _ in range(2))
    assert len({tuple(s.tokens) for s in first}) == 4
    assert [s.tokens for s in first] == [s.tokens for s in second]


def test_temperature_zero_takes_the_likeliest_token(
    client: tinker.ServiceClient, service: LocalService, model_dir: Path
) -> None:
    from transformers import AutoModelForCausalLM

    params = types.SamplingParams(max_tokens=6, temperature=0, stop=[])
    found = sampler(client, service).sample(prompt(), 1, params).result().sequences[0].tokens
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(6):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert found == tokens[len(PROMPT) :]


def test_top_k_and_top_p_draw_from_the_likeliest_only(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    one = sampler(client, service)
    greedy = one.sample(prompt(), 1, types.SamplingParams(max_tokens=6, temperature=0, stop=[])).result()
    for narrow in (
        types.SamplingParams(max_tokens=6, top_k=1, stop=[]),
        types.SamplingParams(max_tokens=6, top_p=1e-6, stop=[]),
    ):
        assert one.sample(prompt(), 1, narrow).result().sequences[0].tokens == greedy.sequences[0].tokens


def test_a_stop_token_and_a_stop_text_end_an_answer_and_are_kept_in_it(
    client: tinker.ServiceClient, service: LocalService, model_dir: Path
) -> None:
    from transformers import AutoTokenizer

    one = sampler(client, service)
    free = (
        one.sample(prompt(), 1, types.SamplingParams(max_tokens=10, seed=2, stop=[]))
        .result()
        .sequences[0]
        .tokens
    )
    at_token = types.SamplingParams(max_tokens=10, seed=2, stop=[free[4]])
    found = one.sample(prompt(), 1, at_token).result().sequences[0]
    assert found.tokens == free[: free.index(free[4]) + 1]
    assert found.stop_reason == "stop"

    # A text that never comes leaves the model's own end in force, as no `stop` does.
    never = types.SamplingParams(max_tokens=200, seed=2, stop=["\x00never"])
    ended = one.sample(prompt(), 4, never).result().sequences
    plain = types.SamplingParams(max_tokens=200, seed=2)
    same = one.sample(prompt(), 4, plain).result().sequences
    assert [it.tokens for it in ended] == [it.tokens for it in same]

    readable = [t for t in free if t >= 4]
    text = AutoTokenizer.from_pretrained(model_dir).decode([readable[0]])
    stopped = (
        one.sample(prompt(), 1, types.SamplingParams(max_tokens=10, seed=2, stop=[text]))
        .result()
        .sequences[0]
    )
    if "\ufffd" not in text:
        assert stopped.stop_reason == "stop"
        assert len(stopped.tokens) <= len(free)
