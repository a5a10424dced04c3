"""Accounting of memory: what a model, its adapters, an update and sampling take, and what is free.

A forward pass on the meta device, where tensors take no memory, counts what autograd keeps of a token. So a
model that does not fit is refused before it is loaded. Knows nothing of HTTP or requests.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from rich.filesize import decimal
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.weights import base_of_adapter
from rolegraph.local.service.caches import cached_tensors, open_cache
from rolegraph.local.service.free_memory import PASS_SHARE, free_memory
from rolegraph.local.service.lora import AdaptedModel, LoraShape, stacked_experts
from rolegraph.local.service.model_files import open_shell

DEFAULT_CONTEXT = 4096
"""Tokens of the context of a model whose config has no number."""
_TOKENS = 16
"""Tokens of a pass that measures caches."""
_UPDATE_TOKENS = 256
"""Number of tokens of a pass that measures updates, and the unit of such numbers: linear attention takes
chunks of this size."""
_LOGIT_BYTES = 2 * 4
"""Bytes of a logit at the peak: two copies in float32, or one and two in bfloat16."""
ADAPTER_COPIES = 4
"""Tensors of the size of an adapter in training: itself, its gradient and Adam's two moments."""


def placement(*, bf16: bool) -> tuple[torch.device, torch.dtype]:
    """Return the device of the service's models and the type of their weights."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return device, torch.bfloat16 if bf16 or device.type == "cuda" else torch.float32


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Memory that a model takes in the service, in bytes, and what is free for it."""

    weights: int
    policy: int
    """Bytes of a trained policy: adapter, gradient and Adam's moments."""
    rank: int
    """Rank of the adapter."""
    update: UpdateBytes
    cache: CacheBytes
    context: int
    """Tokens of the model's context."""
    free: int

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence that can be sampled and trained beside one policy; 0 if
        not one fits."""
        token_bytes = self.update.recomputed + self.cache.token
        bytes_left = int((self.free - self.weights - self.policy - self.cache.state) * PASS_SHARE)
        tokens = replace(self.update, recomputed=token_bytes).tokens(bytes_left, recompute=True)
        return max(0, min(self.context, tokens))

    def lines(self) -> list[str]:
        """Return the account as lines of text."""
        update, cache = self.update, self.cache
        state_note = f", and {decimal(cache.state)} a sequence" if cache.state else ""
        longest_note = f"{self.longest:,} tokens" if self.longest else "none fits"
        return [
            f"memory: {decimal(self.free)} are free; weights take {decimal(self.weights)}, each policy "
            f"{decimal(self.policy)} (LoRA of rank {self.rank}, its gradient, Adam)",
            f"  a token takes {decimal(update.kept)} in an update, or {decimal(update.recomputed)} where "
            f"layers are computed twice, and {decimal(cache.token)} in the cache of sampling{state_note}",
            f"  logits take {decimal(min(update.chunk, self.context) * update.logits)}; longest sequence "
            f"that trains: {longest_note}",
        ]

    def check(self) -> None:
        """Raise UsageError unless the model, a policy and a sequence of one token fit in memory."""
        if not self.longest:
            raise UsageError(
                f"the model does not fit: its weights take {decimal(self.weights)} and a policy "
                f"{decimal(self.policy)}, and {decimal(self.free)} are free; end other programs on the GPU "
                "(nvidia-smi lists them), take a smaller model, or train it with a Tinker service on several "
                "GPUs (rolegraph serve --engine)"
            )


def account(folder: Path, *, bf16: bool = False, rank: int = 32) -> MemoryAccount:
    """Return the memory that the model of a folder takes in the service, without loading the model.

    Args:
        folder: A Hugging Face model folder, or an adapter folder in PEFT's form.
        bf16: True for weights in bfloat16 on a CPU as well.
        rank: Rank of the policies' adapters.

    Raises:
        UsageError: The folder's model cannot be loaded.
    """
    shell = open_shell(base_of_adapter(folder) or folder)[0]
    device, dtype = placement(bf16=bf16)
    return account_of(shell, dtype, rank=rank, free=free_memory(device))


def account_of(shell: PreTrainedModel, dtype: torch.dtype, *, rank: int, free: int) -> MemoryAccount:
    """Return the memory that a model, given on the meta device, takes with weights of `dtype`; see
    `account`."""
    model, scale = _on_meta(shell, dtype)
    adapter = model.add_adapter(LoraShape(rank, train_mlp=not model.experts))
    cache = cache_bytes(model)
    config: Any = shell.config.get_text_config()
    return MemoryAccount(
        weights=model.size * dtype.itemsize,
        policy=ADAPTER_COPIES * sum(tensor.nbytes for tensor in adapter.tensors.values()),
        rank=rank,
        update=update_bytes_of(shell, dtype),
        cache=CacheBytes(scale * cache.token, scale * cache.state),
        context=getattr(config, "max_position_embeddings", None) or DEFAULT_CONTEXT,
        free=free,
    )


def update_bytes_of(module: PreTrainedModel, dtype: torch.dtype) -> UpdateBytes:
    """Measure, on the meta device, the memory that the tokens of an update of a model take; see
    `update_bytes`."""
    model, scale = _on_meta(module, dtype)
    update = update_bytes(model)
    return replace(update, kept=scale * update.kept, recomputed=scale * update.recomputed)


def _on_meta(module: PreTrainedModel, dtype: torch.dtype) -> tuple[AdaptedModel, int]:
    """Return (model like `module` on the meta device, factor by which its bytes must be multiplied).

    The factor is 2 for a float32 model with experts: on the meta device, PyTorch multiplies by experts only
    in bfloat16.
    """
    with torch.device("meta"):
        shell = type(module)(cast("Any", module.config))
    meta_dtype = torch.bfloat16 if stacked_experts(shell) else dtype
    return AdaptedModel(cast("Any", shell).to(meta_dtype), meta_dtype), dtype.itemsize // meta_dtype.itemsize


@dataclass(frozen=True, slots=True)
class UpdateBytes:
    """Bytes that a forward and backward pass takes, without the model and its adapters."""

    kept: int
    """Bytes of a token that autograd keeps from all layers."""
    recomputed: int
    """Bytes of a token if layers are computed again: each layer's input, and what autograd keeps from one
    layer."""
    logits: int
    """Bytes of a token whose logits are computed in the present chunk."""
    chunk: int
    """Largest number of tokens in a chunk."""

    def of(self, tokens: int, *, recompute: bool) -> int:
        """Return the bytes of a pass of `tokens`."""
        return tokens * (self.recomputed if recompute else self.kept) + min(tokens, self.chunk) * self.logits

    def tokens(self, most: int, *, recompute: bool) -> int:
        """Return the largest number of tokens whose pass takes at most `most` bytes."""
        token_bytes = self.recomputed if recompute else self.kept
        tokens = max(most, 0) // (token_bytes + self.logits)
        return tokens if tokens <= self.chunk else (most - self.chunk * self.logits) // token_bytes


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes that one sequence takes while it is sampled."""

    token: int
    """Bytes of the keys and values of a token."""
    state: int
    """Bytes of a sequence's state of fixed size, in models with linear attention or convolutions."""

    def tokens(self, most: int) -> int:
        """Return the number of tokens whose keys and values take at most `most` bytes."""
        return most // max(self.token, 1)

    @property
    def state_tokens(self) -> int:
        """Number of tokens whose keys and values take as many bytes as a sequence's state."""
        return self.state // max(self.token, 1)


