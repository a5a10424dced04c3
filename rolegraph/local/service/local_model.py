"""One causal language model of a folder with its tokenizer, and log-probabilities of token sequences.

Everything here runs on the compute thread. Knows nothing of HTTP, requests or losses.

Axes: B sequences, T tokens (padded), N rows of hidden states, H their width, V vocabulary.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from rolegraph.engine.errors import UsageError, first_line, panics_as_errors
from rolegraph.local.service.adapters import load_model
from rolegraph.local.service.lora import AdaptedModel, LoraAdapter, again_in_backward
from rolegraph.local.service.memory import (
    DEFAULT_CONTEXT,
    CacheBytes,
    UpdateBytes,
    cache_bytes,
    placement,
    update_bytes_of,
)
from rolegraph.local.service.prefixes import MAX_ROW, RowLayout, layout, rows_of

T = TypeVar("T")

SMALL_TRAIN_THREADS = 2
"""Threads for training a small model, whose batches are larger than those of sampling."""
_logger = logging.getLogger(__name__)


class _TokenLogprobs(torch.autograd.Function):
    """Log-probabilities [M] of `tokens` [M] under the logits [N, V] in rows `places` [M], with one copy of
    the logits.

    Autograd's own log-softmax and indexing take four copies, and a pass over each.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, places: Tensor, tokens: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        # An attribute of its own would stay where the backward pass computes all of this again.
        ctx.save_for_backward(places, tokens, logprobs)
        ctx.dtype = logits.dtype
        return logprobs[places, tokens]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        places, tokens, logprobs = ctx.saved_tensors
        row_grads = grad.new_zeros(len(logprobs)).index_add_(0, places, grad)
        logit_grads = logprobs.exp_().mul_(-row_grads.unsqueeze(-1))
        return logit_grads.index_put_((places, tokens), grad, accumulate=True).to(ctx.dtype), None, None


class TopTokens(NamedTuple):
    """The likeliest tokens at one position, in descending order."""

    ids: Sequence[int]
    logprobs: Sequence[float]


