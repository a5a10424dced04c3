"""Custom losses: functions of a role's sequences, by the custom forward-backward of the Tinker SDK.

The service gives the log-probabilities, the function runs in this process, and the service gets the gradient
of the log-probabilities as weights of a cross-entropy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rolegraph.engine.errors import FOREIGN_ERRORS, AdvantageError, ModelError, WorldError, describe_error
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.models.tinker_sdk import tinker
from rolegraph.engine.training.policies.batches import RoleBatch
from rolegraph.engine.vocabulary.foreign import finite_number

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any


NO_METRICS: Mapping[str, float] = {}


class LossResult(NamedTuple):
    """Value, metrics and gradient of a role's loss in one step."""

    value: float
    """Value of the loss times the role's share in the policy's loss."""
    metrics: Mapping[str, float]
    """Metrics that the loss reports, by name."""
    gradients: Sequence[Tensor]
    """Gradient of each sequence's log-probabilities, [T]; zeros where the loss has none."""

    @property
    def moves(self) -> bool:
        """True if the gradient is not 0 everywhere."""
        return any(bool(gradient.any()) for gradient in self.gradients)


async def score_starts(
    batches: Mapping[str, Sequence[RoleBatch]], start_of: Callable[[str], Awaitable[LimitedModel]]
) -> None:
    """Score sequences with the policy's starting weights, into `RoleBatch.starts`, for the losses that read
    them.

    Args:
        batches: Batches of a step, by policy.
        start_of: Function that returns a model with the weights that a policy started from, by the policy's
            name.

    Raises:
        WorldError: The model gives no log-probabilities.
    """
    for policy, policy_batches in batches.items():
        for batch in policy_batches:
            if batch.loss.reads_start:
                model = await start_of(policy)
                batch.starts = await asyncio.gather(
                    *(_score(batch, n, model) for n in range(len(batch.data)))
                )


async def _score(batch: RoleBatch, index: int, model: LimitedModel) -> Sequence[float]:
    """Return a model's log-probabilities [T] of a sequence; 0 before the first sampled token."""
    datum, spans = batch.data[index], batch.sampled[index]
    tokens = [*datum.model_input.to_ints(), int(datum.loss_fn_inputs["target_tokens"].data[-1])]
    prompt_length = spans[0].start + 1
    try:
        target_logprobs = await model.logprobs(tokens[:prompt_length], tokens[prompt_length:])
    except ModelError as error:
        text = f"the start of the policy gives no log-probabilities for the loss of {batch.role}: {error}"
        raise WorldError(text) from error
    return [0.0] * (prompt_length - 1) + [*target_logprobs]


class CustomPass:
    """Loss of one role's batch, as the function that `forward_backward_custom` takes.

    The SDK's client refuses all later requests after an error in this function, also those that would save a
    checkpoint. So an error is kept in `error`, and the SDK gets a loss without a gradient.
    """

    def __init__(self, batch: RoleBatch) -> None:
        self.batch = batch
        self.result: LossResult | None = None
        self.error: AdvantageError | None = None

    @property
    def data(self) -> list[tinker.Datum]:
        """Return the datums without loss inputs: services read only the target tokens."""
        return [
            tinker.Datum(
                # Older SDKs send these as JSON, which takes no arrays.
                model_input=tinker.ModelInput.from_ints(datum.model_input.to_ints()),
                loss_fn_inputs={"target_tokens": datum.loss_fn_inputs["target_tokens"]},
            )
            for datum in self.batch.data
        ]

    def __call__(
        self, data: Sequence[tinker.Datum], logprobs: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return (tensor with the loss's value and gradient, no metrics); `result` has the metrics."""
        try:
            self.result = self._computed(logprobs)
        except FOREIGN_ERRORS as error:  # a loss may be code of a package
            reason = describe_error(error, with_place=True)
            self.error = AdvantageError(f"the loss {self.batch.loss.name} of {self.batch.role}: {reason}")
            self.error.__cause__ = error
        gradients = self.result.gradients if self.result else [x.new_zeros(x.shape) for x in logprobs]
        zero_loss = logprobs[0].new_zeros(())
        for values, gradient in zip(logprobs, gradients, strict=True):
            zero_loss = zero_loss + (values * gradient).sum()
        value = self.result.value if self.result else 0.0
        return zero_loss + (value - zero_loss.detach()), {}

    def _computed(self, logprobs: Sequence[Tensor]) -> LossResult:
        """Compute the loss and its gradient on copies of the log-probabilities.

        Raises:
            ValueError: A number or the gradient is not finite, or the function returned another type.
        """
        batch, compute = self.batch, self.batch.loss.compute
        assert compute is not None
        tensors = [values.detach().clone().requires_grad_() for values in logprobs]
        result = compute([batch.sequence(index, copy) for index, copy in enumerate(tensors)])
        loss, metrics = result if isinstance(result, tuple) else (result, NO_METRICS)
        value = finite_number(getattr(loss, "item", lambda: loss)(), "it is")
        reported_metrics = {
            str(name): finite_number(number, f"its metric {name} is") for name, number in metrics.items()
        }
        if "mean" in reported_metrics:
            raise ValueError("its metric mean has the name of the loss itself; give it another")
        if getattr(loss, "requires_grad", False):
            scaled_loss: Any = loss * batch.part
            scaled_loss.backward()
        gradients = [copy.new_zeros(copy.shape) if copy.grad is None else copy.grad for copy in tensors]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise ValueError(f"its gradient is not finite, and the loss is {value:g}")
        return LossResult(value * batch.part, reported_metrics, gradients)
