"""Caches of the sequences that a model samples: a row of each layer's tensors for each, with room to grow.

A layer with attention keeps the keys and values of all tokens, one with a sliding window too: the mask hides
the old ones. A layer with linear attention or a convolution keeps a state of fixed size for each sequence.

Axes: B sequences, H heads, T columns, D a head's width.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from transformers import DynamicCache, cache_utils
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from rolegraph.engine.errors import UsageError

HAS_STATES = hasattr(cache_utils, "DummyLayer")
"""False for versions of transformers, such as rLLM's 5.5.4, that keep the states of hybrids otherwise."""
DummyLayer: Any = getattr(cache_utils, "DummyLayer", object)
KINDS = (DynamicLayer, DynamicSlidingWindowLayer, *((LinearAttentionLayer, DummyLayer) if HAS_STATES else ()))
"""Kinds of layers from which the service samples."""


@dataclass(slots=True)
class Window:
    """Region of the cache tensors in use: rows [0, rows), columns [start, end)."""

    rows: int = 0
    start: int = 0
    end: int = 0


def open_cache(config: Any) -> Cache:
    """Return an empty cache for the prompts of a batch.

    Args:
        config: The model's config.

    Raises:
        UsageError: A layer of the model caches something other than keys, values or a state.
    """
    layers: list[Any] = []
    for layer in DynamicCache(config=config).layers:
        if type(layer) not in KINDS:
            raise UsageError(
                f"a layer of the model keeps a cache of the kind {type(layer).__name__}, from which this "
                "service does not sample; serve it with vLLM or SGLang"
            )
        layers.append(DynamicLayer() if isinstance(layer, DynamicSlidingWindowLayer) else layer)
    return Cache(layers=layers)


def cached_tensors(layer: Any) -> list[Tensor]:
    """Return the tensors that a layer of a cache holds, each with a row for each sequence."""
    if isinstance(layer, LinearAttentionLayer):
        states: list[Tensor | None] = [*layer.conv_states.values(), *layer.recurrent_states.values()]
        return [state for state in states if state is not None]
    return [cast("Any", layer).keys, cast("Any", layer).values] if isinstance(layer, DynamicLayer) else []


def slots_of(window: Window, layer: Any) -> AttentionSlots | StateSlots | NoSlots:
    """Return the slots for a layer of a filled cache; they have no rows yet."""
    if isinstance(layer, LinearAttentionLayer):
        return StateSlots(window, layer)
    return AttentionSlots(window, layer) if isinstance(layer, DynamicLayer) else NoSlots()


class AttentionSlots(DynamicLayer):
    """Keys and values [B, H, T, D] of one layer, with spare rows and columns so that they rarely grow."""

    def __init__(self, window: Window, layer: DynamicLayer) -> None:
        super().__init__()
        self.is_initialized = True
        self._window = window
        self.stores = [self.part(store, slice(0), slice(0)) for store in cached_tensors(layer)]

    def part(self, store: Tensor, rows: slice, columns: slice) -> Tensor:
        """Return a view of some rows and columns of a store."""
        return store[rows, :, columns]

    def grown(self, store: Tensor, rows: int, columns: int) -> Tensor:
        """Return a new store of zeros with the given numbers of rows and columns."""
        return store.new_zeros(rows, store.shape[1], columns, store.shape[3])

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the newest column of keys and values into the slots; return all columns in use, this one
        included."""
        window, columns_in_use = self._window, list[Tensor]()
        for store, new_column in zip(self.stores, (key_states, value_states), strict=True):
            store[: window.rows, :, window.end : window.end + 1] = new_column
            columns_in_use.append(store[: window.rows, :, window.start : window.end + 1])
        return columns_in_use[0], columns_in_use[1]

    def get_seq_length(self) -> int:
        """Return the number of columns in use."""
        return self._window.end - self._window.start

    def open(self) -> None:
        """Do nothing: slots for keys and values need no preparation for a step."""


class StateSlots(LinearAttentionLayer):
    """States [B, ...] of one layer with linear attention or a convolution, with spare rows."""

    def __init__(self, window: Window, layer: LinearAttentionLayer) -> None:
        super().__init__(layer.number_of_states)
        self._window = window
        self.conv_kernel_size = {**layer.conv_kernel_size}
        self.is_conv_states_initialized = {**layer.is_conv_states_initialized}
        self.is_recurrent_states_initialized = {**layer.is_recurrent_states_initialized}
        self.has_previous_state = {**layer.has_previous_state}
        self.device, self.dtype = layer.device, layer.dtype
        self.stores = [store[:0] for store in cached_tensors(layer)]

    def part(self, store: Tensor, rows: slice, columns: slice) -> Tensor:
        """Return a view of some rows of a store, which has no columns."""
        return store[rows]

    def grown(self, store: Tensor, rows: int, columns: int) -> Tensor:
        """Return a new store of zeros with the given number of rows."""
        return store.new_zeros(rows, *store.shape[1:])

    def open(self) -> None:
        """Prepare the slots for a step, which changes the states in use in place."""
        stores = iter(self.stores)
        for states, initialized in (
            (self.conv_states, self.is_conv_states_initialized),
            (self.recurrent_states, self.is_recurrent_states_initialized),
        ):
            states.update(
                {index: next(stores)[: self._window.rows] for index, is_set in initialized.items() if is_set}
            )


class NoSlots(DummyLayer):
    """Empty slots, for a layer that caches nothing."""

    stores: Sequence[Tensor] = ()

    def open(self) -> None:
        """Do nothing, since there are no slots to prepare."""
