"""Training runs: adapters with an optimizer each.

`forward_backward` accumulates gradients until `step` applies them. Knows no HTTP; `wire` decodes requests.
"""

# torch leaves parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
from torch import Tensor, nn

from rolegraph.local.service.bodies import AdamSettings
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.free_memory import MEMORY_SHARE, PASS_SHARE, free_memory
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.lora import LoraShape
from rolegraph.local.service.losses import LOSSES, Config, LossFunction, TokenScores
from rolegraph.local.service.tensors import tensor_faults

MAX_BATCH_TOKENS = {"cpu": 4_096, "cuda": 16_384}
"""Largest number of padded tokens of one forward pass, by device type; larger batches are split, with the
same gradients. A CPU's caches hold the activations of only a few tokens."""
MAX_BATCH_BYTES = {"cpu": 1_100_000_000, "cuda": 16_000_000_000}
"""Largest number of bytes of one forward and backward pass, by device type, without the model."""


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence [T] with its loss inputs, each [T], or [T, K] with K targets at each token."""

    tokens: Sequence[int]
    inputs: Mapping[str, Tensor]


class TrainingRun:
    """One adapter in training, with its optimizer."""

    def __init__(self, model: LocalModel, shape: LoraShape) -> None:
        self.model, self.shape = model, shape
        self.used = datetime.now(UTC)
        """Time of the last request."""
        self.adapter = model.add_adapter(shape)
        self._parameters = [*self.adapter.tensors.values()]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0)

    def forward_backward(
        self, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool = True
    ) -> tuple[float, list[Tensor]]:
        """Compute a loss and, unless `backward` is False, add its gradients to those gathered so far.

        Args:
            data: The datums.
            loss: A name in `LOSSES`.
            config: Settings of the loss by name.
            backward: False to compute no gradients.

        Returns:
            The loss, summed over all tokens, and each datum's log-probabilities in the shape of its targets.

        Raises:
            RequestError: An input does not fit the loss or the model, the loss is not finite, or the GPU has
                too little memory.
        """
        self._check(data, loss, config)
        try:
            return self._summed(data, loss, config, backward=backward)
        except torch.OutOfMemoryError:
            self._optimizer.zero_grad()
        # Raised here, where the tensors of the failed pass are gone.
        raise RequestError(self._exhausted(max(len(datum.tokens) for datum in data)), status=507)

    def _summed(
        self, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Tensor]]:
        function = LOSSES[loss]
        total_loss = 0.0
        logprobs: list[Tensor] = [torch.empty(0)] * len(data)
        device = self.model.device
        limit, recompute = self._pass(max(len(datum.tokens) for datum in data))
        targets = [datum.inputs["target_tokens"].long() for datum in data]
        with self.model.training(), torch.set_grad_enabled(backward):
            batches = self.model.logprobs(
                self.adapter, [datum.tokens for datum in data], targets, limit, recompute=recompute
            )
            for numbers, batch_logprobs in batches:
                batch = [data[number].inputs for number in numbers]
                lengths = [inputs["target_tokens"].numel() for inputs in batch]
                inputs = {
                    key: torch.cat([inputs[key].flatten() for inputs in batch]).to(device)
                    for key in function.needs
                }
                settings = _settings(function, config, batch, lengths)
                batch_loss = function.compute(TokenScores(batch_logprobs, inputs, lengths), settings)
                if not math.isfinite(batch_loss.item()):
                    self._optimizer.zero_grad()
                    raise RequestError("the loss is not finite; the gradients gathered so far were dropped")
                if backward:
                    batch_loss.backward()
                total_loss += batch_loss.item()
                datum_logprobs = batch_logprobs.detach().cpu().split(lengths)
                for number, datum_values in zip(numbers, datum_logprobs, strict=True):
                    logprobs[number] = datum_values.reshape(targets[number].shape)
        return total_loss, logprobs

    def _pass(self, longest: int) -> tuple[int, bool]:
        """Return (padded tokens of one pass, True if the pass computes layers again in its backward pass).

        Computing layers again takes a third more time, and is done only if the longest datum does not fit
        otherwise. A sequence longer than the limit still takes a pass of its own.
        """
        kind, update = self.model.device.type, self.model.update_bytes
        free = free_memory(self.model.device)
        recompute = update.of(longest, recompute=False) > free * PASS_SHARE
        memory_tokens = update.tokens(min(MAX_BATCH_BYTES[kind], free // MEMORY_SHARE), recompute=recompute)
        return max(1, min(MAX_BATCH_TOKENS[kind], memory_tokens)), recompute

    def _exhausted(self, longest: int) -> str:
        """Return the message for an update that needs more memory than is free."""
        update, free = self.model.update_bytes, free_memory(self.model.device)
        most = update.tokens(int(free * PASS_SHARE), recompute=True)
        return (
            f"the GPU's memory is full: an update with a datum of {longest:,} tokens takes "
            f"{update.of(longest, recompute=True) / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free, enough "
            f"for {max(0, most):,} tokens; lower sampling.max_tokens, shorten the prompts, or end other "
            "programs on the GPU (nvidia-smi lists them); the gradients gathered so far were dropped"
        )

    def step(self, settings: AdamSettings) -> dict[str, float]:
        """Update the weights by AdamW with the accumulated gradients, and clear the gradients.

        Returns:
            The L2 norm of the gradients before clipping, as a metric.

        Raises:
            RequestError: The gradient is not finite; it is cleared, and the weights stay as they are.
        """
        limit = settings.grad_clip_norm if settings.grad_clip_norm > 0 else math.inf
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit).item()
        if not math.isfinite(norm):
            self._optimizer.zero_grad()
            raise RequestError("the gradient is not finite; it was dropped and the weights are as they were")
        for group in self._optimizer.param_groups:
            group.update(
                lr=settings.learning_rate,
                betas=(settings.beta1, settings.beta2),
                eps=settings.eps,
                weight_decay=settings.weight_decay,
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {"unclipped_grad_l2:mean": norm}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments and counters, by the names of the adapter's tensors."""
        return {
            f"{name}.{key}": value
            for name, parameter in self.adapter.tensors.items()
            for key, value in self._moments(parameter).items()
        }

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return AdamW's state of a parameter; before the first step, its initial state."""
        zeros = torch.zeros_like(parameter.detach())
        initial_state = {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        return {**initial_state, **self._optimizer.state.get(parameter, {})}

    def restore(self, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor] | None) -> None:
        """Set the weights and the optimizer's state; None resets the optimizer.

        Raises:
            RequestError: The weights or the state do not fit the adapter; nothing has changed.
        """
        if optimizer is not None and (fault := tensor_faults(optimizer, self.optimizer_state())):
            raise RequestError(f"the optimizer's state does not fit the model: {fault}")
        self.adapter.set_weights(weights)
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0)
        if optimizer is None:
            return
        for name, parameter in self.adapter.tensors.items():
            self._optimizer.state[parameter] = {
                key: optimizer[f"{name}.{key}"].to(value.device, copy=True)
                for key, value in self._moments(parameter).items()
            }

    def _check(self, data: Sequence[Datum], loss: str, config: Mapping[str, float]) -> None:
        if loss not in LOSSES:
            raise RequestError(f"the loss {loss!r} is not served here; there is {', '.join(LOSSES)}")
        function = LOSSES[loss]
        if unknown := sorted(set(config) - set(function.settings)):
            raise RequestError(
                f"{loss} has no setting {unknown[0]!r}; it takes {', '.join(function.settings) or 'none'}"
            )
        if not data:
            raise RequestError("forward_backward needs at least one datum")
        for position, datum in enumerate(data):
            length = len(datum.tokens)
            if not 0 < length <= self.model.context:
                raise RequestError(
                    f"datum {position} has {length} tokens; 1 to {self.model.context} fit the model"
                )
            if max(datum.tokens) >= self.model.vocabulary or min(datum.tokens) < 0:
                raise RequestError(f"datum {position} has a token outside the vocabulary of the model")
            _check_inputs(position, datum, loss, function)
            targets = datum.inputs["target_tokens"]
            if targets.min() < 0 or targets.max() >= self.model.vocabulary:
                raise RequestError(f"datum {position} has a target token outside the vocabulary of the model")