def update_bytes(model: AdaptedModel) -> UpdateBytes:
    """Measure the memory that the tokens of an update take, by three passes; on the meta device they take no
    memory.

    Memory that grows with the square of the tokens is left out: PyTorch computes attention in pieces on a CPU
    or GPU, but as a whole on the meta device.
    """
    adapter = model.add_adapter(LoraShape(8, train_mlp=not model.experts, train_unembed=False))
    passes = [_kept_bytes(model, adapter, (number + 1) * _UPDATE_TOKENS) for number in range(3)]
    linear_bytes: list[int] = []
    for kept_1, kept_2, kept_3 in zip(*passes, strict=True):
        quadratic = (kept_3 - 2 * kept_2 + kept_1) // 2
        linear_bytes.append((kept_2 - kept_1 - 3 * quadratic) // _UPDATE_TOKENS)
    layers = [end - start for start, end in pairwise(linear_bytes)]
    width = model.module.config.get_text_config().hidden_size * model.dtype.itemsize
    return UpdateBytes(
        kept=linear_bytes[-1],
        recomputed=len(layers) * width + max(layers),
        logits=_LOGIT_BYTES * model.vocabulary,
        chunk=model.chunk,
    )


def cache_bytes(model: AdaptedModel) -> CacheBytes:
    """Measure the memory that a sequence takes while it is sampled, by a pass of a few tokens."""
    cache = open_cache(model.module.config)
    with torch.no_grad():
        model.module(**_inputs(model, _TOKENS), past_key_values=cache, use_cache=True, logits_to_keep=1)
    token_bytes = state_bytes = 0
    for layer in cache.layers:
        layer_bytes = sum(tensor.nbytes for tensor in cached_tensors(layer))
        if isinstance(layer, DynamicLayer):
            token_bytes += layer_bytes
        else:
            state_bytes += layer_bytes
    return CacheBytes(token_bytes // _TOKENS, state_bytes)


def _kept_bytes(model: AdaptedModel, adapter: Any, tokens: int) -> list[int]:
    """Return the bytes that autograd keeps at the start of each layer and at the end of a pass."""
    kept_storages: dict[int, Any] = {}
    bytes_at_layer: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept_storages[id(storage)] = storage  # held, so that no other takes its address
        return tensor

    def mark(*_: object) -> None:
        bytes_at_layer.append(sum(storage.nbytes() for storage in kept_storages.values()))

    layers = [module for module in model.module.modules() if isinstance(module, GradientCheckpointingLayer)]
    hooks = [layer.register_forward_pre_hook(mark) for layer in layers]
    try:
        with torch.enable_grad(), saved_tensors_hooks(count, lambda tensor: tensor):
            model.hidden(adapter, _inputs(model, tokens))
    finally:
        for hook in hooks:
            hook.remove()
    mark()
    return bytes_at_layer


def _inputs(model: AdaptedModel, tokens: int) -> Mapping[str, Tensor]:
    """Return the arguments of a model for one sequence of `tokens` tokens.

    The mask has a row for each token: models inspect the values of a simple mask, which do not exist on the
    meta device.
    """
    ids = torch.zeros(1, tokens, dtype=torch.long, device=model.device)
    mask = torch.zeros(1, 1, tokens, tokens, dtype=model.dtype, device=model.device)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": torch.zeros_like(ids)}
