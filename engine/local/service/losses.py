"""The losses that the service trains with, as the Tinker API defines them: sums over tokens.

In: log-probabilities under the policy being trained, [T], and a datum's loss inputs, each [T]. Out: the loss
as a scalar, and what is reported per token. A smaller loss is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]
Loss = Callable[[Tensor, Inputs, Config], Tensor]

NEEDS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("target_tokens", "weights"),
    "importance_sampling": ("target_tokens", "logprobs", "advantages"),
    "ppo": ("target_tokens", "logprobs", "advantages"),
}
"""The loss inputs that each loss reads."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "cross_entropy": (),
    "importance_sampling": (),
    "ppo": ("clip_low_threshold", "clip_high_threshold"),
}
"""The settings that each loss takes."""


def cross_entropy(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-Σ weight · logp."""
    return -(inputs["weights"] * logprobs).sum()


def importance_sampling(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-Σ (p / q) · advantage, with q the policy that sampled."""
    return -(torch.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]).sum()


def ppo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-Σ min(r · advantage, clip(r) · advantage), r = p / q, clipped to [0.8, 1.2] unless told otherwise.

    Schulman et al., 1707.06347.
    """
    ratio = torch.exp(logprobs - inputs["logprobs"])
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages).sum()


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
}
