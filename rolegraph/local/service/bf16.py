"""Speed of bfloat16 on this machine's CPU. A processor without AMX and AVX512-BF16 emulates it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import linear

_ROWS: Mapping[str, int] = {"sampled": 32, "trained": 1024}
"""Number of rows of activations in a layer's pass: sequences in sampling, tokens in training."""
_WIDTH = 1024
"""Width of the measured layer's input and output."""
_REPETITIONS = 5


def relative_speeds() -> Mapping[str, float]:
    """Return the speed of a linear layer in bfloat16 relative to float32, for `sampled` and `trained`.

    The passes of both types alternate, and the fastest of each counts, since other programs slow some of them
    down.
    """
    weight = torch.rand(_WIDTH, _WIDTH)
    weights = [weight, weight.bfloat16()]
    speeds: dict[str, float] = {}
    for name, rows in _ROWS.items():
        inputs = [torch.rand(rows, _WIDTH, dtype=weight.dtype) for weight in weights]
        seconds = [
            [_pass_seconds(x, weight) for x, weight in zip(inputs, weights, strict=True)]
            for _ in range(_REPETITIONS)
        ]
        float32, bfloat16 = map(min, zip(*seconds, strict=True))
        speeds[name] = float32 / bfloat16
    return speeds


def _pass_seconds(x: Tensor, weight: Tensor) -> float:
    start = time.perf_counter()
    with torch.inference_mode():
        linear(x, weight)
    return time.perf_counter() - start
