"""Losses that a role may name: those of the Tinker API, and two that compare the best and worst of a group.

The API's `dro` is missing: its penalty counts every token of a sequence, and the prompt's tokens were not
sampled. p is the policy in training, q the weights that sampled, r = p / q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rolegraph.engine.vocabulary import Loss, LossSequence

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

Threshold = Annotated[float, Field(ge=0.0, le=1e6)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Reference = Literal["base", "sampled"]


def importance_sampling() -> Loss:
    """Minimize -Σ r · advantage over the sampled tokens."""
    return Loss("importance_sampling")


def ppo(*, clip_low_threshold: Threshold = 0.8, clip_high_threshold: Threshold = 1.2) -> Loss:
    """Minimize -Σ min(r · advantage, clip(r) · advantage) (Schulman et al., 1707.06347).

    clip_low_threshold: lower bound of r
    clip_high_threshold: upper bound of r
    """
    return _clipped("ppo", clip_low_threshold, clip_high_threshold)


def cispo(*, clip_low_threshold: Threshold = 0.0, clip_high_threshold: Threshold = 4.0) -> Loss:
    """Minimize -Σ clip(r) · advantage · log p, without a gradient of r (MiniMax, 2506.13585).

    clip_low_threshold: lower bound of r
    clip_high_threshold: upper bound of r
    """
    return _clipped("cispo", clip_low_threshold, clip_high_threshold)


def gspo(*, clip_low_threshold: Threshold = 1 - 3e-4, clip_high_threshold: Threshold = 1 + 4e-4) -> Loss:
    """Minimize the loss of ppo with the ratio of the whole sequence (Zheng et al., 2507.18071).

    clip_low_threshold: lower bound of the ratio
    clip_high_threshold: upper bound of the ratio
    """
    return _clipped("gspo", clip_low_threshold, clip_high_threshold)


def cross_entropy() -> Loss:
    """Minimize -Σ advantage · log p, also of turns that the role did not sample."""
    return Loss("cross_entropy")


def _clipped(name: str, low: float, high: float) -> Loss:
    if low > high:
        raise ValueError(f"clip_low_threshold of {low:g}, expected at most clip_high_threshold, {high:g}")
    return Loss(name, {"clip_low_threshold": low, "clip_high_threshold": high})


def dpo(*, beta: Positive = 0.1, reference: Reference = "base") -> Loss:
    """Prefer the best of each group to the worst: -log σ(beta · h) (Rafailov et al., 2305.18290).

    h is the gap between the two of Σ (log p - log p of the reference) over the tokens of a trajectory. The
    loss is the mean over the groups whose rewards differ.

    beta: strength of the pull to the reference; a smaller one moves further away
    reference: base, the weights that the training began with, or sampled, those that sampled
    """

    def loss(gap: Tensor) -> Tensor:
        # -log σ(x) = log(1 + e^-x); logaddexp has no overflow, and its gradient at 0 is right.
        return gap.new_zeros(()).logaddexp(-beta * gap)

    return Loss("dpo", compute=_over_pairs(loss), reads_start=reference == "base")


def ipo(*, beta: Positive = 0.1, reference: Reference = "base") -> Loss:
    """Prefer the best of each group to the worst by a set gap: (h - 1 / (2 · beta))².

    h is the gap of `dpo`. Its target keeps the policy near the reference also where one answer is always
    preferred (Azar et al., 2310.12036, eq. 17). The loss is the mean over the groups whose rewards differ.

    beta: strength of the pull to the reference, the paper's τ
    reference: base, the weights that the training began with, or sampled, those that sampled
    """

    def loss(gap: Tensor) -> Tensor:
        return (gap - 1 / (2 * beta)) ** 2

    return Loss("ipo", compute=_over_pairs(loss), reads_start=reference == "base")


Pair = tuple[list[LossSequence], list[LossSequence]]
"""Sequences of the best member of a group, and of the worst."""


def _over_pairs(
    loss: Callable[[Tensor], Tensor],
) -> Callable[[Sequence[LossSequence]], tuple[Tensor | float, Mapping[str, float]]]:
    """Return a loss function for sequences: the mean of `loss(gap)` over the pairs of a step, with metrics of
    the gap."""

    def log_ratio(sequences: Sequence[LossSequence]) -> Tensor:
        return _sum_of(
            ((it.logprobs - (it.sampled if it.start is None else it.start)) * it.mask).sum()
            for it in sequences
        )

    def compute(sequences: Sequence[LossSequence]) -> tuple[Tensor | float, Mapping[str, float]]:
        gaps = [log_ratio(chosen) - log_ratio(rejected) for chosen, rejected in _pairs(sequences)]
        if not gaps:
            return 0.0, {"pairs": 0.0}
        values = [gap.item() for gap in gaps]
        metrics = {
            "pairs": float(len(gaps)),
            "gap": sum(values) / len(values),
            "preferred": sum(value > 0 for value in values) / len(values),
        }
        return _sum_of(map(loss, gaps)) / len(gaps), metrics

    return compute


def _sum_of(tensors: Iterator[Tensor]) -> Tensor:
    """Return the sum of at least one tensor."""
    total = next(tensors)
    for tensor in tensors:
        total = total + tensor
    return total


def _pairs(sequences: Sequence[LossSequence]) -> Iterator[Pair]:
    """Yield the best and the worst member of each group with unequal rewards; of equally good ones, the
    first."""
    groups: dict[int, dict[int, list[LossSequence]]] = {}
    for sequence in sequences:
        if sequence.reward is not None:
            groups.setdefault(sequence.group, {}).setdefault(sequence.member, []).append(sequence)
    for members in groups.values():
        best_member, worst_member = (
            pick(members.values(), key=lambda parts: parts[0].reward or 0.0) for pick in (max, min)
        )
        if best_member[0].reward != worst_member[0].reward:
            yield best_member, worst_member
