"""Causal language models of model folders, without code that a folder names and within its files' size.

A folder's config may come from anybody: a model of it is first built on the meta device, where tensors take
no memory, and compared with the names and shapes in the weights files.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
)

from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.records.jsonl import read_json
from rolegraph.local.limits import MODEL_BUFFERS
from rolegraph.local.service.tensors import read_tensors, tensor_faults

WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_IGNORED = re.compile(
    r"auto_map|\w*(attn|experts)_implementation\w*|fusion_config|num_labels|(id2|2)?label2?\w*"
)
"""Settings that are dropped: those that name code, which transformers would fetch, and labels, which no
language model has."""
_LAYERS = re.compile(r"(n|num)_(\w+_)?layers?|(en|de)coder_layers")
"""Settings that are numbers of layers."""
_MANY_LAYERS = 256
"""Number of layers that a config may always declare; a missing tensor is then named in the message."""


def load_base(folder: Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Load the causal language model of a model folder.

    Args:
        folder: The model's folder.
        dtype: The weights' type; by default that of the files.

    Raises:
        UsageError: The config needs code or quantized weights, or the weights do not fit it.
    """
    shell, tensors = open_shell(folder)
    with _faults_of(folder):
        shapes = {name: tensor.to("meta") for name, tensor in tensors.items()}
        check_names(shell, _filled(shell, shapes, dtype=torch.float32, device_map="meta")[1], shapes)
        if fault := tensor_faults(tensors, shapes):
            raise UsageError(fault)
        model = _filled(shell, tensors, dtype=dtype or "auto")[0]
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
        return model


def open_shell(folder: Path) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Return (model of a model folder's config, with weights that take no memory; tensors of the folder's
    files).

    Raises:
        UsageError: The folder has no weights, or its config is not usable; see `model_shell`.
    """
    with _faults_of(folder):
        tensors = read_tensors(_weights_files(folder))
        return model_shell(read_json(folder / "config.json"), len(tensors)), tensors


@contextmanager
def _faults_of(folder: Path) -> Generator[None]:
    """Convert any error in a block, of which transformers raises many types, to a UsageError that names the
    folder."""
    try:
        yield
    except Exception as error:
        raise UsageError(f"cannot load a causal language model from {folder}: {first_line(error)}") from error


def model_shell(settings: Mapping[str, Any], tensors: int) -> PreTrainedModel:
    """Return the causal language model of a config, with weights that take no memory.

    Args:
        settings: The content of a config.json.
        tensors: Number of tensors in the model's files.

    Raises:
        UsageError: The model cannot be loaded without code of its own, or the config declares more layers or
            parameters than the files hold.
    """
    model_type = settings.get("model_type")
    if model_type not in CONFIG_MAPPING:
        reason = f"its config.json has the model_type {model_type!r:.60}, which transformers does not know"
        note = "; code that comes with a model (`auto_map`) is not run here" if "auto_map" in settings else ""
        raise UsageError(f"{reason}{note}")
    config: Any = AutoConfig.for_model(**_plain(settings, tensors))
    config._attn_implementation = config._experts_implementation = None  # of sub-configs, too
    with torch.device("meta"):
        shell: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    buffer_bytes = sum(buffer.nbytes for _, buffer in shell.named_non_persistent_buffers())
    if buffer_bytes > MODEL_BUFFERS.most:
        raise UsageError(MODEL_BUFFERS.exceeded("its config.json asks for"))
    return shell


def _plain(settings: Mapping[str, Any], tensors: int) -> dict[str, Any]:
    """Return a copy of a config, sub-configs included, without the settings that name code."""
    for key, value in settings.items():
        if key in ("quantization_config", "compression_config") and value:
            raise UsageError(
                f"its weights are quantized ({key} in its config.json); take the model with weights in "
                "bfloat16, float16 or float32, or a GGUF file of it: rolegraph fetch FILE"
            )
        if _LAYERS.fullmatch(key) and isinstance(value, int) and value > max(tensors, _MANY_LAYERS):
            raise UsageError(f"it announces {value:,} layers ({key}), and has {tensors:,} tensors")
    return {
        key: _plain(cast("dict[str, Any]", value), tensors) if isinstance(value, dict) else _read(value)
        for key, value in settings.items()
        if not _IGNORED.fullmatch(key)
    }


def _read(value: Any) -> Any:
    """Return a value in which `{"__float__": TEXT}`, transformers' form of an infinite number in a list, is
    the number."""
    if isinstance(value, list):
        return [_read(member) for member in cast("list[Any]", value)]
    is_float = isinstance(value, dict) and [*cast("dict[str, Any]", value)] == ["__float__"]
    return float(value["__float__"]) if is_float else value


def _weights_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    try:
        names: set[str] = {*read_json(folder / _INDEX)["weight_map"].values()}
        if not all(Path(name).name == name for name in names):
            raise UsageError(f"{_INDEX} names files of other folders")
        return [folder / name for name in sorted(names)]
    except FileNotFoundError:
        has_pickles = any(folder.glob("*.bin"))
        pickle_note = "; pickles (.bin), which may hold code, are not read here" if has_pickles else ""
        raise UsageError(f"there is no {WEIGHTS} and no {_INDEX} in it{pickle_note}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{_INDEX} is no index of weights: {first_line(error)}") from error


def _filled(shell: PreTrainedModel, tensors: Mapping[str, Tensor], **options: Any) -> tuple[Any, Any]:
    """Load weights into a model like `shell`, with transformers' rules for the names of tensors.

    Returns:
        The model, and transformers' loading info: names of missing, unexpected and mismatched tensors.
    """
    from_pretrained = cast("Any", type(shell).from_pretrained)
    return from_pretrained(
        None,
        config=shell.config,
        state_dict=dict(tensors),
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported with the others
        **options,
    )


def check_names(shell: PreTrainedModel, info: Mapping[str, Any], bare: Mapping[str, Tensor]) -> None:
    """Compare a model's weights with the names, shapes and kinds of numbers that its config expects.

    Args:
        shell: The config's model.
        info: Loading info of transformers, which maps the files' names to the model's.
        bare: The files' tensors on the meta device.

    Raises:
        UsageError: A tensor does not fit.
    """
    expected = shell.state_dict()
    weights = {name: tensor for name, tensor in expected.items() if name not in info["missing_keys"]}
    weights |= {name: weights[name].to(bare[name].dtype) for name in weights.keys() & bare.keys()}
    weights |= {name: torch.empty(shape, device="meta") for name, shape, _ in info["mismatched_keys"]}
    weights |= dict.fromkeys(info["unexpected_keys"], torch.empty(0, device="meta"))
    if fault := tensor_faults(weights, expected):
        raise UsageError(fault)
