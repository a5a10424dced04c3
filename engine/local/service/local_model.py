"""One causal language model with LoRA adapters, and log-probabilities of token sequences under them.

An adapter is a set of tensors. Adapters of one shape share a model, into which the tensors of the adapter in
use are put, so that a hundred adapters take hardly more memory than one. Everything here runs on the compute
thread. Knows nothing of HTTP, requests or losses.

Axes: B sequences, T tokens (padded), V vocabulary.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import copy
import itertools
import logging
import os
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AutoTokenizer
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.local.service.adapters import load_model, lora_config
from rolegraph.engine.local.service.prefixes import RowLayout, layout, rows_of
from rolegraph.engine.models.limited_tokenizer import limit_tokenizer, panics_as_errors

T = TypeVar("T")

DEFAULT_CONTEXT = 4096
SMALL_MODEL = 20_000_000
"""Parameters below which one thread samples faster than several, and a copy of the model is cheap."""
SMALL_TRAIN_THREADS = 2
"""Threads for training a small model, whose batches are larger than those of sampling."""
_logger = logging.getLogger(__name__)
_ADAPTER = "default"
"""PEFT's name of a model's only adapter."""
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoraShape:
    """Rank of an adapter and the kinds of layers that it trains; `seed` draws its first weights."""

    rank: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    seed: int | None = None

    @property
    def without_seed(self) -> LoraShape:
        """The shape without its seed; adapters for which it is equal can be loaded into one PEFT model."""
        return replace(self, seed=None)


_ALL_LAYERS = LoraShape(1)


class _Adapter(NamedTuple):
    """LoRA adapter: its tensors, the layers (`places`) that take them, and the model that all adapters of the
    same shape share."""

    model: nn.Module
    tensors: Mapping[str, nn.Parameter]
    """The tensors by their names in the model."""
    places: Sequence[nn.Module]
    """The modules whose weights the tensors are, in the same order."""

    def activate(self) -> nn.Module:
        """Put the tensors into the model and return it; valid until another adapter is activated."""
        if self.places[0].weight is not next(iter(self.tensors.values())):
            for place, tensor in zip(self.places, self.tensors.values(), strict=True):
                place.weight = tensor
        return self.model


def _adapter(model: nn.Module, tensors: Mapping[str, nn.Parameter]) -> _Adapter:
    places = [model.get_submodule(name.removesuffix(".weight")) for name in tensors]
    return _Adapter(model, tensors, places)


class _RowOrder(NamedTuple):
    """Order of the rows of a batch by their adapters, its inverse, and the number of rows of each adapter."""

    order: Tensor
    inverse: Tensor
    sizes: list[int]


def _linear_by_row(place: nn.Module, weights: Sequence[Tensor], rows: _RowOrder, x: Tensor) -> Tensor:
    """Compute a linear layer whose weight depends on the row of x [B, ..., D]."""
    bias: Any = place.bias
    if isinstance(place, Conv1D):
        weights = [weight.T for weight in weights]
    width = x[0].numel() // x.shape[-1]
    columns = x.index_select(0, rows.order).flatten(0, -2).T
    parts = columns.split([size * width for size in rows.sizes], 1)
    # The weight comes first: few rows times a transposed weight take MKL almost twice the time.
    out = torch.cat([weight @ part for weight, part in zip(weights, parts, strict=True)], 1).T
    out = out.unflatten(0, x.shape[:-1]).index_select(0, rows.inverse)
    return out if bias is None else out + bias


class TopTokens(NamedTuple):
    """The likeliest tokens at one position, in descending order."""

    ids: Sequence[int]
    logprobs: Sequence[float]


class LocalModel:
    """Causal language model loaded from a folder, with named LoRA adapters.

    Wherever an adapter's name is expected, None stands for the model without adapters.
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        warnings.filterwarnings("ignore", module="peft")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        base: Any = load_model(folder, self.dtype)
        try:
            with panics_as_errors():
                tokenizer: Any = AutoTokenizer.from_pretrained(
                    str(folder), local_files_only=True, trust_remote_code=False
                )
            self.tokenizer = limit_tokenizer(tokenizer, folder)
        except Exception as error:  # transformers and tokenizers raise many types for files that are broken
            raise UsageError(f"cannot load the tokenizer of {folder}: {first_line(error)}") from error
        self._plain: nn.Module = base.to(self.device).eval().requires_grad_(False)
        self._wrapped: WeakValueDictionary[LoraShape, nn.Module] = WeakValueDictionary()
        """The model that the adapters of a shape share, while there are any."""
        self._adapters: dict[str, _Adapter] = {}
        self._merged: set[str] = set()
        """Frozen adapters of a small model, whose tensors are the model's own weights with theirs added."""
        self.small = sum(parameter.numel() for parameter in self._plain.parameters()) < SMALL_MODEL
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

    def add_adapter(self, name: str, shape: LoraShape) -> None:
        """Add an adapter, whose output is zero until it is trained or loaded."""
        with torch.random.fork_rng(devices=[]):
            model = self._wrapped.get(shape.without_seed)
            if model is None:
                model = self._wrapped[shape.without_seed] = self._wrap(shape)
            torch.manual_seed(shape.seed if shape.seed is not None else torch.seed())
            self._adapters[name] = _adapter(model, _initial_tensors(model))

    def _wrap(self, shape: LoraShape) -> nn.Module:
        """Return a copy of the model with PEFT's layers for adapters of a shape."""
        from peft import LoraConfig, get_peft_model  # takes seconds to import, and only training needs it

        # A rank above a layer's own size adds cost and no expressiveness.
        ranks = {name: min(size, shape.rank) for name, size in self._targets(shape).items()}
        config = LoraConfig(**lora_config(ranks, shape.rank))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped: Any = get_peft_model(cast("Any", _copy_sharing_tensors(self._plain)), config)
        return cast("nn.Module", wrapped).eval()

    @cached_property
    def _merge_host(self) -> nn.Module:
        """The copy of the model into which merged weights are put."""
        return _copy_sharing_tensors(self._plain)

    def drop_adapter(self, name: str) -> None:
        """Drop an adapter and free its memory."""
        self._adapters.pop(name, None)
        self._merged.discard(name)

    def weights(self, name: str) -> dict[str, Tensor]:
        """Return a copy of an adapter's tensors on the CPU, by PEFT's names."""
        from peft.utils import get_peft_model_state_dict

        tensors = get_peft_model_state_dict(
            cast("Any", self._adapters[name].activate()), save_embedding_layers=False
        )
        return {key: tensor.detach().clone().contiguous().cpu() for key, tensor in tensors.items()}

    def set_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Copy tensors, as returned by `weights`, into an adapter of the same shape."""
        from peft.utils import set_peft_model_state_dict

        with torch.no_grad():
            set_peft_model_state_dict(self._adapters[name].activate(), dict(weights))

    def parameters(self, name: str) -> list[nn.Parameter]:
        """Return an adapter's trainable tensors, ordered by name."""
        return [tensor for _, tensor in sorted(self._adapters[name].tensors.items())]

    def freeze(self, name: str) -> None:
        """End an adapter's training; that of a small model is merged, since sampling is faster then."""
        if self.small:
            with torch.no_grad():
                merged = self._merged_weights(name)
            weights: dict[str, nn.Parameter] = {}
            for layer in self._targets(_ALL_LAYERS):
                weight: Any = merged.get(layer, self._plain.get_submodule(layer).weight)
                weights[f"{layer}.weight"] = nn.Parameter(weight, requires_grad=False)
            self._adapters[name] = _adapter(self._merge_host, weights)
            self._merged.add(name)

    def _merged_weights(self, name: str) -> dict[str, Tensor]:
        """Return the weights of the layers that an adapter trains, with the adapter added. Differentiable."""
        return {
            layer: module.get_base_layer().weight + module.get_delta_weight(_ADAPTER)
            for layer, module in cast("Any", self._adapters[name].activate()).get_base_model().named_modules()
            if hasattr(module, "lora_A")
        }

    def module(self, name: str | None) -> nn.Module:
        """Activate an adapter and return the model, which a later call with another adapter changes."""
        return self._plain if name is None else self._adapters[name].activate()

    def host(self, name: str | None) -> nn.Module:
        """Return the model that an adapter shares with those whose sequences can be in one batch with its."""
        return self._plain if name is None else self._adapters[name].model

    @contextmanager
    def module_by_row(self, names: Sequence[str | None]) -> Generator[nn.Module, None, None]:
        """Give the model under which row b of a batch is computed with adapter names[b]; they share a host.

        The layers with other weights for each adapter compute the rows of each in turn, all others compute
        the batch at once.
        """
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        if len(numbers) == 1:
            yield self.module(names[0])
            return
        adapters = [self._adapters[name] for name in numbers if name is not None]
        of_row = torch.tensor([numbers[name] for name in names], device=self.device)
        order = of_row.argsort(stable=True)
        rows = _RowOrder(order, order.argsort(), of_row.bincount().tolist())
        by_place = zip(*(adapter.tensors.values() for adapter in adapters), strict=True)
        for place, weights in zip(adapters[0].places, by_place, strict=True):
            place.forward = partial(_linear_by_row, place, weights, rows)
        try:
            yield adapters[0].model
        finally:
            for place in adapters[0].places:
                del place.forward

    @contextmanager
    def training(self) -> Generator[None, None, None]:
        """Use the number of threads for training within the block."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._train_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _targets(self, shape: LoraShape) -> dict[str, int]:
        """Return the layers that an adapter of a shape trains, with the largest rank that each can have."""
        unembed = cast("Any", self._plain).get_output_embeddings()
        layers: dict[str, int] = {}
        for name, module in self._plain.named_modules():
            if not isinstance(module, nn.Linear | Conv1D):
                continue
            if module is unembed or name == "lm_head":
                wanted = shape.train_unembed
            else:
                wanted = shape.train_attn if _ATTENTION.search(name) else shape.train_mlp
            if wanted:
                layers[name] = min(module.weight.shape)
        return dict(sorted(layers.items()))

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Return the texts of token sequences, special tokens included."""
        texts: list[str] = self.tokenizer.batch_decode(
            rows, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return texts

    # log-probabilities

    def logprobs(
        self,
        name: str | None,
        sequences: Sequence[Sequence[int]],
        targets: Sequence[Tensor],
        limit: int,
    ) -> Generator[tuple[list[int], Tensor], None, None]:
        """Yield log-probabilities of targets at temperature 1, in batches of sequences of similar length.

        Differentiable where grad is enabled.

        Args:
            name: the adapter's name, or None.
            sequences: token ids of each sequence b, [T].
            targets: for each sequence [T], or [T, K] for K targets at each position; targets[b][t] is scored
                after sequences[b][: t + 1].
            limit: padded tokens of a batch.

        Yields:
            The numbers of a batch's sequences, and the log-probabilities of their targets, flattened and
            concatenated in the same order.
        """
        rows = rows_of(sequences, share=self.can_share_rows)
        for batch in padded_batches(rows, len, limit):
            laid = layout(batch, self.dtype, self.device)
            chosen = [targets[number] for number in laid.numbers]
            wanted = torch.cat([target.flatten() for target in chosen]).to(self.device)
            places = laid.places
            if any(target.ndim > 1 for target in chosen):
                counts = [torch.full((len(target),), target[0].numel()) for target in chosen]
                places = places.repeat_interleave(torch.cat(counts).to(self.device))
            yield laid.numbers, self._logprobs(name, laid, places, wanted)

    def top_tokens(self, name: str | None, tokens: Sequence[int], count: int) -> list[TopTokens]:
        """Return the `count` likeliest tokens after each prefix tokens[: t + 1], at temperature 1."""
        laid = layout(rows_of([tokens], share=False), self.dtype, self.device)
        logprobs, ids = self._logits(name, laid)[0].log_softmax(-1).topk(count)
        return [TopTokens(*row) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]

    def _logprobs(self, name: str | None, laid: RowLayout, places: Tensor, wanted: Tensor) -> Tensor:
        logits = self._logits(name, laid)
        chosen = logits.flatten()[places * logits.shape[-1] + wanted]
        return chosen - logits.logsumexp(-1).flatten()[places]

    def _logits(self, name: str | None, laid: RowLayout) -> Tensor:
        """Run the model, with the adapter `name`, on a layout of rows; returns logits [B, N, V]."""
        inputs = {"input_ids": laid.ids, "attention_mask": laid.mask, "position_ids": laid.positions}
        if self.small and name is not None and name not in self._merged:
            weights = {f"{layer}.weight": w for layer, w in self._merged_weights(name).items()}
            # Tied embeddings are one tensor with two uses, and an adapter changes one of them only.
            out: Any = functional_call(
                self._plain, weights, kwargs={**inputs, "use_cache": False}, tie_weights=False
            )
        else:
            out = self.module(name)(**inputs, use_cache=False)
        return out.logits.float()

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


def _copy_sharing_tensors(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model that shares its tensors."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _initial_tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return first weights of an adapter by their names in a model, equal to those that PEFT would draw."""
    tensors: dict[str, nn.Parameter] = {}
    for layer, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        places: dict[str, Any] = {part: getattr(module, part)[_ADAPTER] for part in ("lora_A", "lora_B")}
        new = [nn.Linear(place.in_features, place.out_features, bias=False) for place in places.values()]
        new[0].reset_parameters()  # PEFT draws it twice, too
        nn.init.zeros_(new[1].weight)
        for (part, place), linear in zip(places.items(), new, strict=True):
            values = linear.weight.detach().to(place.weight.device, place.weight.dtype)
            tensors[f"{layer}.{part}.{_ADAPTER}.weight"] = nn.Parameter(values)
    return tensors


def padded_batches(items: Sequence[T], length: Callable[[T], int], limit: int) -> list[list[T]]:
    """Return items sorted by length, in batches of at most `limit` tokens when padded."""
    batches: list[list[T]] = []
    for item in sorted(items, key=length):
        if not batches or (len(batches[-1]) + 1) * length(item) > limit:
            batches.append([])
        batches[-1].append(item)
    return batches