def _check_inputs(position: int, datum: Datum, loss: str, function: LossFunction) -> None:
    for key in function.needs:
        if key not in datum.inputs:
            raise RequestError(f"datum {position} has no {key!r}, which {loss} reads")
    if unknown_inputs := sorted(set(datum.inputs) - {*function.needs, *function.by_token}):
        raise RequestError(
            f"datum {position} has {unknown_inputs[0]!r}, which {loss} does not read; "
            f"it reads {', '.join((*function.needs, *function.by_token))}"
        )
    length, targets = len(datum.tokens), datum.inputs["target_tokens"]
    shape = [length]
    if function.many_targets and targets.ndim == 2 and targets.shape[1]:
        shape.append(targets.shape[1])
    for key, tensor in datum.inputs.items():
        if list(tensor.shape) != shape:
            raise RequestError(f"datum {position}: {key} has shape {list(tensor.shape)}, expected {shape}")
    if "sequence_ratio_mask" in function.needs and not datum.inputs["sequence_ratio_mask"].any():
        raise RequestError(f"datum {position}: sequence_ratio_mask marks no token")


def _settings(
    function: LossFunction,
    config: Mapping[str, float],
    batch: Sequence[Mapping[str, Tensor]],
    lengths: Sequence[int],
) -> Config:
    """Return a loss's complete settings for a batch: defaults, replaced by the request's, then by each
    datum's values per token."""
    settings: dict[str, float | Tensor] = {**function.settings, **config}
    for key in function.by_token:
        if any(key in inputs for inputs in batch):
            settings[key] = torch.cat(
                [
                    inputs.get(key, torch.full((length,), float(settings[key])))
                    for inputs, length in zip(batch, lengths, strict=True)
                ]
            )
    return settings
