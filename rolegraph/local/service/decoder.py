"""Batched decoding of sequences, each with its own adapter; sequences can join and leave at every step.

What each layer remembers is kept in slots (`caches`): a row for each sequence, keys and values right-aligned
at the newest token, so that a step appends one column for all. A new sequence takes the next free row; when
one leaves, the last row moves into its place. Nothing else is copied, while a cache that grows by
concatenation is copied whole at every step.

Axes: B sequences, T columns.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicLayer

from rolegraph.engine.errors import UsageError
from rolegraph.local.service.caches import Window, cached_tensors, open_cache, slots_of
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.lora import LoraAdapter
from rolegraph.local.service.sampling import SampleRequest, sample_next

_SPARE_COLUMNS = 64
"""Number of columns that are allocated in advance, one for each step."""
_TOLERANCE, _ROUGH_TOLERANCE = 1e-3, 0.3
"""Largest accepted error of a log-probability in float32 and in bfloat16, since states are summed in another
order."""


class Decoder:
    """Decoder that samples many sequences at once, a token of each per step. Not thread-safe."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._window = Window()
        self._slots: list[Any] = []
        self._mask = torch.zeros(0, 0, dtype=torch.bool, device=model.device)
        self._last = torch.zeros(0, dtype=torch.long, device=model.device)
        self.live: list[SampleRequest] = []
        """The unfinished sequences; sequence i has row i."""

    @torch.inference_mode()
    def add(self, requests: Sequence[SampleRequest]) -> None:
        """Read the prompts of requests and sample their first tokens; equal prompts are computed once."""
        prompt_rows = {prompt: number for number, prompt in enumerate(dict.fromkeys(map(_prompt, requests)))}
        ids, mask = _left_padded([prompt for _, prompt in prompt_rows], self._model.device)
        cache = open_cache(self._model.module.config)
        adapters = [adapter for adapter, _ in prompt_rows]
        logits = self._forward(adapters, ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), cache)
        which = torch.tensor([prompt_rows[_prompt(request)] for request in requests], device=logits.device)
        tokens = sample_next(logits[which], requests, self._model.decode)
        kept = [row for row, request in enumerate(requests) if request.reason is None]
        if kept:
            rows = torch.tensor(kept, device=logits.device)
            self._append([requests[row] for row in kept], cache, mask, which=which[rows], tokens=tokens[rows])

    @torch.inference_mode()
    def step(self) -> None:
        """Sample one more token of every sequence and remove the finished ones."""
        if not self.live:
            return
        window, rows = self._window, len(self.live)
        if window.end == self._mask.shape[1]:
            self._make_room(rows, 0)
        window.start = window.end - max(request.length - 1 for request in self.live)
        self._mask[:rows, window.end] = True
        mask = self._mask[:rows, window.start : window.end + 1]
        positions = torch.tensor([request.length - 1 for request in self.live], device=mask.device)
        for slots in self._slots:
            slots.open()
        adapters, cache = [request.adapter for request in self.live], Cache(layers=[*self._slots])
        logits = self._forward(adapters, self._last[:rows, None], mask, positions[:, None], cache)
        window.end += 1
        self._last[:rows] = sample_next(logits, self.live, self._model.decode)
        self._drop([row for row, request in enumerate(self.live) if request.reason is not None])

    @torch.inference_mode()
    def remove(self, requests: Sequence[SampleRequest]) -> None:
        """Remove sequences that their clients have cancelled."""
        cancelled = set(requests)
        self._drop([row for row, request in enumerate(self.live) if request in cancelled])

    def _forward(
        self,
        adapters: Sequence[LoraAdapter | None],
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: Cache,
    ) -> Tensor:
        with self._model.adapted(adapters) as module:
            output: Any = module(
                input_ids=ids,
                attention_mask=mask.long(),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return output.logits[:, -1, :]

    def _append(
        self, requests: Sequence[SampleRequest], cache: Cache, mask: Tensor, *, which: Tensor, tokens: Tensor
    ) -> None:
        """Copy rows `which` [B] of a prefilled cache and mask into the decoder's cache, and add their
        requests."""
        first_row, length = len(self.live), mask.shape[1]
        if not self._slots:
            self._slots = [slots_of(self._window, layer) for layer in cache.layers]
        self._make_room(first_row + len(requests), length)
        self.live += requests
        end, rows = self._window.end, slice(first_row, len(self.live))
        self._window.rows = len(self.live)
        self._mask[rows] = False
        self._mask[rows, end - length : end] = mask[which].bool()
        self._last[rows] = tokens
        for slots, layer in zip(self._slots, cache.layers, strict=True):
            for store, new_tensor in zip(slots.stores, cached_tensors(layer), strict=True):
                slots.part(store, rows, slice(end - length, end)).copy_(new_tensor[which])

    def _make_room(self, rows: int, columns: int) -> None:
        """Enlarge the cache tensors, if needed, to at least `rows` rows and `columns` columns, with a free
        column after them."""
        window, size = self._window, self._mask.shape
        if rows <= size[0] and columns <= window.end < size[1]:
            return
        used_rows = len(self.live)
        used_columns = max((request.length - 1 for request in self.live), default=0)
        width = max(used_columns, columns)
        shape = (rows if rows <= size[0] else max(rows, 2 * size[0]), width + _SPARE_COLUMNS)
        source, target = slice(window.end - used_columns, window.end), slice(width - used_columns, width)
        for slots in self._slots:
            for store_index, store in enumerate(slots.stores):
                slots.stores[store_index] = grown = slots.grown(store, *shape)
                slots.part(grown, slice(used_rows), target).copy_(slots.part(store, slice(used_rows), source))
        mask = self._mask.new_zeros(shape)
        mask[:used_rows, target] = self._mask[:used_rows, source]
        self._mask = mask
        last_tokens = self._last.new_zeros(shape[0])
        last_tokens[:used_rows] = self._last[:used_rows]
        self._last, window.end = last_tokens, width

    def _drop(self, rows: Sequence[int]) -> None:
        """Remove sequences at these rows from the cache; the last row moves into each gap."""
        if not rows:
            return
        window = self._window
        window.start = window.end - max(request.length - 1 for request in self.live)
        columns = slice(window.start, window.end)
        for row in sorted(rows, reverse=True):
            last_row = len(self.live) - 1
            if row != last_row:
                for slots in self._slots:
                    for store in slots.stores:
                        moved_row = slots.part(store, slice(last_row, last_row + 1), columns)
                        slots.part(store, slice(row, row + 1), columns).copy_(moved_row)
                self._mask[row], self._last[row] = self._mask[last_row], self._last[last_row]
                self.live[row] = self.live[last_row]
            self.live.pop()
        window.rows = len(self.live)


def check_decoding(model: LocalModel) -> None:
    """Check that tokens sampled in a batch have the log-probabilities of a pass over the whole sequence.

    This holds for models with attention alone. Other models keep states, which must not depend on the padding
    of shorter prompts.

    Raises:
        UsageError: The log-probabilities differ, or a layer caches something that this service does not know.
    """
    if all(isinstance(layer, DynamicLayer) for layer in open_cache(model.module.config).layers):
        return
    requests = [SampleRequest([number % 7 + 1 for number in range(length)], 3, 0.0) for length in (9, 4)]
    decoder = Decoder(model)
    decoder.add(requests)
    while decoder.live:
        decoder.step()
    worst = 0.0
    for request in requests:
        tokens, last_position = [*request.prompt, *request.tokens], len(request.prompt) - 1
        with torch.inference_mode(), model.adapted([None]) as module:
            logits = module(
                input_ids=torch.tensor([tokens[:-1]], device=model.device), use_cache=False
            ).logits
        scores = logits[0, last_position:].float().log_softmax(-1)
        expected = scores.gather(-1, torch.tensor(request.tokens, device=model.device).unsqueeze(-1)).squeeze(
            -1
        )
        worst = max(worst, float((expected.cpu() - torch.tensor(request.logprobs)).abs().max()))
    if not worst < (_TOLERANCE if model.dtype == torch.float32 else _ROUGH_TOLERANCE):
        raise UsageError(
            f"{model.module.config.model_type} cannot be sampled here: in a batch its log-probabilities are "
            f"off by {worst:.2g} nats, since it keeps states that this service does not carry over; serve it "
            "with vLLM or SGLang"
        )


def _prompt(request: SampleRequest) -> tuple[LoraAdapter | None, tuple[int, ...]]:
    return request.adapter, tuple(request.prompt)


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids and mask [B, T] with the prompts right-aligned."""
    ids = [torch.tensor(prompt) for prompt in prompts]
    masks = [torch.ones_like(row) for row in ids]
    tensors = [pad_sequence(rows, batch_first=True, padding_side="left").to(device) for rows in (ids, masks)]
    return tensors[0], tensors[1]
