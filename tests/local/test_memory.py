"""Accounting of memory, computed before a model is loaded and measured in an update; exhausted memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from rolegraph.engine.errors import UsageError  # noqa: E402
from rolegraph.local.service.batcher import Batcher, SampleJob  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from rolegraph.local.service.lora import LoraShape  # noqa: E402
from rolegraph.local.service.memory import MemoryAccount, account, account_of  # noqa: E402
from rolegraph.local.service.model_files import model_shell  # noqa: E402
from rolegraph.local.service.sampling import SampleRequest  # noqa: E402
from rolegraph.local.service.trainer import Datum, TrainingRun  # noqa: E402

QWEN3: dict[str, Any] = {"model_type": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8}
QWEN3_1_7B = {
    **QWEN3,
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40_960,
}
GB = 10**9


@pytest.fixture(scope="module")
def folder(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a random Qwen3 whose activations outweigh its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("qwen3")
    for file in [*model_dir.glob("*token*"), *model_dir.glob("*.jinja")]:
        shutil.copy(file, folder)
    settings = {"vocab_size": 4000, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 6}
    config = AutoConfig.for_model(**QWEN3 | settings, head_dim=8, max_position_embeddings=2048)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def peak(call: Callable[[], object]) -> int:
    """Return the largest number of bytes that a call held at a time, by PyTorch's own count."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    results: Any = watched.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("recompute", [False, True])
def test_an_update_takes_the_memory_that_is_computed_before_the_model_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, recompute: bool
) -> None:
    computed, model = account(folder), LocalModel(folder, threads=1)
    model.small, model.chunk = False, 100
    tokens = [(7 * place) % 250 for place in range(1200)]
    data = [Datum(tokens, {"target_tokens": torch.tensor(tokens), "weights": torch.ones(len(tokens))})]
    run = TrainingRun(model, LoraShape(8))
    monkeypatch.setattr(run, "_pass", lambda longest: (4096, recompute))
    run.forward_backward(data, "cross_entropy", {})  # the gradients have their memory from now on
    measured = peak(lambda: run.forward_backward(data, "cross_entropy", {}))
    # Which kernels PyTorch takes moves it by a few percent.
    expected = len(tokens) * (computed.update.recomputed if recompute else computed.update.kept)
    expected += model.chunk * computed.update.logits
    assert measured == pytest.approx(expected, rel=0.15)
    assert model.update_bytes.kept == pytest.approx(computed.update.kept, rel=0.1)
    assert model.cache_bytes == computed.cache


def test_weights_and_optimizer_take_what_is_computed(folder: Path) -> None:
    computed, model = account(folder, rank=4), LocalModel(folder, threads=1)
    run = TrainingRun(model, LoraShape(4))
    assert computed.weights == sum(tensor.nbytes for tensor in model.module.parameters())
    assert computed.policy == 4 * sum(tensor.nbytes for tensor in run.adapter.tensors.values())


def of_1_7b(free: int) -> MemoryAccount:
    return account_of(model_shell(QWEN3_1_7B, 400), torch.bfloat16, rank=32, free=free)


def test_a_model_of_1_7b_on_24_gb_trains_sequences_of_thousands_of_tokens() -> None:
    memory = of_1_7b(24 * GB)
    assert memory.weights == pytest.approx(3.44e9, rel=0.01)
    # 28 layers keep keys and values of 8 heads of 128, in bfloat16.
    assert memory.cache.token == 28 * 2 * 8 * 128 * 2
    plain = memory.update.tokens(int(0.8 * (memory.free - memory.weights - memory.policy)), recompute=False)
    assert 2_500 < plain < 4_500 < 20_000 < memory.longest
    assert memory.update.of(memory.longest, recompute=True) < memory.free - memory.weights
    assert f"{memory.longest:,} tokens" in "\n".join(memory.lines())
    memory.check()


def test_a_model_that_does_not_fit_is_refused_by_its_size_and_what_is_free() -> None:
    memory = of_1_7b(3 * GB)
    assert memory.longest == 0
    with pytest.raises(UsageError, match=r"weights take 3\.4 GB .* 3\.0 GB are free"):
        memory.check()


def exhaust(model: LocalModel, most: int) -> None:
    """Let a forward pass of more than `most` tokens fail as CUDA does."""

    def check(_: object, args: object, words: dict[str, Any]) -> None:
        if words["input_ids"].numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.module.base_model.register_forward_pre_hook(check, with_kwargs=True)


def test_an_update_beyond_the_memory_says_so_and_drops_its_gradients(model_dir: Path) -> None:
    model = LocalModel(model_dir, threads=1)
    run = TrainingRun(model, LoraShape(4, seed=1))
    tokens = list(range(60))
    data = [Datum(tokens, {"target_tokens": torch.tensor(tokens), "weights": torch.ones(60)})]
    run.forward_backward(data, "cross_entropy", {})
    exhaust(model, 50)
    with pytest.raises(RequestError, match=r"memory is full: .* 60 tokens .*max_tokens.*dropped"):
        run.forward_backward(data, "cross_entropy", {})
    assert all(tensor.grad is None for tensor in run.adapter.tensors.values())


def test_sampling_beyond_the_memory_goes_on_in_smaller_batches(model_dir: Path) -> None:
    model = LocalModel(model_dir, threads=1)
    jobs = [SampleJob(None, [SampleRequest([1, 2, 3, number], 5, seed=(1, number))]) for number in range(8)]
    alone = [SampleRequest([1, 2, 3, number], 5, seed=(1, number)) for number in range(8)]
    for request in alone:
        sample(model, SampleJob(None, [request]))
    exhaust(model, 12)  # three prompts
    sample(model, *jobs)
    assert [job.requests[0].tokens for job in jobs] == [request.tokens for request in alone]
    with pytest.raises(RequestError, match="memory is full"):
        sample(model, SampleJob(None, [SampleRequest([1] * 20, 5)]))


def sample(model: LocalModel, *jobs: SampleJob) -> None:
    batcher = Batcher(model, lambda path: model.add_adapter(LoraShape(4)))
    for job in jobs:
        batcher.add(job)
    while batcher.busy:
        batcher.step()
    for job in jobs:
        job.done.result()
