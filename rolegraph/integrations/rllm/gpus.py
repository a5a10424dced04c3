"""Layout of a LoRA training on verl's GPUs: tensor parallelism, memory shares, offload, longest sequence.

The formula counts the memory that verl 0.8 needs with FSDP and gradient checkpointing. Pure arithmetic over
bytes; `tests/integrations/rllm/test_gpus.py` compares it with configurations that verl published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rolegraph.engine.errors import UsageError

MEMORY = 80e9
"""Bytes of one GPU: H100, H800 or A100."""
RESERVE = 8e9
"""Bytes of a GPU that CUDA, NCCL and fragmentation take."""
TRAINED_TOKEN = 1.6e6
"""Bytes of a token in a training pass, for a model of 32B: logits of 152,000 words in bfloat16 and float32
(6 bytes each), and the hidden states of 64 layers that checkpointing keeps. Smaller models need less."""
FULL_PRECISION = 4
"""Bytes of a parameter in training: fsdp.yaml, model_dtype fp32. The adapters' state is negligible."""
HALF_PRECISION = 2
"""Bytes of a parameter in vLLM."""
LARGEST_SHARE = 0.6
"""Largest share of a GPU for vLLM among the configurations that verl published."""


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """Settings of verl that follow from a model's size and the number of GPUs."""

    trainers: int
    """GPUs that train; without staleness the same GPUs also sample."""
    samplers: int
    """GPUs that only sample; 0 without staleness."""
    tensor_parallel: int
    memory_share: float
    """Share of a GPU's memory for vLLM's weights and cache."""
    is_offloaded: bool
    """True if the parameters move to the machine's memory while vLLM samples."""
    longest: int
    """Longest sequence in tokens, prompt and answer together, that fits in a pass of training."""


def layout(parameters: float, gpus: int, *, is_stale: bool = False) -> GpuLayout:
    """Return the layout of a model with `parameters` parameters on `gpus` GPUs of one machine.

    Args:
        parameters: Number of the model's parameters.
        gpus: Number of GPUs in all.
        is_stale: True with `train.staleness`, for which rLLM samples on separate GPUs: half of them.

    Raises:
        UsageError: The GPUs have too little memory for the model.
    """
    samplers = gpus // 2 if is_stale else 0
    trainers = gpus - samplers
    if is_stale and not samplers:
        raise UsageError("train.staleness needs GPUs of its own to sample: expected --gpus of at least 2")
    resident_bytes = FULL_PRECISION * parameters / trainers
    longest_row = int((MEMORY - RESERVE - resident_bytes) / TRAINED_TOKEN) // 1024 * 1024
    # Half of the share is left to the cache.
    tensor_parallel = 1
    while HALF_PRECISION * parameters / tensor_parallel > MEMORY * LARGEST_SHARE / 2:
        tensor_parallel *= 2
    is_offloaded = not samplers and resident_bytes > MEMORY / 10
    held_bytes = 0 if is_offloaded or samplers else resident_bytes
    share = min(LARGEST_SHARE, int((MEMORY - RESERVE - held_bytes) / MEMORY * 20) / 20)
    if longest_row < 1024 or (samplers or trainers) % tensor_parallel:
        split_note = f", {trainers} of which train," if samplers else ""
        raise UsageError(
            f"{gpus} GPUs of {MEMORY / 1e9:.0f} GB{split_note} do not hold a model of "
            f"{parameters / 1e9:.3g}B parameters: training needs {resident_bytes / 1e9:.0f} GB of each, "
            f"and sampling {tensor_parallel} GPUs together"
        )
    return GpuLayout(trainers, samplers, tensor_parallel, share, is_offloaded, longest_row)


def parameters_of(name: str, folder: Path | None) -> float:
    """Return the number of a model's parameters, from its weights, or from a name such as `Qwen2.5-7B`.

    Args:
        name: Name of the model.
        folder: Folder with the weights; None for a model that is not local.

    Raises:
        UsageError: Neither the folder nor the name gives the number.
    """
    # Weights are saved in bfloat16.
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder is not None else 0
    if size:
        return size / HALF_PRECISION
    if size_in_name := re.search(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![a-zA-Z])", name):
        return float(size_in_name[1]) * 1e9
    raise UsageError(
        f"--gpus needs the size of {name}: a folder with its weights, or a name with it, such as 7B"
    )
