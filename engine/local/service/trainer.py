"""Training runs on one policy: an adapter and its optimizer each, gradients kept apart.

`forward_backward` adds gradients up until `step` uses them. Knows no HTTP; the wire's messages are turned
into `Datum` elsewhere.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rolegraph.engine.local.service.losses import LOSSES, Config, LossFunction, TokenScores
from rolegraph.engine.local.service.policy import LocalModel, LoraShape

if TYPE_CHECKING:
    from tinker import AdamParams

MAX_BATCH_TOKENS = {"cpu": 4_096, "cuda": 16_384}
"""Padded tokens of one forward pass; a larger batch is cut up, with the same gradients. A processor's caches
hold what passes between the layers of few tokens only."""
MAX_BATCH_LOGITS = 2**26
"""Logits (tokens times vocabulary) of one forward pass."""


class RequestError(ValueError):
    """A request that cannot be carried out as it is: the client's mistake."""


class NotFoundError(RequestError):
    """A request for something that is not here: a model, a session, a checkpoint."""


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence [T] and its loss inputs, each [T], or [T, K] with K targets at each token."""

    tokens: Sequence[int]
    inputs: Mapping[str, Tensor]


class TrainingRun:
    """One adapter in training. `name` is the adapter's and the client's model id."""

    def __init__(self, policy: LocalModel, name: str, shape: LoraShape) -> None:
        self.policy, self.name, self.shape = policy, name, shape
        self.used = datetime.now(UTC)
        """When a client last asked something of it."""
        if not (shape.train_attn or shape.train_mlp or shape.train_unembed):
            raise RequestError("nothing to train: train_attn, train_mlp and train_unembed are all false")
        policy.add_adapter(name, shape)
        self._parameters = policy.parameters(name)
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0)

    def forward_backward(
        self, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool = True
    ) -> tuple[float, list[Tensor]]:
        """The loss, summed over the batch, and each datum's log-probabilities, shaped as its targets."""
        self._check(data, loss, config)
        kind = LOSSES[loss]
        total = 0.0
        logprobs: list[Tensor] = [torch.empty(0)] * len(data)
        device = self.policy.device
        limit = min(MAX_BATCH_TOKENS[device.type], MAX_BATCH_LOGITS // self.policy.vocabulary)
        targets = [datum.inputs["target_tokens"].long() for datum in data]
        with self.policy.training(), torch.set_grad_enabled(backward):
            batches = self.policy.logprobs(self.name, [datum.tokens for datum in data], targets, limit)
            for numbers, batch_logprobs in batches:
                batch = [data[number].inputs for number in numbers]
                lengths = [inputs["target_tokens"].numel() for inputs in batch]
                inputs = {
                    key: torch.cat([inputs[key].flatten() for inputs in batch]).to(device)
                    for key in kind.needs
                }
                settings = _settings(kind, config, batch, lengths)
                summed = kind.compute(TokenScores(batch_logprobs, inputs, lengths), settings)
                if not math.isfinite(summed.item()):
                    self._optimizer.zero_grad()
                    raise RequestError("the loss is not finite; the gradients gathered so far were dropped")
                if backward:
                    summed.backward()
                total += summed.item()
                by_datum = batch_logprobs.detach().cpu().split(lengths)
                for number, values in zip(numbers, by_datum, strict=True):
                    logprobs[number] = values.reshape(targets[number].shape)
        return total, logprobs

    def step(self, settings: AdamParams) -> dict[str, float]:
        """Use the gradients and drop them. Returns their norm before clipping."""
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

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's tensors and counters."""
        return self._optimizer.state_dict()

    def restore(self, weights: Mapping[str, Tensor], optimizer: dict[str, Any] | None) -> None:
        """Take over weights, and the optimizer's state where it is given; else the optimizer starts anew."""
        self.policy.set_weights(self.name, weights)
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0)
        if optimizer is not None:
            self._optimizer.load_state_dict(optimizer)

    def end(self) -> None:
        """Free the adapter."""
        self.policy.drop_adapter(self.name)

    def _check(self, data: Sequence[Datum], loss: str, config: Mapping[str, float]) -> None:
        if loss not in LOSSES:
            raise RequestError(f"the loss {loss!r} is not served here; there is {', '.join(LOSSES)}")
        kind = LOSSES[loss]
        if unknown := sorted(set(config) - set(kind.settings)):
            raise RequestError(
                f"{loss} has no setting {unknown[0]!r}; it takes {', '.join(kind.settings) or 'none'}"
            )
        if not data:
            raise RequestError("forward_backward needs at least one datum")
        for position, datum in enumerate(data):
            length = len(datum.tokens)
            if not 0 < length <= self.policy.context:
                raise RequestError(
                    f"datum {position} has {length} tokens; 1 to {self.policy.context} fit the model"
                )
            if max(datum.tokens) >= self.policy.vocabulary or min(datum.tokens) < 0:
                raise RequestError(f"datum {position} has a token that the model does not know")
            _check_inputs(position, datum, loss, kind)
            targets = datum.inputs["target_tokens"]
            if targets.min() < 0 or targets.max() >= self.policy.vocabulary:
                raise RequestError(f"datum {position} has a target token that the model does not know")


def _check_inputs(position: int, datum: Datum, loss: str, kind: LossFunction) -> None:
    for key in kind.needs:
        if key not in datum.inputs:
            raise RequestError(f"datum {position} has no {key!r}, which {loss} reads")
    if unknown := sorted(set(datum.inputs) - {*kind.needs, *kind.by_token}):
        raise RequestError(
            f"datum {position} has {unknown[0]!r}, which {loss} does not read; "
            f"it reads {', '.join((*kind.needs, *kind.by_token))}"
        )
    length, targets = len(datum.tokens), datum.inputs["target_tokens"]
    wanted = [length]
    if kind.many_targets and targets.ndim == 2 and targets.shape[1]:
        wanted.append(targets.shape[1])
    for key, tensor in datum.inputs.items():
        if list(tensor.shape) != wanted:
            raise RequestError(f"datum {position}: {key} has shape {list(tensor.shape)}, expected {wanted}")
    if "sequence_ratio_mask" in kind.needs and not datum.inputs["sequence_ratio_mask"].any():
        raise RequestError(f"datum {position}: sequence_ratio_mask marks no token")


def _settings(
    kind: LossFunction,
    config: Mapping[str, float],
    batch: Sequence[Mapping[str, Tensor]],
    lengths: Sequence[int],
) -> Config:
    """A loss's settings for the tokens of a batch: those of each datum, or else of the request."""
    settings: dict[str, float | Tensor] = {**kind.settings, **config}
    for key in kind.by_token:
        if any(key in inputs for inputs in batch):
            settings[key] = torch.cat(
                [
                    inputs.get(key, torch.full((length,), float(settings[key])))
                    for inputs, length in zip(batch, lengths, strict=True)
                ]
            )
    return settings
