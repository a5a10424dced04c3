"""Passes of an update, made so that every service computes the same gradient. Pure.

The loop counts on losses that are sums over tokens; `ServiceTraits` say where a service differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tinker

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.training.batches import RoleBatch
from rolegraph.engine.vocabulary import LossName
from rolegraph.engine.vocabulary.items import LOSS_SETTINGS


@dataclass(frozen=True, slots=True)
class LossPass:
    """Arguments of one `forward_backward`."""

    loss: LossName
    settings: Mapping[str, float]
    data: Sequence[tinker.Datum]


def loss_passes(batches: Sequence[RoleBatch], traits: ServiceTraits) -> list[LossPass]:
    """Return the passes of one update, a pass for each batch.

    Thresholds are always given, because services have different defaults.

    Args:
        batches: the batches of one policy between two optimizer steps.
        traits: behaviour of the policy's service.
    """
    total = sum(len(batch.data) for batch in batches)
    return [_restored(batch, total) if traits.takes_means else _plain(batch) for batch in batches]


def _sent_loss(loss: LossName, traits: ServiceTraits) -> LossName:
    """Return the loss function that a service computes for a loss.

    A service of means divides a cross-entropy by the sum of the weights, which no factor restores. The
    gradient of CISPO with both thresholds at 1 is that of a cross-entropy, whatever the sampling
    log-probabilities.
    """
    return "cispo" if traits.takes_means and loss == "cross_entropy" else loss


def _plain(batch: RoleBatch) -> LossPass:
    settings = {**LOSS_SETTINGS[batch.loss.name], **batch.loss.settings}
    return LossPass(batch.loss.name, settings, batch.data)


def _restored(batch: RoleBatch, total: int) -> LossPass:
    """Return the pass whose mean is the sum: a service divides by `total` datums and by each one's length."""
    plain, data = _plain(batch), [_scaled(datum, total) for datum in batch.data]
    if plain.loss == "cross_entropy":  # see `_sent_loss`
        return LossPass("cispo", {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0}, data)
    return LossPass(plain.loss, plain.settings, data)


def _scaled(datum: tinker.Datum, total: int) -> tinker.Datum:
    inputs = dict(datum.loss_fn_inputs)
    advantages = inputs.pop("weights", None) or inputs["advantages"]
    values = np.asarray(advantages.data, np.float64)
    inputs["advantages"] = _floats(values * len(values) * total)
    inputs.setdefault("logprobs", _floats(np.zeros(len(values))))
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def _floats(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tinker.TensorData:
    return tinker.TensorData(data=values.tolist(), dtype="float32", shape=[len(values)])


def check_service(plan: Plan, policy: str, url: str, traits: ServiceTraits) -> None:
    """Refuse a training that a policy's service would make into another one.

    Raises:
        UsageError: the service lacks a trait that the plan counts on.
    """
    train, roles = plan.spec.train, [r for r in plan.trained.values() if policy in plan.policies_of(r.name)]
    lacks = [
        f"computes the loss {role.loss.name} of {role.name} otherwise; it has {', '.join(traits.losses)}"
        for role in roles
        if _sent_loss(role.loss.name, traits) not in traits.losses
    ]
    if not traits.keeps_old_samplers and train.staleness:
        lacks.append(
            f"puts old weights back into training when they are sampled; set train.staleness to 0 "
            f"(it is {train.staleness})"
        )
    if not traits.keeps_old_samplers and plan.past:
        lacks.append("puts old weights back into training when they are sampled; leave out past selves")
    if not traits.accumulates and len(roles) > 1:
        names = ", ".join(role.name for role in roles)
        lacks.append(f"keeps the gradient of the last pass alone; give each of {names} a policy of its own")
    if not traits.has_several_adapters and len(plan.policies) > 1:
        lacks.append(f"trains one adapter at a time, and {plan.name} has {len(plan.policies)} policies")
    if lacks:
        raise UsageError("\n".join(f"the service at {url} {lack}" for lack in lacks))
