"""LoRA adapters on a model, and the forward pass of batches whose rows have different ones.

An adapter is a set of tensors. All adapters share the model: while a batch is computed, the layers that its
adapters change have a forward of their own. The model may be on the meta device, where tensors take no
memory. Knows nothing of tokenizers, requests or losses.

Axes: B sequences, T tokens (padded), r rank.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from rolegraph.local.service.adapters import LORA_ALPHA, linear_layers, weight_of
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.tensors import tensor_faults

T = TypeVar("T")

SMALL_MODEL = 20_000_000
"""Number of parameters below which one thread of a CPU samples faster than several, and merging adapters
costs little."""
CHUNK_LOGITS = 2**25
"""Number of logits (rows times vocabulary) that are computed at a time."""
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoraShape:
    """Rank of an adapter and the kinds of layers that it trains; `seed` draws its first weights."""

    rank: Annotated[int, Field(ge=1)]
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    seed: int | None = None

    @property
    def without_seed(self) -> LoraShape:
        """The shape without its seed; adapters with equal values have tensors of the same shapes."""
        return replace(self, seed=None)


@dataclass(eq=False, slots=True)
class LoraAdapter:
    """LoRA adapter of a `LocalModel`: its output is added to that of some of the model's linear layers."""

    shape: LoraShape
    pairs: Mapping[str, tuple[nn.Parameter, nn.Parameter]]
    """A [r, in] and B [out, r] of each layer, by the layer's name."""
    merged: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Weights of the layers with the adapter added, if it is frozen and the model is small."""

    @property
    def tensors(self) -> dict[str, nn.Parameter]:
        """The trainable tensors by PEFT's names, in their order."""
        return {
            f"base_model.model.{layer}.lora_{part}.weight": tensor
            for layer, pair in sorted(self.pairs.items())
            for part, tensor in zip("AB", pair, strict=True)
        }

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the tensors on the CPU, by PEFT's names."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.tensors.items()}

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy tensors, as returned by `weights`, into the adapter; raises RequestError unless they fit."""
        if fault := tensor_faults(weights, self.tensors):
            raise RequestError(f"the weights do not fit the model: {fault}")
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(weights[name])

    def add_to(self, out: Tensor, layer: str, x: Tensor) -> None:
        """Add the low-rank term (alpha / rank · B A x) of x [N, in] to a layer's output [N, out]."""
        a, b = self.pairs[layer]
        out.addmm_(linear(x.to(a.dtype), a), b.T, alpha=LORA_ALPHA / self.shape.rank)

    def merge(self, layer: str, weight: Tensor) -> Tensor:
        """Return a layer's weight [out, in] plus the adapter's low-rank update; differentiable."""
        a, b = self.pairs[layer]
        return weight + b @ a * (LORA_ALPHA / self.shape.rank)


class _RowOrder(NamedTuple):
    """Permutation that sorts a batch's rows by adapter, its inverse, and each adapter's number of rows."""

    order: Tensor
    inverse: Tensor
    sizes: list[int]


def _linear_by_row(
    bias: Tensor | None, weights: Sequence[Tensor], rows: _RowOrder | None, x: Tensor
) -> Tensor:
    """Return the output of a linear layer for x [B, ..., in], each row with the weight of its own adapter."""
    if rows is None:
        return linear(x, weights[0], bias)
    width = x[0].numel() // x.shape[-1]
    columns = x.index_select(0, rows.order).flatten(0, -2).T
    columns_of_adapter = columns.split([size * width for size in rows.sizes], 1)
    # The weight comes first: few rows times a transposed weight take MKL almost twice the time.
    out = torch.cat([weight @ block for weight, block in zip(weights, columns_of_adapter, strict=True)], 1).T
    out = out.unflatten(0, x.shape[:-1]).index_select(0, rows.inverse)
    return out if bias is None else out + bias