class LocalModel(AdaptedModel):
    """Causal language model loaded from a folder, with LoRA adapters.

    Wherever an adapter is expected, None stands for the model without adapters.
    """

    def __init__(self, folder: Path, threads: int | None = None, bf16: bool = False) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        device, dtype = placement(bf16=bf16)
        base: Any = load_model(folder, dtype)
        try:
            with panics_as_errors():
                self.tokenizer: Any = AutoTokenizer.from_pretrained(
                    str(folder), config=base.config, local_files_only=True, trust_remote_code=False
                )
        except Exception as error:  # transformers and tokenizers raise many types for files that are broken
            raise UsageError(f"cannot load the tokenizer of {folder}: {first_line(error)}") from error
        super().__init__(base.to(device), dtype)
        cores = os.cpu_count() or 1
        self._train_threads = threads or min(cores, SMALL_TRAIN_THREADS if self.small else cores)
        torch.set_num_threads(threads or (1 if self.small else cores))
        config: Any = base.config.get_text_config()
        self.context: int = getattr(config, "max_position_embeddings", None) or DEFAULT_CONTEXT
        end_ids = getattr(base.generation_config, "eos_token_id", None)
        end_ids = self.tokenizer.eos_token_id if end_ids is None else end_ids
        ids = [end_ids] if isinstance(end_ids, int) else end_ids or []
        if not (isinstance(ids, list) and all(isinstance(end_id, int) for end_id in ids)):
            raise UsageError(
                f"{folder}: eos_token_id is {end_ids!r:.60}; expected a token's id, or a list of them"
            )
        self.end_ids: frozenset[int] = frozenset(ids)

    @contextmanager
    def training(self) -> Generator[None, None, None]:
        """Set PyTorch's number of threads for training within a block."""
        old_threads = torch.get_num_threads()
        torch.set_num_threads(self._train_threads)
        try:
            yield
        finally:
            torch.set_num_threads(old_threads)

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Return the texts of token sequences, special tokens included."""
        texts: list[str] = self.tokenizer.batch_decode(
            rows, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return texts

    # log-probabilities

    @cached_property
    def update_bytes(self) -> UpdateBytes:
        """Memory that the tokens of an update take, without the model and its adapters."""
        return update_bytes_of(self.module, self.dtype)

    @cached_property
    def cache_bytes(self) -> CacheBytes:
        """Memory that a sequence takes while it is sampled."""
        return cache_bytes(self)

    def logprobs(
        self,
        adapter: LoraAdapter | None,
        sequences: Sequence[Sequence[int]],
        targets: Sequence[Tensor],
        limit: int,
        *,
        recompute: bool = False,
    ) -> Generator[tuple[list[int], Tensor], None, None]:
        """Yield log-probabilities of targets at temperature 1, in batches of sequences of similar length.

        Differentiable where grad is enabled.

        Args:
            adapter: The adapter; None for the model without adapters.
            sequences: Token ids of each sequence b, [T].
            targets: For each sequence [T], or [T, K] for K targets at each position; targets[b][t] is scored
                after sequences[b][: t + 1].
            limit: Padded tokens of a batch.
            recompute: True to keep only the inputs of each layer, and compute the rest again in the backward
                pass.

        Yields:
            (indices of a batch's sequences, log-probabilities of their targets, flattened and concatenated in
            the same order).
        """
        rows = rows_of(sequences, share=self.can_share_rows, most=min(limit, MAX_ROW))
        for batch in padded_batches(rows, len, limit):
            row_layout = layout(batch, self.dtype, self.device)
            batch_targets = [targets[number] for number in row_layout.numbers]
            target_ids = torch.cat([target.flatten() for target in batch_targets]).to(self.device)
            places = row_layout.places
            if any(target.ndim > 1 for target in batch_targets):
                counts = [torch.full((len(target),), target[0].numel()) for target in batch_targets]
                places = places.repeat_interleave(torch.cat(counts).to(self.device))
            hidden_states = self._hidden(adapter, row_layout, recompute=recompute)
            yield row_layout.numbers, self._logprobs(adapter, hidden_states, places, target_ids)

    def top_tokens(self, adapter: LoraAdapter | None, tokens: Sequence[int], count: int) -> list[TopTokens]:
        """Return the `count` likeliest tokens after each prefix tokens[: t + 1], at temperature 1."""
        row_layout = layout(rows_of([tokens], share=False), self.dtype, self.device)
        top_tokens: list[TopTokens] = []
        for hidden_chunk in self._hidden(adapter, row_layout).split(self.chunk):
            logprobs, ids = self.logits(adapter, hidden_chunk).float().log_softmax(-1).topk(count)
            top_tokens += [TopTokens(*row) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]
        return top_tokens

    def _logprobs(
        self, adapter: LoraAdapter | None, hidden: Tensor, places: Tensor, wanted: Tensor
    ) -> Tensor:
        """Return log-probabilities of tokens `wanted` [M] after the hidden states at `places` [M].

        Logits are computed for `chunk` rows at a time, and if there are several chunks, again in the backward
        pass: the logits of 16,384 tokens and a vocabulary of 150,000 would take 30 GB.
        """
        rows, inverse = places.unique(return_inverse=True)
        chunks = hidden[rows].split(self.chunk)
        scores, order = list[Tensor](), list[Tensor]()

        def score(part: Tensor, rows_of_part: Tensor, tokens: Tensor) -> Tensor:
            return cast("Tensor", _TokenLogprobs.apply(self.logits(adapter, part), rows_of_part, tokens))

        for chunk_index, chunk in enumerate(chunks):
            row_in_chunk = inverse - chunk_index * self.chunk
            order.append(((row_in_chunk >= 0) & (row_in_chunk < len(chunk))).nonzero().squeeze(-1))
            inputs = chunk, row_in_chunk[order[-1]], wanted[order[-1]]
            recomputes = len(chunks) > 1 and torch.is_grad_enabled()
            scores.append(again_in_backward(score, *inputs) if recomputes else score(*inputs))
        return scores[0] if len(chunks) == 1 else torch.cat(scores)[torch.cat(order).argsort()]

    def _hidden(self, adapter: LoraAdapter | None, laid: RowLayout, *, recompute: bool = False) -> Tensor:
        """Return the last layer's output [B · N, H] for a layout of rows."""
        inputs = {"input_ids": laid.ids, "attention_mask": laid.mask, "position_ids": laid.positions}
        return self.hidden(adapter, inputs, recompute=recompute).flatten(0, 1)

    @cached_property
    def can_share_rows(self) -> bool:
        """True if several sequences can share a row, which needs a model that obeys custom masks and
        positions."""
        config: Any = self.module.config.get_text_config()
        kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
        if getattr(config, "sliding_window", None) or any(kind != "full_attention" for kind in kinds):
            return False
        sequences = [[1, 2, 3, 2, 1], [1, 2, 0, 1, 2, 3]]
        targets = torch.tensor([0] * 11, device=self.device)
        logprobs: list[Tensor] = []
        try:
            with torch.inference_mode():
                for share in (True, False):
                    row_layout = layout(rows_of(sequences, share=share), self.dtype, self.device)
                    hidden_states = self._hidden(None, row_layout)
                    logprobs.append(self._logprobs(None, hidden_states, row_layout.places, targets).cpu())
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
