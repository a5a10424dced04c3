"""Loss functions of the Tinker API: from log-probabilities and loss inputs of datums to a scalar.

Each is a sum over tokens. T counts the tokens of all datums, concatenated; p is the policy in training, q the
policy that sampled, r = p / q.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Config = Mapping[str, float | Tensor]
"""Settings of a loss by name: a number, or [T] with a value for each token."""

_THRESHOLDS = ("clip_low_threshold", "clip_high_threshold")


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probabilities of the tokens of some datums, and their loss inputs: the arguments of a loss."""

    logprobs: Tensor
    """Log-probability of each token, [T], differentiable."""
    inputs: Mapping[str, Tensor]
    """Loss inputs by name, each [T]."""
    lengths: Sequence[int]
    """Number of tokens of each datum."""

    @property
    def ratio(self) -> Tensor:
        """Probability ratio p / q of each token, [T]: current policy to sampling policy."""
        return torch.exp(self.logprobs - self.inputs["logprobs"])


@dataclass(frozen=True, slots=True)
class LossFunction:
    """A loss function with the names of its inputs and the defaults of its settings."""

    compute: Callable[[TokenScores, Config], Tensor]
    """Function of the scores and the complete settings that returns the loss."""
    needs: tuple[str, ...]
    """Names of the loss inputs that every datum must have."""
    settings: Mapping[str, float]
    """Settings with their defaults."""
    by_token: tuple[str, ...] = ()
    """Settings that a datum may give for each of its tokens."""
    many_targets: bool = False
    """True if a datum may have K targets at each token."""


def _cross_entropy(scored: TokenScores, config: Config) -> Tensor:
    """Return -Σ weight · log p."""
    return -(scored.inputs["weights"] * scored.logprobs).sum()


def _importance_sampling(scored: TokenScores, config: Config) -> Tensor:
    """Return -Σ r · advantage."""
    return -(scored.ratio * scored.inputs["advantages"]).sum()


def _ppo(scored: TokenScores, config: Config) -> Tensor:
    """Return -Σ min(r · advantage, clip(r) · advantage). Schulman et al., arXiv:1707.06347, eq. 7."""
    return _clipped(scored.ratio, scored.inputs["advantages"], config)


def _clipped(ratio: Tensor, advantages: Tensor, config: Config) -> Tensor:
    return -torch.minimum(ratio * advantages, _clip(ratio, config) * advantages).sum()


def _clip(ratio: Tensor, config: Config) -> Tensor:
    low, high = (torch.as_tensor(config[key], dtype=ratio.dtype, device=ratio.device) for key in _THRESHOLDS)
    return ratio.clamp(low, high)


def _cispo(scored: TokenScores, config: Config) -> Tensor:
    """Return -Σ sg(clip(r)) · advantage · log p, sg stopping gradients. MiniMax, arXiv:2506.13585, eq. 4."""
    weights = _clip(scored.ratio, config).detach()
    return -(weights * scored.inputs["advantages"] * scored.logprobs).sum()


def _dro(scored: TokenScores, config: Config) -> Tensor:
    """Return -Σ (log p · advantage - β/2 · (log r)²). Richemond et al., arXiv:2405.19107."""
    log_ratio = scored.logprobs - scored.inputs["logprobs"]
    return -(scored.logprobs * scored.inputs["advantages"] - 0.5 * config["beta"] * log_ratio**2).sum()


def _gspo(scored: TokenScores, config: Config) -> Tensor:
    """Return PPO's loss with the ratio of the whole sequence: r's geometric mean over the masked-in tokens.

    Gradients flow through each token's own log p (GSPO-token). Zheng et al., arXiv:2507.18071, eq. 14.
    """
    token_mask = (scored.inputs["sequence_ratio_mask"] != 0).float()
    log_ratio = (scored.logprobs.detach() - scored.inputs["logprobs"]) * token_mask
    lengths = torch.tensor(scored.lengths, device=log_ratio.device)
    datum = torch.arange(len(lengths), device=log_ratio.device).repeat_interleave(lengths)
    sums = log_ratio.new_zeros(2, len(lengths)).index_add(1, datum, torch.stack([log_ratio, token_mask]))
    mean_log_ratio = (sums[0] / sums[1])[datum]
    ratio = torch.exp(mean_log_ratio + scored.logprobs - scored.logprobs.detach())
    return _clipped(ratio, scored.inputs["advantages"], config)


_SAMPLED = ("target_tokens", "logprobs", "advantages")

LOSSES: dict[str, LossFunction] = {
    "cross_entropy": LossFunction(_cross_entropy, ("target_tokens", "weights"), {}, many_targets=True),
    "importance_sampling": LossFunction(_importance_sampling, _SAMPLED, {}),
    "ppo": LossFunction(_ppo, _SAMPLED, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, _THRESHOLDS),
    # No lower bound, as in the paper; the upper one is in the range that Khatri et al., arXiv:2510.13786,
    # found good.
    "cispo": LossFunction(
        _cispo, _SAMPLED, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}, _THRESHOLDS
    ),
    "dro": LossFunction(_dro, _SAMPLED, {"beta": 0.05}),
    # Thresholds of the paper, section 5.1.
    "gspo": LossFunction(
        _gspo,
        (*_SAMPLED, "sequence_ratio_mask"),
        {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
        _THRESHOLDS,
    ),
}
