"""Batched decoding of sequences, each with its own adapter; sequences can join and leave at every step.

Keys and values are kept in slots: a row for each sequence, right-aligned at the newest token, so that a step
appends one column for all. A new sequence takes the next free row; when one leaves, the last row moves into
its place. Nothing else is copied, while a cache that grows by concatenation is copied whole at every step.

Axes: B sequences, H heads, T columns, D a head's width.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from rolegraph.local.service.local_model import LocalModel, LoraAdapter
from rolegraph.local.service.sampling import SampleRequest, sample_next

_SPARE_COLUMNS = 64
"""Number of steps for which columns are allocated at a time."""


@dataclass(slots=True)
class _Window:
    """Region of the cache tensors in use: rows [0, rows), columns [start, end)."""

    rows: int = 0
    start: int = 0
    end: int = 0


class _CacheSlots(DynamicLayer):
    """Key-value cache [B, H, T, D] of one layer, with spare rows and columns so that it rarely grows."""

    def __init__(self, window: _Window, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.is_initialized = True
        self._window = window
        self.stores = (keys, values)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one new column and return all columns in use, the new one included."""
        window, in_use = self._window, list[Tensor]()
        for store, new in zip(self.stores, (key_states, value_states), strict=True):
            store[: window.rows, :, window.end : window.end + 1] = new
            in_use.append(store[: window.rows, :, window.start : window.end + 1])
        return in_use[0], in_use[1]

    def get_seq_length(self) -> int:
        """Return the number of columns in use."""
        return self._window.end - self._window.start


class Decoder:
    """Decoder that samples many sequences at once, a token of each per step. Not thread-safe."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._window = _Window()
        self._slots: list[_CacheSlots] = []
        self._mask = torch.zeros(0, 0, dtype=torch.bool, device=model.device)
        self._last = torch.zeros(0, dtype=torch.long, device=model.device)
        self.live: list[SampleRequest] = []
        """The unfinished sequences; sequence i has row i."""

    @torch.inference_mode()
    def add(self, requests: Sequence[SampleRequest]) -> None:
        """Prefill the prompts and sample the first token of each request. Equal prompts are computed once."""
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(map(_prompt, requests)))}
        ids, mask = _left_padded([prompt for _, prompt in numbers], self._model.device)
        cache, adapters = DynamicCache(), [adapter for adapter, _ in numbers]
        logits = self._forward(adapters, ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), cache)
        which = torch.tensor([numbers[_prompt(request)] for request in requests], device=logits.device)
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
        ages = torch.tensor([request.length - 1 for request in self.live], device=mask.device)
        adapters, cache = [request.adapter for request in self.live], Cache(layers=[*self._slots])
        logits = self._forward(adapters, self._last[:rows, None], mask, ages[:, None], cache)
        window.end += 1
        self._last[:rows] = sample_next(logits, self.live, self._model.decode)
        self._drop([row for row, request in enumerate(self.live) if request.reason is not None])

    @torch.inference_mode()
    def remove(self, requests: Sequence[SampleRequest]) -> None:
        """Remove sequences whose clients have cancelled them."""
        unwanted = set(requests)
        self._drop([row for row, request in enumerate(self.live) if request in unwanted])

    def _forward(
        self,
        adapters: Sequence[LoraAdapter | None],
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: Cache,
    ) -> Tensor:
        with self._model.adapted(adapters) as module:
            out: Any = module(
                input_ids=ids,
                attention_mask=mask.long(),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return out.logits[:, -1, :]

    def _append(
        self, requests: Sequence[SampleRequest], cache: Cache, mask: Tensor, *, which: Tensor, tokens: Tensor
    ) -> None:
        """Copy rows `which` [B] of a prefilled cache and mask into the decoder's cache, and add their
        requests."""
        first, length = len(self.live), mask.shape[1]
        layers: list[tuple[Tensor, Tensor]] = [
            (layer.keys, layer.values) for layer in cast("Any", cache.layers)
        ]
        if not self._slots:
            self._slots = [_CacheSlots(self._window, *(new[:0, :, :0] for new in layer)) for layer in layers]
        self._make_room(first + len(requests), length)
        self.live += requests
        end, rows = self._window.end, slice(first, len(self.live))
        self._window.rows = len(self.live)
        self._mask[rows] = False
        self._mask[rows, end - length : end] = mask[which].bool()
        self._last[rows] = tokens
        for slots, layer in zip(self._slots, layers, strict=True):
            for store, new in zip(slots.stores, layer, strict=True):
                store[rows, :, end - length : end] = new[which]

    def _make_room(self, rows: int, columns: int) -> None:
        """Enlarge the cache tensors, if needed, to `rows` rows and `columns` columns plus a free column."""
        window, size = self._window, self._mask.shape
        if rows <= size[0] and columns <= window.end < size[1]:
            return
        used = len(self.live)
        old = max((request.length - 1 for request in self.live), default=0)
        width = max(old, columns)
        shape = (rows if rows <= size[0] else max(rows, 2 * size[0]), width + _SPARE_COLUMNS)
        source, target = slice(window.end - old, window.end), slice(width - old, width)

        def moved(store: Tensor) -> Tensor:
            grown = store.new_zeros(shape[0], *store.shape[1:-2], shape[1], store.shape[-1])
            grown[:used, ..., target, :] = store[:used, ..., source, :]
            return grown

        for slots in self._slots:
            slots.stores = (moved(slots.stores[0]), moved(slots.stores[1]))
        self._mask = moved(self._mask.unsqueeze(-1)).squeeze(-1)
        last = self._last.new_zeros(shape[0])
        last[:used] = self._last[:used]
        self._last, window.end = last, width

    def _drop(self, rows: Sequence[int]) -> None:
        """Remove sequences at these rows from the cache; the last row moves into each gap."""
        if not rows:
            return
        window = self._window
        window.start = window.end - max(request.length - 1 for request in self.live)
        for row in sorted(rows, reverse=True):
            last = len(self.live) - 1
            if row != last:
                for slots in self._slots:
                    for store in slots.stores:
                        store[row, :, window.start : window.end] = store[last, :, window.start : window.end]
                self._mask[row], self._last[row] = self._mask[last], self._last[last]
                self.live[row] = self.live[last]
            self.live.pop()
        window.rows = len(self.live)


def _prompt(request: SampleRequest) -> tuple[LoraAdapter | None, tuple[int, ...]]:
    return request.adapter, tuple(request.prompt)


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids and mask [B, T] with the prompts right-aligned."""
    ids = [torch.tensor(prompt) for prompt in prompts]
    masks = [torch.ones_like(row) for row in ids]
    padded = [pad_sequence(rows, batch_first=True, padding_side="left").to(device) for rows in (ids, masks)]
    return padded[0], padded[1]
