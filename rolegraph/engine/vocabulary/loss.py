"""Losses that roles are trained with: those of the Tinker API, and functions of a step's sequences.

The training service computes a loss of the API by its name. A loss with a function of its own is computed in
this process from log-probabilities of the service, which then gets the gradient: the Tinker SDK's
`forward_backward_custom`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rolegraph.engine.vocabulary.registry import Item, Registry

if TYPE_CHECKING:  # the extra `local` brings torch, and a spec is checked without it
    from torch import Tensor

    LossValue = Tensor | float | tuple[Tensor | float, Mapping[str, float]]
else:
    Tensor = LossValue = Any


@dataclass(frozen=True, slots=True, eq=False)
class LossSequence:
    """Tokens of a trajectory, or of a turn where turns are compared, as a loss reads them.

    T counts the tokens of prompt and answers after the first token. A trajectory is one sequence if each
    prompt continues the tokens before it; else it is several sequences with the same `member`.
    """

    logprobs: Tensor
    """Log-probabilities of the weights in training, [T]; they require gradients."""
    sampled: Tensor
    """Log-probabilities of the weights that sampled, [T]; 0 where `mask` is 0."""
    advantages: Tensor
    """Advantages of the role's estimator and signal, [T]; 0 where `mask` is 0."""
    mask: Tensor
    """1 for tokens that the role sampled in compared turns, 0 for all others, [T]."""
    start: Tensor | None
    """Log-probabilities of the policy's starting weights, [T]; 0 where `mask` is 0. None unless the loss
    `reads_start`."""
    reward: float | None
    """Reward by which the member is compared."""
    group: int
    """Number of the group; sequences of one group are compared."""
    member: int
    """Number of the trajectory or turn in the step."""


@dataclass(frozen=True, slots=True)
class Loss(Item):
    """Training loss of a role."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings of a loss of the Tinker API. All are sent, since services have different defaults."""
    compute: Callable[[Sequence[LossSequence]], LossValue] | None = None
    """Function of the sequences of one role and policy in a step that returns their mean loss: a tensor with
    one element, or a float without a gradient; alone, or with metrics by name. None if the service
    computes the loss."""
    reads_start: bool = False
    """True if `compute` reads `LossSequence.start`; each sequence is then scored once more."""


losses = Registry(Loss, "rolegraph.losses")
