"""Tests that batched decoding gives each sequence the tokens that the sequence has alone."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.service.batcher import Batcher, SampleJob  # noqa: E402
from rolegraph.local.service.decoder import Decoder  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from rolegraph.local.service.lora import LoraAdapter, LoraShape  # noqa: E402
from rolegraph.local.service.sampling import SampleRequest  # noqa: E402


@pytest.fixture(scope="module")
def model(model_dir: Path) -> LocalModel:
    return LocalModel(model_dir, threads=1)


@pytest.fixture(scope="module")
def gpt2(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """Load a GPT-2: learned positions and Conv1D layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    for file in model_dir.glob("*token*"):
        shutil.copy(file, folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=260, n_embd=32, n_layer=2, n_head=2, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return LocalModel(folder, threads=1)


def make_request(chance: random.Random, number: int, adapter: LoraAdapter | None = None) -> SampleRequest:
    prompt = [chance.randrange(4, 260) for _ in range(chance.randint(1, 60))]
    heat = chance.choice([0.5, 1.0])
    return SampleRequest(prompt, chance.randint(1, 90), heat, seed=(number, 0), adapter=adapter)


def make_adapters(model: LocalModel, count: int) -> list[LoraAdapter]:
    """Return adapters with random weights."""
    adapters = [model.add_adapter(LoraShape(4, seed=number)) for number in range(count)]
    for number, adapter in enumerate(adapters):
        torch.manual_seed(number)
        adapter.set_weights({key: torch.randn_like(w) * 0.1 for key, w in adapter.weights().items()})
    return adapters


def logits(model: LocalModel, adapter: LoraAdapter | None, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode(), model.adapted([adapter]) as module:
        return module(input_ids=torch.tensor([tokens])).logits[0].float()


def check(model: LocalModel, sample: SampleRequest) -> None:
    """Compare log-probabilities with a plain forward pass at the request's temperature."""
    tokens = [*sample.prompt, *sample.tokens]
    scaled = logits(model, sample.adapter, tokens) / sample.temperature
    expected = scaled.log_softmax(-1)[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
    assert sample.logprobs == pytest.approx(expected[len(sample.prompt) - 1 :].tolist(), abs=1e-4)


def never(path: str) -> LoraAdapter:
    raise AssertionError(f"{path} is not asked for")


@pytest.mark.parametrize("seed", range(4))
def test_sequences_may_join_and_leave_at_any_step(model: LocalModel, seed: int) -> None:
    chance = random.Random(seed)
    decoder = Decoder(model)
    samples, removed = list[SampleRequest](), set[SampleRequest]()
    for number in range(60):
        if chance.random() < 0.4:
            joining = [make_request(chance, 100 * number + n) for n in range(chance.randint(1, 5))]
            decoder.add(joining)
            samples += joining
        if decoder.live and chance.random() < 0.1:
            unwanted = chance.sample(decoder.live, 1)
            decoder.remove(unwanted)
            removed.update(unwanted)
        decoder.step()
    while decoder.live:
        decoder.step()
    assert len(samples) > 30
    for sample in samples:
        assert sample in removed or len(sample.tokens) == sample.max_tokens
        check(model, sample)


@pytest.mark.parametrize(("small", "frozen"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("kind", ["model", "gpt2"])
def test_sequences_of_several_adapters_are_sampled_in_one_batch(
    kind: str, small: bool, frozen: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: LocalModel = request.getfixturevalue(kind)
    monkeypatch.setattr(model, "small", small)
    adapters, chance = [None, *make_adapters(model, 3)], random.Random(0)
    if frozen:
        for adapter in adapters[1:]:
            model.freeze(adapter)
    decoder = Decoder(model)
    samples = [make_request(chance, number, chance.choice(adapters)) for number in range(12)]
    decoder.add(samples[:6])
    decoder.step()
    decoder.add(samples[6:])
    while decoder.live:
        decoder.step()
    for sample in samples:
        check(model, sample)


@pytest.mark.parametrize("kind", ["model", "gpt2"])
def test_a_frozen_adapter_gives_the_numbers_of_the_unmerged_one(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model: LocalModel = request.getfixturevalue(kind)
    one, two = make_adapters(model, 2)

    def logprobs(adapter: LoraAdapter | None) -> torch.Tensor:
        return logits(model, adapter, [5, 80, 90, 100, 110]).log_softmax(-1)

    base, before, other = logprobs(None), logprobs(one), logprobs(two)
    model.freeze(one)
    after = logprobs(one)
    assert torch.allclose(after, before, atol=1e-5)
    assert not torch.allclose(after, base, atol=1e-2)
    assert torch.equal(logprobs(two), other)
    assert torch.equal(logprobs(one), after)
    assert torch.equal(logprobs(None), base)


def test_a_prompt_of_many_samples_is_read_once_and_each_sample_is_its_own(model: LocalModel) -> None:
    prompt = [5, 80, 90, 100]
    samples = [SampleRequest(prompt, 12, seed=(3, number)) for number in range(8)]
    decoder = Decoder(model)
    decoder.add(samples)
    while decoder.live:
        decoder.step()
    assert len({tuple(sample.tokens) for sample in samples}) == 8
    for sample in samples:
        check(model, sample)


def test_a_short_request_need_not_wait_for_a_long_one(model: LocalModel) -> None:
    batcher = Batcher(model, load=never)
    long, short = (
        SampleJob(None, [SampleRequest([5, 6, 7], 200, seed=(1, 0))]),
        SampleJob(None, [SampleRequest([8, 9], 5, seed=(2, 0))]),
    )
    batcher.add(long)
    for _ in range(10):
        batcher.step()
    batcher.add(short)
    for _ in range(20):
        batcher.step()
    assert short.done.done()
    assert not long.done.done()


def test_an_abandoned_request_is_drawn_no_further(model: LocalModel) -> None:
    batcher = Batcher(model, load=never)
    job = SampleJob(None, [SampleRequest([5, 6, 7], 200, seed=(1, n)) for n in range(3)])
    batcher.add(job)
    for _ in range(5):
        batcher.step()
    job.done.cancel()
    batcher.step()
    assert not batcher.busy


def test_weights_that_cannot_be_loaded_fail_only_those_who_asked_for_them(model: LocalModel) -> None:
    def load(path: str) -> LoraAdapter:
        raise ValueError(f"no {path}")

    batcher = Batcher(model, load)
    lost, fine = SampleJob("tinker://x", [SampleRequest([5], 4)]), SampleJob(None, [SampleRequest([5], 4)])
    batcher.add(lost)
    batcher.add(fine)
    while batcher.busy:
        batcher.step()
    assert str(lost.done.exception()) == "no tinker://x"
    assert fine.done.result() is None


def test_weights_saved_again_are_those_of_the_next_request(model: LocalModel) -> None:
    adapters = make_adapters(model, 2)
    loaded = iter(adapters)
    batcher = Batcher(model, lambda _: next(loaded))
    jobs = [SampleJob("tinker://x", [SampleRequest([5, 6], 12, seed=(n, 0))]) for n in range(2)]
    for job in jobs:
        batcher.add(job)
        batcher.step()
    while batcher.busy:
        batcher.step()
    for job, adapter in zip(jobs, adapters, strict=True):
        assert job.adapter == adapter
        check(model, job.requests[0])


def test_what_ails_one_request_fails_it_alone(model: LocalModel) -> None:
    alone = SampleJob(None, [SampleRequest([5, 6], 12, seed=(3, 0))])
    batcher = Batcher(model, load=never)
    batcher.add(alone)
    while batcher.busy:
        batcher.step()
    fine = [
        SampleJob(None, [SampleRequest([5, 6], 12, seed=(3, 0))], want_prompt_logprobs=n > 0)
        for n in range(2)
    ]
    bad = SampleJob(None, [SampleRequest([5, 6], 12, top_k=10**30, seed=(3, 0))])
    for job in (fine[0], bad, fine[1]):
        batcher.add(job)
    while batcher.busy:
        batcher.step()
    assert bad.done.exception() is not None
    assert [job.requests[0].tokens for job in fine] == [alone.requests[0].tokens] * 2
    assert len(fine[1].prompt_logprobs) == 2


class Failing:
    """Constraint whose method `at` fails from the fourth token on."""

    def __init__(self, at: str) -> None:
        self.at, self.count = at, 0

    def allowed(self) -> torch.Tensor:
        if self.at == "allowed" and self.count == 3:
            raise RequestError("no token fits")
        return torch.ones(260, dtype=torch.bool)

    def advance(self, token: int) -> None:
        if self.at == "advance" and self.count == 3:
            raise RequestError("no token fits")
        self.count += 1

    def restart(self) -> None:
        self.count = 0


@pytest.mark.parametrize("at", ["allowed", "advance"])
def test_a_constraint_that_fails_in_mid_answer_fails_its_job_alone(model: LocalModel, at: str) -> None:
    def requests() -> list[SampleRequest]:
        return [SampleRequest([5, 6, 7 + n], 12, seed=(3, n), top=1) for n in range(4)]

    alone, beside = requests(), requests()
    beside[0].constraint = Failing(at)
    for batch in (alone, beside):
        jobs = [SampleJob(None, batch[:2]), *(SampleJob(None, [request]) for request in batch[2:])]
        batcher, forwards = Batcher(model, load=never), 0
        for job in jobs:
            batcher.add(job)
        while batcher.busy:
            batcher.step()
            forwards += 1
        assert forwards <= 13  # no sequence is sampled anew
    assert str(jobs[0].done.exception()) == "no token fits"
    assert [job.done.exception() for job in jobs[1:]] == [None, None]
    assert beside[0].tokens == alone[0].tokens[:3]
    assert [it.tokens for it in beside[2:]] == [it.tokens for it in alone[2:]]


def test_who_asks_for_much_waits_for_it_alone(model: LocalModel) -> None:
    batcher = Batcher(model, load=never)
    many = SampleJob(None, [SampleRequest([5, 6], 30, seed=(1, n)) for n in range(2000)], owner="many")
    few = SampleJob(None, [SampleRequest([5, 6], 4, seed=(2, 0))], owner="few")
    batcher.add(many)
    batcher.add(few)
    steps = 0
    while not few.done.done():
        batcher.step()
        steps += 1
    assert steps < 30
    many.done.cancel()
    batcher.step()


def test_an_adapter_is_made_in_as_many_steps_beside_many_as_beside_one(model: LocalModel) -> None:
    steps, made = list[int](), list[LoraAdapter]()
    for number in range(12):
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            made.append(model.add_adapter(LoraShape(rank=4, seed=number)))
        finally:
            sys.setprofile(None)
        steps.append(calls)
    assert steps[-1] < 1.1 * steps[1]  # the first imports, too
