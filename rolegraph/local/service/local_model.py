"""One causal language model with LoRA adapters, and log-probabilities of token sequences under them.

An adapter is a set of tensors. All adapters share the model: while a batch is computed, the layers that its
adapters change have a forward of their own. Everything here runs on the compute thread. Knows nothing of
HTTP, requests or losses.

Axes: B sequences, T tokens (padded), V vocabulary, r rank.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from rolegraph.engine.errors import UsageError, first_line, panics_as_errors
from rolegraph.local.service.adapters import LORA_ALPHA, linear_layers, load_model, weight_of
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.prefixes import MAX_ROW, RowLayout, layout, rows_of
from rolegraph.local.service.tensors import tensor_faults

T = TypeVar("T")

DEFAULT_CONTEXT = 4096
MAX_BATCH_LOGITS = 2**26
"""Logits (tokens times vocabulary) of one forward pass."""
SMALL_MODEL = 20_000_000
"""Parameters below which one thread of a CPU samples faster than several, and merged weights are cheap."""
SMALL_TRAIN_THREADS = 2
"""Threads for training a small model, whose batches are larger than those of sampling."""
_logger = logging.getLogger(__name__)
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
        """The shape without its seed; adapters for which it is equal have tensors of the same shapes."""
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
    """Permutation that sorts a batch's rows by adapter, its inverse, and the number of rows of each
    adapter."""

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
    parts = columns.split([size * width for size in rows.sizes], 1)
    # The weight comes first: few rows times a transposed weight take MKL almost twice the time.
    out = torch.cat([weight @ part for weight, part in zip(weights, parts, strict=True)], 1).T
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
    ordered = x if rows is None else x.index_select(0, rows.order)
    flat = ordered.flatten(0, -2)
    out = linear(flat, weight, bias).float()
    start = 0
    for adapter, size in zip(adapters, [len(x)] if rows is None else rows.sizes, strict=True):
        part = slice(start, start := start + size * (len(flat) // len(x)))
        if adapter is not None and name in adapter.pairs:
            # In place: sums of their own take as long as the low-rank terms. Autograd copies for views.
            adapter.add_to(out if rows is None else out[part], name, flat[part])
    out = out.to(x.dtype).unflatten(0, ordered.shape[:-1])
    return out if rows is None else out.index_select(0, rows.inverse)


class _TokenLogprobs(torch.autograd.Function):
    """Log-probabilities [M] of `tokens` [M] under logits [N, V] at `places` [M], with one copy of the logits.

    Autograd's own graph of log-softmax and indexing takes four copies and as many passes over them.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, places: Tensor, tokens: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        ctx.save_for_backward(places, tokens)
        ctx.logprobs, ctx.dtype = logprobs, logits.dtype
        return logprobs[places, tokens]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        places, tokens = ctx.saved_tensors
        by_place = grad.new_zeros(len(ctx.logprobs)).index_add_(0, places, grad)
        out = ctx.logprobs.exp_().mul_(-by_place.unsqueeze(-1))
        del ctx.logprobs
        return out.index_put_((places, tokens), grad, accumulate=True).to(ctx.dtype), None, None


class TopTokens(NamedTuple):
    """The likeliest tokens at one position, in descending order."""

    ids: Sequence[int]
    logprobs: Sequence[float]


