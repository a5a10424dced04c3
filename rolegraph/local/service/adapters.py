"""Adapter folders in PEFT's form, and loading of models from model folders and adapter folders."""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import errno
import json
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from rolegraph.engine.errors import UsageError, first_line
from rolegraph.local.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of_adapter

LORA_ALPHA = 32
"""Hosted Tinker's value: an adapter's output is scaled by alpha / rank."""


def write_adapter(folder: Path, weights: Mapping[str, Tensor], rank: int, base: str) -> None:
    """Write an adapter folder that `PeftModel.from_pretrained` loads.

    A layer smaller than the nominal rank has its own rank, and an alpha that keeps alpha / rank the same.

    Args:
        folder: An existing folder.
        weights: The tensors by PEFT's names.
        rank: The nominal rank.
        base: The base model's name or folder.

    Raises:
        OSError: A file cannot be written.
    """
    prefix, suffix = "base_model.model.", ".lora_A.weight"
    ranks = {
        key.removeprefix(prefix).removesuffix(suffix): tensor.shape[0]
        for key, tensor in weights.items()
        if key.endswith(suffix)
    }
    capped = {layer: layer_rank for layer, layer_rank in sorted(ranks.items()) if layer_rank != rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "bias": "none",
        "r": rank,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout": 0.0,
        "target_modules": sorted(ranks),
        "rank_pattern": capped,
        "alpha_pattern": {layer: LORA_ALPHA * layer_rank / rank for layer, layer_rank in capped.items()},
    }
    with safetensors_errors():
        save_file(dict(weights), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@contextmanager
def safetensors_errors() -> Generator[None]:
    """Raise the error of a block that writes safetensors, such as a full disk's, as OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error


def load_model(folder: Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Load a causal language model from a model folder, or from an adapter folder with the adapter merged in.

    Args:
        folder: The model's or adapter's folder.
        dtype: The weights' type; by default that of the files.

    Raises:
        UsageError: The model cannot be loaded.
    """
    try:
        base = base_of_adapter(folder)
        if base is not None:
            return _merge_adapter(load_model(base, dtype), folder)
        # Unless trust_remote_code is given, transformers may ask at the terminal and wait.
        return AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=dtype or "auto", local_files_only=True, trust_remote_code=False
        )
    except UsageError:
        raise
    except UnpicklingError as error:
        raise UsageError(
            f"the weights in {folder} are a pickle of more than tensors, whose code is not run here; take "
            "weights in the form of safetensors"
        ) from error
    except Exception as error:  # transformers and peft raise many types for a folder that they cannot load
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{folder} needs code that comes with the model (`auto_map` in its config.json), and such "
                "code is not run here; take a model whose architecture is part of transformers"
            ) from error
        raise UsageError(f"cannot load a causal language model from {folder}: {first_line(error)}") from error


def _merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge an adapter into a model's weights, in place."""
    from peft import PeftModel  # takes seconds to import

    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    embeddings: Any = model.get_input_embeddings()
    unembed: Any = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is unembed)
    adapted = any(name == layer or name.endswith(f".{layer}") for layer in config["target_modules"])
    if adapted and unembed.weight is embeddings.weight:
        # Tied embeddings are one tensor with two uses, and the adapter changes one of them only.
        unembed.weight = nn.Parameter(unembed.weight.detach().clone())
        model.config.tie_word_embeddings = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = PeftModel.from_pretrained(model, str(folder))
        return cast("PreTrainedModel", wrapped.merge_and_unload(safe_merge=True))
