"""Requests to train, in the protobuf of the service."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def forward_backward(rng: random.Random) -> bytes:
    """Make a request to train; most of its tensors fit one another."""
    from rolegraph.local.service.wire import public

    loss = rng.choice(["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "x"])
    asked = public.ForwardBackwardRequest(model_id="$model", seq_id=rng.randrange(9), loss_fn=loss)
    asked.forward_only = rng.random() < 0.3
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        length = rng.choice([1, 2, 3, 3, 3, 0, 100])
        datum = asked.data.add()
        datum.model_input.add().encoded_text.tokens = _array(rng, [5] * length, np.int32)
        names = ["target_tokens", *rng.sample(["weights", "logprobs", "advantages", "mask", "x"], 2)]
        for name in names:
            size = length if rng.random() < 0.9 else rng.randrange(9)
            whole = name == "target_tokens"
            tensor = datum.loss_fn_inputs[name]
            tensor.dtype = public.DTYPE_INT64 if whole else public.DTYPE_FLOAT32
            if rng.random() < 0.05:
                tensor.dtype = rng.choice([0, 1, 2, 3, 9])
            tensor.dense = _array(rng, [6 if whole else -0.5] * size, np.int64 if whole else np.float32)
            tensor.shape.extend(
                rng.choice([[size]] * 9 + [[], [-1], [0], [size, 1], [1, size], [2**40], [2**62, 4]])
            )
            if rng.random() < 0.1:
                sparse = tensor.sparse_csr
                sparse.values = _array(rng, [1] * 2, np.int64 if whole else np.float32)
                sparse.crow_indices, sparse.col_indices = (_array(rng, [0, 1], np.int64) for _ in range(2))
    if rng.random() < 0.1:
        asked.loss_fn_config[rng.choice(["epsilon", "clip_low_threshold", "x"])] = rng.choice(
            [0.2, float("nan"), 1e300]
        )
    return asked.SerializeToString()


def training_request(model: str = "$model") -> Any:
    """Make a request to train a model on one datum of two tokens."""
    from rolegraph.local.service.wire import public

    asked = public.ForwardBackwardRequest(model_id=model, seq_id=1, loss_fn="cross_entropy")
    one = asked.data.add()
    one.model_input.add().encoded_text.tokens = np.asarray([5, 80], np.int32).tobytes()
    for name, values in (("target_tokens", np.asarray([80, 90])), ("weights", np.ones(2, np.float32))):
        tensor = one.loss_fn_inputs[name]
        tensor.dense, tensor.dtype = values.tobytes(), public.DTYPE_INT64
        tensor.shape.append(2)
    one.loss_fn_inputs["weights"].dtype = public.DTYPE_FLOAT32
    return asked


def _array(rng: random.Random, values: list[Any], dtype: Any) -> bytes:
    array = np.asarray(values, dtype)
    if len(array) and rng.random() < 0.1:
        odd = [0, -1, 2**31 - 1, 77] if array.dtype.kind == "i" else [np.nan, np.inf, -np.inf, 1e38, 0.0]
        array[rng.randrange(len(array))] = rng.choice(odd)
    return array.tobytes()