class LocalModel:
    """Causal language model loaded from a folder, with LoRA adapters.

    Wherever an adapter is expected, None stands for the model without adapters.
    """

    def __init__(self, folder: Path, threads: int | None = None, bf16: bool = False) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if bf16 or self.device.type == "cuda" else torch.float32
        base: Any = load_model(folder, self.dtype)
        try:
            with panics_as_errors():
                self.tokenizer: Any = AutoTokenizer.from_pretrained(
                    str(folder), config=base.config, local_files_only=True, trust_remote_code=False
                )
        except Exception as error:  # transformers and tokenizers raise many types for files that are broken
            raise UsageError(f"cannot load the tokenizer of {folder}: {first_line(error)}") from error
        self._plain: nn.Module = base.to(self.device).eval().requires_grad_(False)
        self._layers: dict[str, Any] = {**linear_layers(self._plain)}
        size = sum(parameter.numel() for parameter in self._plain.parameters())
        # A merged weight in bfloat16 would lose most of what a step of training changes.
        self.small = self.dtype == torch.float32 and size < SMALL_MODEL
        cores = os.cpu_count() or 1
        self._train_threads = threads or min(cores, SMALL_TRAIN_THREADS if self.small else cores)
        torch.set_num_threads(threads or (1 if self.small else cores))
        self.vocabulary: int = base.config.vocab_size
        self.context: int = getattr(base.config, "max_position_embeddings", None) or DEFAULT_CONTEXT
        ends = getattr(base.generation_config, "eos_token_id", None)
        ends = self.tokenizer.eos_token_id if ends is None else ends
        ids = [ends] if isinstance(ends, int) else ends or []
        if not (isinstance(ids, list) and all(isinstance(id, int) for id in ids)):
            raise UsageError(
                f"{folder}: eos_token_id is {ends!r:.60}; expected a token's id, or a list of them"
            )
        self.end_ids: frozenset[int] = frozenset(ids)

    # adapters

    def add_adapter(self, shape: LoraShape) -> LoraAdapter:
        """Return a new adapter, whose output is zero until it is trained or loaded.

        Its first weights are those that PEFT would draw.
        """
        pairs: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(shape.seed if shape.seed is not None else torch.seed())
            for name in self._targets(shape):
                out, size = self._weight(name).shape
                # A rank above a layer's own size adds cost and no expressiveness.
                rank = min(out, size, shape.rank)
                a, b = nn.Linear(size, rank, bias=False), nn.Linear(rank, out, bias=False)
                a.reset_parameters()  # PEFT draws it twice, too
                nn.init.zeros_(b.weight)
                new = [nn.Parameter(layer.weight.detach().to(self.device)) for layer in (a, b)]
                pairs[name] = new[0], new[1]
        return LoraAdapter(shape, pairs)

    def freeze(self, adapter: LoraAdapter) -> None:
        """Prepare a trained adapter for sampling: in a small model, merge it into weights, which is
        faster."""
        if self.small:
            with torch.no_grad():
                adapter.merged = {name: self._weight(name, adapter) for name in adapter.pairs}

    def _weight(self, name: str, adapter: LoraAdapter | None = None) -> Tensor:
        """Return a layer's weight [out, in], with an adapter added."""
        if adapter is not None and name in adapter.merged:
            return adapter.merged[name]
        weight = weight_of(self._layers[name])
        return weight if adapter is None or name not in adapter.pairs else adapter.merge(name, weight)

    @contextmanager
    def adapted(self, adapters: Sequence[LoraAdapter | None]) -> Generator[nn.Module, None, None]:
        """Yield the module with which row b of a batch is computed with adapters[b]; one adapter serves all
        rows.

        The layers that an adapter changes compute the rows of each adapter in turn, all others compute the
        batch at once.
        """
        numbers = {adapter: number for number, adapter in enumerate(dict.fromkeys(adapters))}
        rows = None
        if len(numbers) > 1:
            of_row = torch.tensor([numbers[adapter] for adapter in adapters], device=self.device)
            order = of_row.argsort(stable=True)
            rows = _RowOrder(order, order.argsort(), of_row.bincount().tolist())
        changed = dict.fromkeys(name for adapter in numbers if adapter is not None for name in adapter.pairs)
        for name in changed:
            layer = self._layers[name]
            if self.small:
                weights = [self._weight(name, adapter) for adapter in numbers]
                layer.forward = partial(_linear_by_row, layer.bias, weights, rows)
            else:
                weight = self._weight(name)
                layer.forward = partial(_low_rank_by_row, layer.bias, weight, name, [*numbers], rows)
        try:
            yield self._plain
        finally:
            for name in changed:
                del self._layers[name].forward

    @contextmanager
    def training(self) -> Generator[None, None, None]:
        """Set PyTorch's number of threads to that for training within a block."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._train_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _targets(self, shape: LoraShape) -> list[str]:
        """Return the names of the layers that an adapter of a shape trains, in the model's order."""
        unembed = cast("Any", self._plain).get_output_embeddings()

        def is_wanted(name: str) -> bool:
            if self._layers[name] is unembed or name == "lm_head":
                return shape.train_unembed
            return shape.train_attn if _ATTENTION.search(name) else shape.train_mlp

        return [name for name in self._layers if is_wanted(name)]

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Return the texts of token sequences, special tokens included."""
        texts: list[str] = self.tokenizer.batch_decode(
            rows, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return texts

    # log-probabilities

    @cached_property
    def bytes_per_token(self) -> int:
        """Memory that a token takes in an update, beside the model and its adapters.

        Autograd keeps about as much as the inputs and outputs of the linear layers, in float32 where adapters
        read them. Of logits, three copies in float32 live at the peak.
        """
        unembed = cast("Any", self._plain).get_output_embeddings()
        layers = [layer for layer in self._layers.values() if layer is not unembed]
        features = sum(sum(layer.weight.shape) for layer in layers)
        return 4 * features + 3 * 4 * self.vocabulary

    @cached_property
    def cache_bytes_per_token(self) -> int:
        """Memory of a token's keys and values while its sequence is sampled."""
        config: Any = cast("Any", self._plain).config
        heads: int = config.num_attention_heads
        width: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        kept: int = getattr(config, "num_key_value_heads", None) or heads
        return 2 * config.num_hidden_layers * kept * width * self.dtype.itemsize

    def logprobs(
        self,
        adapter: LoraAdapter | None,
        sequences: Sequence[Sequence[int]],
        targets: Sequence[Tensor],
        limit: int,
    ) -> Generator[tuple[list[int], Tensor], None, None]:
        """Yield log-probabilities of targets at temperature 1, in batches of sequences of similar length.

        Differentiable where grad is enabled.

        Args:
            adapter: The adapter, or None.
            sequences: Token ids of each sequence b, [T].
            targets: For each sequence [T], or [T, K] for K targets at each position; targets[b][t] is scored
                after sequences[b][: t + 1].
            limit: Padded tokens of a batch.

        Yields:
            The numbers of a batch's sequences, and the log-probabilities of their targets, flattened and
            concatenated in the same order.
        """
        rows = rows_of(sequences, share=self.can_share_rows, most=min(limit, MAX_ROW))
        for batch in padded_batches(rows, len, limit):
            laid = layout(batch, self.dtype, self.device)
            chosen = [targets[number] for number in laid.numbers]
            wanted = torch.cat([target.flatten() for target in chosen]).to(self.device)
            places = laid.places
            if any(target.ndim > 1 for target in chosen):
                counts = [torch.full((len(target),), target[0].numel()) for target in chosen]
                places = places.repeat_interleave(torch.cat(counts).to(self.device))
            yield laid.numbers, self._logprobs(adapter, laid, places, wanted)

    def top_tokens(self, adapter: LoraAdapter | None, tokens: Sequence[int], count: int) -> list[TopTokens]:
        """Return the `count` likeliest tokens after each prefix tokens[: t + 1], at temperature 1."""
        laid = layout(rows_of([tokens], share=False), self.dtype, self.device)
        logprobs, ids = self._logits(adapter, laid)[0].float().log_softmax(-1).topk(count)
        return [TopTokens(*row) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]

    def _logprobs(
        self, adapter: LoraAdapter | None, laid: RowLayout, places: Tensor, wanted: Tensor
    ) -> Tensor:
        logits = self._logits(adapter, laid).flatten(0, 1)
        return cast("Tensor", _TokenLogprobs.apply(logits, places, wanted))

    def _logits(self, adapter: LoraAdapter | None, laid: RowLayout) -> Tensor:
        """Return logits [B, N, V] of the model with an adapter for a layout of rows."""
        inputs = {"input_ids": laid.ids, "attention_mask": laid.mask, "position_ids": laid.positions}
        with self.adapted([adapter]) as module:
            out: Any = module(**inputs, use_cache=False)
        return out.logits

    @cached_property
    def can_share_rows(self) -> bool:
        """True if sequences can share a row, that is, if the model obeys custom masks and positions."""
        config: Any = cast("Any", self._plain).config
        kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
        if getattr(config, "sliding_window", None) or any(kind != "full_attention" for kind in kinds):
            return False
        sequences = [[1, 2, 3, 2, 1], [1, 2, 0, 1, 2, 3]]
        targets = torch.tensor([0] * 11, device=self.device)
        logprobs: list[Tensor] = []
        try:
            with torch.inference_mode():
                for share in (True, False):
                    laid = layout(rows_of(sequences, share=share), self.dtype, self.device)
                    logprobs.append(self._logprobs(None, laid, laid.places, targets).cpu())
        except Exception as error:  # models that accept no such mask fail in different ways
            _logger.debug("sequences do not share rows: %s", error)
            return False
        return torch.allclose(logprobs[0], logprobs[1], atol=1e-4 if self.dtype == torch.float32 else 0.1)


def padded_batches(items: Sequence[T], length: Callable[[T], int], limit: int) -> list[list[T]]:
    """Return items sorted by length, in batches of at most `limit` tokens when padded."""
    batches: list[list[T]] = []
    for item in sorted(items, key=length):
        if not batches or (len(batches[-1]) + 1) * length(item) > limit:
            batches.append([])
        batches[-1].append(item)
    return batches
