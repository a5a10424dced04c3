"""An adapter as a folder in PEFT's form, and the model of a folder, also where that holds an adapter of it.

Knows torch, transformers and peft, and no service.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.local.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of

LORA_ALPHA = 32
"""As hosted Tinker has it: an adapter's output is scaled by alpha / rank."""


def lora_config(ranks: Mapping[str, int], rank: int) -> dict[str, Any]:
    """PEFT's config of an adapter of some rank, from the ranks that its layers have.

    A layer that is smaller than the rank has less, and the same scale.
    """
    capped = {layer: own for layer, own in sorted(ranks.items()) if own != rank}
    return {
        "r": rank,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout": 0.0,
        "target_modules": sorted(ranks),
        "rank_pattern": capped,
        "alpha_pattern": {layer: LORA_ALPHA * own / rank for layer, own in capped.items()},
    }


def write_adapter(folder: Path, weights: Mapping[str, Tensor], rank: int, base: str) -> None:
    """Write an adapter's tensors, named as PEFT does, as `PeftModel.from_pretrained` reads them.

    `base` is the model that it is of. Raises OSError.
    """
    prefix, suffix = "base_model.model.", ".lora_A.weight"
    ranks = {
        key.removeprefix(prefix).removesuffix(suffix): tensor.shape[0]
        for key, tensor in weights.items()
        if key.endswith(suffix)
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "bias": "none",
        **lora_config(ranks, rank),
    }
    save_file(dict(weights), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The model of a folder, as its files have it unless a `dtype` is given; raises UsageError.

    That of an adapter's folder is its base with the adapter in its weights.
    """
    try:
        base = base_of(folder)
        if base is not None:
            return _with_adapter(load_model(base, dtype), folder)
        # Without a word on remote code, transformers asks at the terminal, and waits.
        return AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=dtype or "auto", local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UsageError(f"cannot load a causal language model from {folder}: {first_line(error)}") from error


def _with_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """A model with an adapter in its weights. It is changed in place."""
    from peft import PeftModel  # takes seconds to import, and few need it

    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    embeddings: Any = model.get_input_embeddings()
    unembed: Any = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is unembed)
    adapted = any(name == layer or name.endswith(f".{layer}") for layer in config["target_modules"])
    if adapted and unembed.weight is embeddings.weight:
        # One tensor in two uses, of which the adapter changes one only.
        unembed.weight = nn.Parameter(unembed.weight.detach().clone())
        model.config.tie_word_embeddings = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = PeftModel.from_pretrained(model, str(folder))
        return cast("PreTrainedModel", wrapped.merge_and_unload(safe_merge=True))
