"""Layouts of GPUs, held against configurations that verl published as run (docs/perf/device_tuning.rst)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Source
from rolegraph.integrations.rllm.config import overrides
from rolegraph.integrations.rllm.gpus import (
    FULL_PRECISION,
    HALF_PRECISION,
    MEMORY,
    RESERVE,
    TRAINED_TOKEN,
    layout,
    parameters_of,
)
from rolegraph.integrations.rllm.launch import prepare

PUBLISHED = [
    # parameters, GPUs, tensor parallelism, share of vLLM, longest sequence: examples/tuning, LoRA
    (0.49e9, 1, 1, 0.1, 1536),
    (1.54e9, 1, 1, 0.1, 1536),
    (3.09e9, 1, 1, 0.1, 1536),
    (7.62e9, 1, 1, 0.2, 1536),
    (14.8e9, 2, 2, 0.25, 1536),
    (32.8e9, 4, 4, 0.3, 1536),
    (72.7e9, 8, 8, 0.4, 1536),
]


def training_bytes(parameters: float, gpus: int, tokens: int) -> float:
    """Return the bytes that each GPU holds in a pass of LoRA training."""
    return FULL_PRECISION * parameters / gpus + TRAINED_TOKEN * tokens + RESERVE


def sampling_fits(parameters: float, tensor_parallel: int, memory_share: float) -> bool:
    """Return True if vLLM's share of a GPU holds its part of the weights."""
    return HALF_PRECISION * parameters / tensor_parallel <= memory_share * MEMORY


@pytest.mark.parametrize(("parameters", "gpus", "parallel", "share", "tokens"), PUBLISHED)
def test_configurations_that_were_run_fit_by_the_formula(
    parameters: float, gpus: int, parallel: int, share: float, tokens: int
) -> None:
    assert training_bytes(parameters, gpus, tokens) <= MEMORY
    assert sampling_fits(parameters, parallel, share)
    chosen = layout(parameters, gpus)
    assert chosen.longest >= tokens
    assert chosen.tensor_parallel <= parallel


@pytest.mark.parametrize("parameters", [1.54e9, 7.62e9, 32.8e9])
@pytest.mark.parametrize("is_stale", [False, True])
def test_a_layout_for_eight_gpus_fits_them(parameters: float, is_stale: bool) -> None:
    chosen = layout(parameters, 8, is_stale=is_stale)
    assert chosen.trainers + chosen.samplers == 8
    assert training_bytes(parameters, chosen.trainers, chosen.longest) <= MEMORY
    assert sampling_fits(parameters, chosen.tensor_parallel, chosen.memory_share)
    assert (chosen.samplers or 8) % chosen.tensor_parallel == 0


def test_gpus_that_do_not_hold_the_model_are_refused() -> None:
    for parameters, gpus in [(32.8e9, 1), (72.7e9, 2)]:
        with pytest.raises(UsageError, match="do not hold a model"):
            layout(parameters, gpus)
    with pytest.raises(UsageError, match="--gpus of at least 2"):
        layout(1e9, 1, is_stale=True)


def test_the_size_is_that_of_the_weights_or_of_the_name(tmp_path: Path) -> None:
    assert parameters_of("Qwen/Qwen2.5-1.5B-Instruct", None) == 1.5e9
    assert parameters_of("Qwen/Qwen3-30B-A3B", None) == 30e9
    (tmp_path / "model.safetensors").write_bytes(bytes(200))
    assert parameters_of("mine", tmp_path) == 100
    with pytest.raises(UsageError, match="the size of mine"):
        parameters_of("mine", None)


def test_the_gpus_of_the_command_line_are_those_of_the_config() -> None:
    hosted = Source.of("solver_judge", "model=tinker:Qwen/Qwen2.5-32B-Instruct")
    keys = overrides(prepare(hosted, "verl", gpus=8).run)
    rollout = "actor_rollout_ref.rollout"
    assert (keys["trainer.n_gpus_per_node"], keys[f"{rollout}.tensor_model_parallel_size"]) == (8, 4)
    assert keys["actor_rollout_ref.actor.fsdp_config.param_offload"] is True
    assert "rollout.n_gpus_per_node" not in keys
    stale = Source.of("solver_judge", "model=tinker:Qwen/Qwen2.5-7B-Instruct", "train.staleness=1")
    keys = overrides(prepare(stale, "verl", gpus=8).run)
    assert (keys["trainer.n_gpus_per_node"], keys["rollout.n_gpus_per_node"]) == (4, 4)
    with pytest.raises(UsageError, match="--gpus is for verl"):
        prepare(hosted, "tinker", gpus=8)
