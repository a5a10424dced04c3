"""Adapter folders in PEFT's form, and loading of models from model folders and adapter folders."""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.records.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of_adapter
from rolegraph.local.service.model_files import load_base, open_shell
from rolegraph.local.service.tensors import read_tensors, safetensors_errors, tensor_faults

LORA_ALPHA = 32
"""Hosted Tinker's value: an adapter's output is scaled by alpha / rank."""
_PREFIX = "base_model.model."
"""Beginning of the names that PEFT gives an adapter's tensors."""
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
}
"""Settings of PEFT that do not change the output of a finished adapter."""


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
    a_suffix = ".lora_A.weight"
    ranks = {
        key.removeprefix(_PREFIX).removesuffix(a_suffix): tensor.shape[0]
        for key, tensor in weights.items()
        if key.endswith(a_suffix)
    }
    lower_ranks = {layer: layer_rank for layer, layer_rank in sorted(ranks.items()) if layer_rank != rank}
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
        "rank_pattern": lower_ranks,
        "alpha_pattern": {layer: LORA_ALPHA * layer_rank / rank for layer, layer_rank in lower_ranks.items()},
    }
    with safetensors_errors():
        save_file(dict(weights), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


_Rank = Annotated[int, Field(ge=1, le=2**31)]


class LayerUpdate(NamedTuple):
    """Low-rank update of a linear layer's weight: scale · b a, for a [r, in] and b [out, r]."""

    layer: str
    a: Tensor
    b: Tensor
    scale: float


def load_model(folder: Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Load a causal language model from a model folder, or from an adapter folder with the adapter merged in.

    Args:
        folder: The model's or adapter's folder.
        dtype: The weights' type; by default that of the files.

    Raises:
        UsageError: The model cannot be loaded.
    """
    base = base_of_adapter(folder)
    model = load_base(base or folder, dtype)
    if base is not None:
        _merge_adapter(model, folder)
    return model


def check_adapter(folder: Path, base: Path) -> None:
    """Raise UsageError if an adapter folder's weights do not fit the model in `base`, which is not loaded."""
    read_adapter(folder, open_shell(base_of_adapter(base) or base)[0])


def read_adapter(folder: Path, model: nn.Module) -> list[LayerUpdate]:
    """Read an adapter folder for a model.

    Args:
        folder: The adapter's folder.
        model: Its base model, whose weights may be on the meta device.

    Raises:
        UsageError: The adapter is not a plain LoRA adapter, or its tensors do not fit its config and the
            model.
    """
    try:
        config = _AdapterConfig.model_validate(read_json(folder / ADAPTER_CONFIG))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / ADAPTER_CONFIG} is no LoRA adapter's config: {_first(error)}") from error
    layers = linear_layers(model)
    tensors = read_tensors([folder / ADAPTER_WEIGHTS])
    shapes: dict[str, tuple[int, int, int, float]] = {}
    for name, layer in layers.items():
        if config.adapts(name, tensors):
            out_size, in_size = weight_of(layer).shape
            rank, alpha = config.of(name)
            shapes[name] = out_size, in_size, rank, alpha / (rank**0.5 if config.use_rslora else rank)
    if not shapes:
        raise UsageError(f"{folder} adapts {config.target_modules!r:.100}, no linear layer of its model")
    for name in [*config.rank_pattern, *config.alpha_pattern]:
        if not any(_is_named(layer, name) for layer in shapes):
            raise UsageError(f"{folder} has a rank or alpha for {name!r:.100}, which it does not adapt")
    expected = {
        f"{_PREFIX}{name}.lora_{matrix}.weight": torch.empty(shape, device="meta")
        for name, (out_size, in_size, rank, _) in shapes.items()
        for matrix, shape in (("A", (rank, in_size)), ("B", (out_size, rank)))
    }
    if fault := tensor_faults(tensors, expected):
        raise UsageError(f"the adapter {folder} does not fit its model: {fault}")
    return [
        LayerUpdate(
            name, tensors[f"{_PREFIX}{name}.lora_A.weight"], tensors[f"{_PREFIX}{name}.lora_B.weight"], scale
        )
        for name, (_, _, _, scale) in shapes.items()
    ]


def linear_layers(model: nn.Module) -> dict[str, nn.Linear | Conv1D]:
    """Return the layers of a model that an adapter can change, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}


def weight_of(layer: nn.Linear | Conv1D) -> Tensor:
    """Return a layer's weight as [out, in]."""
    return layer.weight.T if isinstance(layer, Conv1D) else layer.weight


def _is_named(layer: str, name: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


class _AdapterConfig(BaseModel):
    """Settings of PEFT that change an adapter's output; any other such setting is refused.

    Settings that only PEFT's training reads may have any value.
    """

    peft_type: Literal["LORA"]
    r: _Rank
    lora_alpha: float
    target_modules: list[str] | str
    """Ends of the names of the adapted layers, or a regular expression."""
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    rank_pattern: dict[str, _Rank] = {}
    alpha_pattern: dict[str, float] = {}
    use_rslora: bool = False
    init_lora_weights: Literal[True, False, "gaussian", "eva", "orthogonal"] = True
    """Initial weights in training; values other than these change the base model's weights, too."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_others(self) -> Self:
        for key, value in (self.model_extra or {}).items():
            if key not in _WITHOUT_EFFECT and value not in (None, False, "none", [], {}):
                raise ValueError(f"{key} is {value!r:.60}, which is not computed here")
        return self

    def adapts(self, layer: str, tensors: Mapping[str, Tensor]) -> bool:
        """Return True if a layer is adapted.

        If the settings may hold patterns, which can take endless time to match, the names in `tensors`
        decide.
        """
        patterns = self.target_modules
        if isinstance(patterns, str) or self.exclude_modules or self.layers_to_transform is not None:
            return f"{_PREFIX}{layer}.lora_A.weight" in tensors
        return any(_is_named(layer, pattern) for pattern in patterns)

    def of(self, layer: str) -> tuple[int, float]:
        """Return the rank and alpha of a layer."""
        rank = next((rank for name, rank in self.rank_pattern.items() if _is_named(layer, name)), self.r)
        alphas = (alpha for name, alpha in self.alpha_pattern.items() if _is_named(layer, name))
        return rank, next(alphas, self.lora_alpha)


def _first(error: Exception) -> str:
    """Return the first fault of a validation, or the error's first line."""
    if not isinstance(error, ValidationError):
        return first_line(error)
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": Value error, ")


def _merge_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Add an adapter to a model's weights, in place."""
    updates, layers = read_adapter(folder, model), linear_layers(model)
    embeddings: Any = model.get_input_embeddings()
    unembed: Any = model.get_output_embeddings()
    if unembed.weight is embeddings.weight and any(layers[update.layer] is unembed for update in updates):
        # Tied embeddings are one tensor with two uses, and the adapter changes one of them only.
        unembed.weight = nn.Parameter(unembed.weight.detach().clone())
        model.config.tie_word_embeddings = False
    with torch.no_grad():
        for name, a, b, scale in updates:
            weight = weight_of(layers[name])
            merged_weight = (weight.float() + b.float() @ a.float() * scale).to(weight.dtype)
            if fault := tensor_faults({name: merged_weight}, {name: weight}):
                raise UsageError(f"the adapter {folder} cannot be merged: {fault}")
            weight.copy_(merged_weight)