def _low_rank_by_row(
    bias: Tensor | None,
    weight: Tensor,
    name: str,
    adapters: Sequence[LoraAdapter | None],
    rows: _RowOrder | None,
    x: Tensor,
) -> Tensor:
    """Return a layer's output for x [B, ..., in], with the low-rank term of each row's own adapter."""
    sorted_rows = x if rows is None else x.index_select(0, rows.order)
    flat = sorted_rows.flatten(0, -2)
    output = linear(flat, weight, bias).float()
    start = 0
    for adapter, size in zip(adapters, [len(x)] if rows is None else rows.sizes, strict=True):
        row_slice = slice(start, start := start + size * (len(flat) // len(x)))
        if adapter is not None and name in adapter.pairs:
            # In place: sums of their own take as long as the low-rank terms. Autograd copies for views.
            adapter.add_to(output if rows is None else output[row_slice], name, flat[row_slice])
    output = output.to(x.dtype).unflatten(0, sorted_rows.shape[:-1])
    return output if rows is None else output.index_select(0, rows.inverse)


def _of_sequences(forward: Callable[[Tensor], Tensor], count: int, x: Tensor) -> Tensor:
    """Call a layer's forward for x [B, ..., in]; a model may also give all tokens as x [B · T, in]."""
    return forward(x) if len(x) == count else forward(x.unflatten(0, (count, -1))).flatten(0, 1)


class _LayersOutput(BaseModelOutputWithPast):
    """Output of a model's layers, without the additions of some kinds of models, such as the router's
    logits."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def stacked_experts(module: nn.Module) -> str | None:
    """Return the name of the first module that holds the weights of several experts in one tensor; None
    without such a module."""
    return next(
        (
            name
            for name, submodule in module.named_modules()
            if "expert" in name and any(weight.ndim == 3 for weight in submodule.parameters(recurse=False))
        ),
        None,
    )


def again_in_backward(function: Callable[..., T], *inputs: Tensor) -> T:
    """Return function(*inputs); the backward pass computes the function again instead of keeping its
    intermediate tensors.

    This saves memory for one more forward pass. The function draws no random number: dropout is off.
    """
    # PyTorch leaves the type of the result open.
    return cast("Any", checkpoint)(function, *inputs, use_reentrant=False, preserve_rng_state=False)


@contextmanager
def _replaced(forwards: Mapping[Any, Callable[..., Any]]) -> Generator[None, None, None]:
    """Replace the forward of modules within a block."""
    old_forwards = [(module, vars(module).get("forward")) for module in forwards]
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module, forward in old_forwards:
            if forward is None:
                del module.forward
            else:
                module.forward = forward


class AdaptedModel:
    """Causal language model whose linear layers LoRA adapters change.

    Wherever an adapter is expected, None stands for the model without adapters.
    """

    def __init__(self, module: PreTrainedModel, dtype: torch.dtype) -> None:
        # transformers 5.24 renames it to `cache`, and takes both until 5.40.
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated")
        self.module: Any = module.eval().requires_grad_(False)
        self.dtype = dtype
        self._layers: dict[str, Any] = {**linear_layers(module)}
        self.size = sum(parameter.numel() for parameter in module.parameters())
        # A merged weight in bfloat16 would lose most of what a step of training changes.
        self.small = dtype == torch.float32 and self.size < SMALL_MODEL
        self.vocabulary: int = self.module.config.get_text_config().vocab_size
        self.chunk = max(1, CHUNK_LOGITS // self.vocabulary)
        """Number of rows of hidden states whose logits are computed at a time."""
        self.experts = stacked_experts(module)

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return next(self.module.parameters()).device

    def add_adapter(self, shape: LoraShape) -> LoraAdapter:
        """Return a new adapter, whose output is zero until it is trained or loaded.

        Its initial weights equal those that PEFT draws.

        Raises:
            RequestError: The shape includes feed-forward layers, and the model has experts, whose layers
                cannot be adapted.
        """
        if shape.train_mlp and self.experts:
            raise RequestError(
                f"{self.module.config.model_type} has experts ({self.experts}), whose weights are one tensor "
                "and no linear layers, which LoRA does not adapt here: train the attention alone "
                "(lora: {mlp: false})"
            )
        pairs: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        # Drawn on the CPU, where a seed gives the same numbers for all devices.
        draw_device = "meta" if self.device.type == "meta" else "cpu"
        with torch.random.fork_rng(devices=[]), torch.device(draw_device):
            torch.manual_seed(shape.seed if shape.seed is not None else torch.seed())
            for name in self._targets(shape):
                out_size, in_size = self._weight(name).shape
                # A rank above a layer's own size adds cost and no expressiveness.
                rank = min(out_size, in_size, shape.rank)
                a, b = nn.Linear(in_size, rank, bias=False), nn.Linear(rank, out_size, bias=False)
                a.reset_parameters()  # PEFT draws it twice, too
                nn.init.zeros_(b.weight)
                parameters = [nn.Parameter(layer.weight.detach().to(self.device)) for layer in (a, b)]
                pairs[name] = parameters[0], parameters[1]
        return LoraAdapter(shape, pairs)

    def freeze(self, adapter: LoraAdapter) -> None:
        """Prepare a trained adapter for sampling: in a small model, merge it into weights, which is
        faster."""
        if self.small:
            with torch.no_grad():
                adapter.merged = {name: self._weight(name, adapter) for name in adapter.pairs}

    def _weight(self, name: str, adapter: LoraAdapter | None = None) -> Tensor:
        """Return a layer's weight [out, in], plus the update of an adapter if one is given."""
        if adapter is not None and name in adapter.merged:
            return adapter.merged[name]
        weight = weight_of(self._layers[name])
        return weight if adapter is None or name not in adapter.pairs else adapter.merge(name, weight)

    @contextmanager
    def adapted(self, adapters: Sequence[LoraAdapter | None]) -> Generator[nn.Module, None, None]:
        """Yield the module with which row b of a batch is computed with adapters[b]; one adapter serves all
        rows.

        The layers that an adapter changes compute the rows of each adapter in turn, all others compute the
        batch at once. Blocks may be nested: a backward pass may compute a layer again.
        """
        index_of = {adapter: number for number, adapter in enumerate(dict.fromkeys(adapters))}
        rows = None
        if len(index_of) > 1:
            adapter_of_row = torch.tensor([index_of[adapter] for adapter in adapters], device=self.device)
            order = adapter_of_row.argsort(stable=True)
            rows = _RowOrder(order, order.argsort(), adapter_of_row.bincount().tolist())
        layers = dict.fromkeys(name for adapter in index_of if adapter is not None for name in adapter.pairs)
        forwards: dict[Any, Callable[..., Tensor]] = {}
        for name in layers:
            layer = self._layers[name]
            if self.small:
                weights = [self._weight(name, adapter) for adapter in index_of]
                forwards[layer] = partial(_linear_by_row, layer.bias, weights, rows)
            else:
                weight = self._weight(name)
                forwards[layer] = partial(_low_rank_by_row, layer.bias, weight, name, [*index_of], rows)
            if rows is not None:
                forwards[layer] = partial(_of_sequences, forwards[layer], len(adapters))
        with _replaced(forwards):
            yield self.module

    def hidden(
        self, adapter: LoraAdapter | None, inputs: Mapping[str, Tensor], *, recompute: bool = False
    ) -> Tensor:
        """Return the last layer's output [B, T, H], before the logits.

        Args:
            adapter: The adapter; None for the model without adapters.
            inputs: Arguments of the model: token ids, mask and positions.
            recompute: True to keep only the inputs of each layer, and compute the rest again in the backward
                pass.
        """

        def layer_forward(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def compute(*args: Any) -> Any:
                with self.adapted([adapter]):
                    return forward(*args, **kwargs)

            return again_in_backward(compute, *args)

        layers = [
            it for it in self.module.modules() if recompute and isinstance(it, GradientCheckpointingLayer)
        ]
        with (
            self.adapted([adapter]),
            _replaced({layer: partial(layer_forward, layer.forward) for layer in layers}),
        ):
            return self.module.base_model(**inputs, use_cache=False).last_hidden_state

    def logits(self, adapter: LoraAdapter | None, hidden: Tensor) -> Tensor:
        """Return the logits [N, V] of rows of the last layer's output [N, H].

        The model's own forward computes them, with `hidden` in place of its layers' output: models scale or
        bound their logits in different ways.
        """
        layers_output = _LayersOutput(last_hidden_state=cast("Any", hidden.unsqueeze(0)))
        ids = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
        with self.adapted([adapter]), _replaced({self.module.base_model: lambda *_, **__: layers_output}):
            return self.module(input_ids=ids, use_cache=False).logits.squeeze(0)

    def _targets(self, shape: LoraShape) -> list[str]:
        """Return the names of the layers that an adapter of a shape trains, in the model's order.

        Layers that read images or sound are left out.
        """
        unembed, decoder = self.module.get_output_embeddings(), {*self.module.get_decoder().modules()}

        def is_wanted(name: str) -> bool:
            layer = self._layers[name]
            if layer is unembed or name == "lm_head":
                return shape.train_unembed
            return layer in decoder and (shape.train_attn if _ATTENTION.search(name) else shape.train_mlp)

        return [name for name in self._layers if is_wanted(name)]
