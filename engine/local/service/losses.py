"""The losses that the service trains with, as the Tinker API defines them: sums over tokens.

In: the log-probabilities of some datums under the policy being trained, and their loss inputs. Out: the loss
as a scalar. A smaller loss is better. T counts the tokens of all of them, one datum after the other.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Config = Mapping[str, float | Tensor]
"""Each a number or, where tokens have their own, [T]."""


_THRESHOLDS = ("clip_low_threshold", "clip_high_threshold")


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The tokens of some datums under the policy being trained."""

    logprobs: Tensor
    """[T]; differentiable."""
    inputs: Mapping[str, Tensor]
    """Each [T]."""
    lengths: Sequence[int]
    """How many of the tokens are each datum's."""

    @property
    def ratio(self) -> Tensor:
        """p / q [T], with q the policy that sampled."""
        return torch.exp(self.logprobs - self.inputs["logprobs"])


@dataclass(frozen=True, slots=True)
class LossFunction:
    """A loss, what it reads, and what may be set."""

    compute: Callable[[TokenScores, Config], Tensor]
    """The loss, with all of its settings given."""
    needs: tuple[str, ...]
    """The loss inputs that it reads."""
    settings: Mapping[str, float]
    """The settings that it takes, with what they are where a client gives none."""
    by_token: tuple[str, ...] = ()
    """Those of them that a datum may give for each of its tokens."""
    many_targets: bool = False
    """Whether there may be K targets at each token."""


def _cross_entropy(scored: TokenScores, config: Config) -> Tensor:
    """-Σ weight · logp."""
    return -(scored.inputs["weights"] * scored.logprobs).sum()


def _importance_sampling(scored: TokenScores, config: Config) -> Tensor:
    """-Σ r · advantage."""
    return -(scored.ratio * scored.inputs["advantages"]).sum()


def _ppo(scored: TokenScores, config: Config) -> Tensor:
    """-Σ min(r · advantage, clip(r) · advantage). Schulman et al., 1707.06347."""
    return _clipped(scored.ratio, scored.inputs["advantages"], config)


def _clipped(ratio: Tensor, advantages: Tensor, config: Config) -> Tensor:
    return -torch.minimum(ratio * advantages, _clip(ratio, config) * advantages).sum()


def _clip(ratio: Tensor, config: Config) -> Tensor:
    low, high = (torch.as_tensor(config[key], dtype=ratio.dtype, device=ratio.device) for key in _THRESHOLDS)
    return ratio.clamp(low, high)


def _cispo(scored: TokenScores, config: Config) -> Tensor:
    """-Σ clip(r) · advantage · logp, with no gradient through clip(r). MiniMax, 2506.13585, eq. 4."""
    weights = _clip(scored.ratio, config).detach()
    return -(weights * scored.inputs["advantages"] * scored.logprobs).sum()


def _dro(scored: TokenScores, config: Config) -> Tensor:
    """-Σ (logp · advantage - β/2 · (log r)²). Richemond et al., 2405.19107."""
    drift = scored.logprobs - scored.inputs["logprobs"]
    return -(scored.logprobs * scored.inputs["advantages"] - 0.5 * config["beta"] * drift**2).sum()


def _gspo(scored: TokenScores, config: Config) -> Tensor:
    """PPO's loss with each token's r its sequence's: the geometric mean over the tokens in the mask.

    The gradient is that of the token's own logp (GSPO-token). Zheng et al., 2507.18071, eq. 14.
    """
    counted = (scored.inputs["sequence_ratio_mask"] != 0).float()
    drift = (scored.logprobs.detach() - scored.inputs["logprobs"]) * counted
    lengths = torch.tensor(scored.lengths, device=drift.device)
    of = torch.arange(len(lengths), device=drift.device).repeat_interleave(lengths)
    sums = drift.new_zeros(2, len(lengths)).index_add(1, of, torch.stack([drift, counted]))
    sequence = (sums[0] / sums[1])[of]
    ratio = torch.exp(sequence + scored.logprobs - scored.logprobs.detach())
    return _clipped(ratio, scored.inputs["advantages"], config)


_SAMPLED = ("target_tokens", "logprobs", "advantages")

LOSSES: dict[str, LossFunction] = {
    "cross_entropy": LossFunction(_cross_entropy, ("target_tokens", "weights"), {}, many_targets=True),
    "importance_sampling": LossFunction(_importance_sampling, _SAMPLED, {}),
    "ppo": LossFunction(_ppo, _SAMPLED, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, _THRESHOLDS),
    # No lower bound, as in the paper; the upper one is of those that Khatri et al., 2510.13786, found good.
    "cispo": LossFunction(
        _cispo, _SAMPLED, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}, _THRESHOLDS
    ),
    "dro": LossFunction(_dro, _SAMPLED, {"beta": 0.05}),
    # The paper's, section 5.1.
    "gspo": LossFunction(
        _gspo,
        (*_SAMPLED, "sequence_ratio_mask"),
        {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
        _THRESHOLDS,
    ),
}
