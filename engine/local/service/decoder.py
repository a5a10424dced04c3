"""Sequences of one set of weights, drawn side by side, a token a step; they join and leave at any step.

Keys and values lie in slots: a row a sequence, all aligned at their newest token, so that one step appends
one column for everybody. A sequence that joins fills the next free row; when one leaves, the last row moves
into its place. Nothing else is copied, where a cache that grows by concatenation is copied whole every step.

Axes: B sequences, H heads, T columns, D a head's width.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from rolegraph.engine.local.service.policy import LocalModel
from rolegraph.engine.local.service.sampling import SampleRequest, sample_next

_SPARE_COLUMNS = 64
"""Room for this many steps is made at a time."""


@dataclass(slots=True)
class _Window:
    """The part of the slots that is in use: rows [0, rows), columns [start, end)."""

    rows: int = 0
    start: int = 0
    end: int = 0


class _Slots(DynamicLayer):
    """One layer's keys and values [B, H, T, D], with room for more rows and columns than are in use."""

    def __init__(self, window: _Window, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.is_initialized = True
        self._window = window
        self.stores = (keys, values)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one new column; returns all columns in use, the new one included."""
        window, in_use = self._window, list[Tensor]()
        for store, new in zip(self.stores, (key_states, value_states), strict=True):
            store[: window.rows, :, window.end : window.end + 1] = new
            in_use.append(store[: window.rows, :, window.start : window.end + 1])
        return in_use[0], in_use[1]

    def get_seq_length(self) -> int:
        """Columns in use."""
        return self._window.end - self._window.start


class Decoder:
    """Draws from a policy's adapter (None: the model itself). Not for use from several threads."""

    def __init__(self, policy: LocalModel, adapter: str | None) -> None:
        self._policy, self._adapter = policy, adapter
        self._window = _Window()
        self._cache = Cache(layers=[])
        self._mask = torch.zeros(0, 0, dtype=torch.bool, device=policy.device)
        self._last = torch.zeros(0, dtype=torch.long, device=policy.device)
        self.live: list[SampleRequest] = []
        """The sequences still being drawn; sequence i has row i."""

    @torch.inference_mode()
    def add(self, requests: Sequence[SampleRequest]) -> None:
        """Read the prompts and draw the first token of each. Equal prompts are read once."""
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(map(_prompt, requests)))}
        ids, mask = _left_padded(list(numbers), self._policy.device)
        cache = DynamicCache()
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), cache)
        which = torch.tensor([numbers[_prompt(request)] for request in requests], device=logits.device)
        tokens = sample_next(logits[which], requests, self._policy.decode)
        kept = [row for row, request in enumerate(requests) if request.reason is None]
        if kept:
            rows = torch.tensor(kept, device=logits.device)
            self._append([requests[row] for row in kept], cache, mask, which=which[rows], tokens=tokens[rows])

    @torch.inference_mode()
    def step(self) -> None:
        """Draw one more token of every sequence; those that end leave."""
        if not self.live:
            return
        window, rows = self._window, len(self.live)
        if window.end == self._mask.shape[1]:
            self._make_room(rows, 0)
        window.start = window.end - max(request.length - 1 for request in self.live)
        self._mask[:rows, window.end] = True
        mask = self._mask[:rows, window.start : window.end + 1]
        ages = torch.tensor([request.length - 1 for request in self.live], device=mask.device)
        logits = self._forward(self._last[:rows, None], mask, ages[:, None], self._cache)
        window.end += 1
        self._last[:rows] = sample_next(logits, self.live, self._policy.decode)
        self._drop([row for row, request in enumerate(self.live) if request.reason is not None])

    @torch.inference_mode()
    def remove(self, requests: Sequence[SampleRequest]) -> None:
        """Stop drawing sequences that nobody wants any more."""
        unwanted = set(requests)
        self._drop([row for row, request in enumerate(self.live) if request in unwanted])

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        out: Any = self._policy.model(self._adapter)(
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
        """Give requests the next rows, from row `which` [B] of a cache whose prompts `mask` tells."""
        first, length = len(self.live), mask.shape[1]
        if not self._cache.layers:
            self._cache = Cache(layers=[_Slots(self._window, *_empty(layer)) for layer in cache.layers])
        self._make_room(first + len(requests), length)
        self.live += requests
        end, rows = self._window.end, slice(first, len(self.live))
        self._window.rows = len(self.live)
        self._mask[rows] = False
        self._mask[rows, end - length : end] = mask[which].bool()
        self._last[rows] = tokens
        for slots, layer in zip(self._cache.layers, cache.layers, strict=True):
            for store, new in zip(_stores(slots), _filled(layer), strict=True):
                store[rows, :, end - length : end] = new[which]

    def _make_room(self, rows: int, columns: int) -> None:
        """See that there are `rows` rows, `columns` columns before the end, and one after it."""
        window, have = self._window, self._mask.shape
        if rows <= have[0] and columns <= window.end < have[1]:
            return
        used = len(self.live)
        old = max((request.length - 1 for request in self.live), default=0)
        width = max(old, columns)
        shape = (rows if rows <= have[0] else max(rows, 2 * have[0]), width + _SPARE_COLUMNS)
        source, target = slice(window.end - old, window.end), slice(width - old, width)

        def moved(store: Tensor) -> Tensor:
            grown = store.new_zeros(shape[0], *store.shape[1:-2], shape[1], store.shape[-1])
            grown[:used, ..., target, :] = store[:used, ..., source, :]
            return grown

        for slots in self._cache.layers:
            assert isinstance(slots, _Slots)
            slots.stores = (moved(slots.stores[0]), moved(slots.stores[1]))
        self._mask = moved(self._mask.unsqueeze(-1)).squeeze(-1)
        last = self._last.new_zeros(shape[0])
        last[:used] = self._last[:used]
        self._last, window.end = last, width

    def _drop(self, rows: Sequence[int]) -> None:
        """Free rows, the last first, filling each from the end."""
        if not rows:
            return
        window = self._window
        window.start = window.end - max(request.length - 1 for request in self.live)
        for row in sorted(rows, reverse=True):
            last = len(self.live) - 1
            if row != last:
                for slots in self._cache.layers:
                    for store in _stores(slots):
                        store[row, :, window.start : window.end] = store[last, :, window.start : window.end]
                self._mask[row], self._last[row] = self._mask[last], self._last[last]
                self.live[row] = self.live[last]
            self.live.pop()
        window.rows = len(self.live)


def _prompt(request: SampleRequest) -> tuple[int, ...]:
    return tuple(request.prompt)


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask [B, T], every prompt at the right."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _filled(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.keys, layer.values


def _empty(layer: Any) -> tuple[Tensor, Tensor]:
    """No rows and no columns, of a layer's kind."""
    return layer.keys[:0, :, :0], layer.values[:0, :, :0]


def _stores(slots: Any) -> tuple[Tensor, Tensor]:
    return slots.stores
