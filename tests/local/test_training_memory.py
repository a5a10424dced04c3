"""Memory of updates and of sampling: their batches follow the model and the free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.service import batcher, trainer  # noqa: E402
from rolegraph.local.service.batcher import Batcher, SampleJob  # noqa: E402
from rolegraph.local.service.bodies import AdamSettings  # noqa: E402
from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from rolegraph.local.service.lora import LoraShape  # noqa: E402
from rolegraph.local.service.sampling import SampleRequest, sample_next  # noqa: E402
from rolegraph.local.service.trainer import Datum, TrainingRun  # noqa: E402


def updated(model: LocalModel, monkeypatch: pytest.MonkeyPatch, most: int) -> tuple[list[int], torch.Tensor]:
    """Update an adapter; return the tokens of each pass, and all log-probabilities and weights after it."""
    monkeypatch.setitem(trainer.MAX_BATCH_BYTES, "cpu", most)
    run = TrainingRun(model, LoraShape(4, seed=1))
    tokens = [[(7 * row + 3 * place) % 250 for place in range(20 + row)] for row in range(12)]
    data = [
        Datum(row, {"target_tokens": torch.tensor([*row[1:], 5]), "weights": torch.ones(len(row))})
        for row in tokens
    ]
    passes: list[int] = []
    watch = model.module.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: passes.append(args[0].numel())
    )
    loss, logprobs = run.forward_backward(data, "cross_entropy", {})
    watch.remove()
    run.step(AdamSettings(learning_rate=1e-3))
    return passes, torch.cat(
        [torch.tensor([loss]), *logprobs, *map(torch.flatten, run.adapter.weights().values())]
    )


def test_an_update_in_small_passes_is_that_of_one_pass(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LocalModel(model_dir, threads=1)
    assert model.can_share_rows
    whole, expected = updated(model, monkeypatch, 10**12)
    parts, result = updated(model, monkeypatch, model.update_bytes.of(64, recompute=False))
    assert len(whole) == 1 < len(parts) and max(parts) <= 64
    # Float32 sums of a few hundred terms in another order; Adam's first step magnifies none of them here.
    assert torch.allclose(result, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("small", [True, False])
def test_an_update_that_computes_layers_and_logits_again_is_that_of_one_pass(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    model = LocalModel(model_dir, threads=1)
    model.small = small
    _, expected = updated(model, monkeypatch, 10**12)
    model.chunk = 50
    _, by_chunk = updated(model, monkeypatch, 10**12)
    monkeypatch.setattr(trainer, "PASS_SHARE", 0.0)  # nothing fits without
    _, result = updated(model, monkeypatch, 10**12)
    assert torch.allclose(by_chunk, expected, atol=2e-4, rtol=1e-4)
    assert torch.allclose(result, expected, atol=2e-4, rtol=1e-4)


def test_little_free_memory_makes_passes_smaller(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LocalModel(model_dir, threads=1)
    free = trainer.MEMORY_SHARE * model.update_bytes.of(40, recompute=False)
    monkeypatch.setattr(trainer, "free_memory", lambda device: free)
    passes, _ = updated(model, monkeypatch, 10**12)
    assert max(passes) <= 40
    monkeypatch.setattr(trainer, "free_memory", lambda device: 0)
    passes, _ = updated(model, monkeypatch, 10**12)
    assert len(passes) == 12  # each sequence alone


def test_little_free_memory_makes_batches_of_sampling_smaller(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LocalModel(model_dir, threads=1)
    live: list[int] = []

    def most_live(tokens: int) -> int:
        free = batcher.MEMORY_SHARE * tokens * model.cache_bytes.token
        monkeypatch.setattr(batcher, "free_memory", lambda device: free)
        sampler = Batcher(model, lambda _: model.add_adapter(LoraShape(4)))
        jobs = [SampleJob(None, [SampleRequest([1, 2, 3, number], 3)]) for number in range(6)]
        for job in jobs:
            sampler.add(job)
        live.clear()
        while sampler.busy:
            sampler.step()
            live.append(len(sampler._decoder.live))  # pyright: ignore[reportPrivateUsage]
        assert all(job.done.result() is None and len(job.requests[0].tokens) == 3 for job in jobs)
        return max(live)

    assert most_live(1000) == 6
    assert most_live(14) <= 3
    assert most_live(0) == 1  # each sequence alone


@pytest.mark.parametrize("size", [3, 256, 1000])
def test_a_token_is_drawn_by_the_cumulative_probabilities_of_the_whole_vocabulary(size: int) -> None:
    logits = 4 * torch.randn(64, size, generator=torch.Generator().manual_seed(size))
    requests = [SampleRequest([1], 1, seed=(7, row)) for row in range(64)]
    uniforms = [SampleRequest([1], 1, seed=(7, row)).random.random() for row in range(64)]
    found = sample_next(logits, requests, lambda rows: [""] * len(rows)).tolist()
    cumulative = logits.log_softmax(-1).exp().double().cumsum(-1)
    expected = [
        int((row <= uniform * row[-1]).sum()) for row, uniform in zip(cumulative, uniforms, strict=True)
    ]
    assert found == expected
