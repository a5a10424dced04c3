"""Groups with advantages to what the Tinker service learns from: one Datum a Step, a list for each role.

Pure. A Datum is a sequence of prompt and response tokens shifted by one: input [L-1], targets [L-1], and for
each target the sampling log-probability and the advantage (or weight), both 0 on the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tinker

from engine.compile.plan import RolePlan
from engine.errors import UsageError
from engine.records import Step, TrajectoryGroup
from engine.training.advantages import NOTHING, per_token
from engine.training.signals import DEMONSTRATION
from engine.vocabulary import LossName


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one role learns in a step."""

    role: str
    loss: LossName
    data: Sequence[tinker.Datum]
    sampled: Sequence[Sequence[float]]
    """The sampling log-probabilities of each datum's last T tokens; empty for a demonstration."""


def lessons(groups: Sequence[TrajectoryGroup], roles: Mapping[str, RolePlan]) -> list[Lesson]:
    """The lessons of a batch. Steps whose advantages are all zero are left out: they have no gradient.

    Losses are sums over tokens; dividing each by the number of trajectories in the batch, those left out
    included, makes the batch's loss a mean that does not depend on its size.
    """
    share = 1.0 / max(1, sum(len(group.trajectories) for group in groups if group.role in roles))
    made: list[Lesson] = []
    for name, role in roles.items():
        data: list[tinker.Datum] = []
        sampled: list[Sequence[float]] = []
        for group in groups:
            if group.role != name:
                continue
            for trajectory in group.trajectories:
                for number, step in enumerate(trajectory.steps):
                    where = f"{trajectory.uid or group.group_id}, step {number}"
                    found = datum(step, role.loss, share, where)
                    if found is not None:
                        data.append(found)
                        sampled.append(() if DEMONSTRATION in step.metadata else step.logprobs)
        if data:
            made.append(Lesson(name, role.loss, data, sampled))
    return made


def datum(step: Step, loss: LossName, share: float, where: str) -> tinker.Datum | None:
    """One step's Datum, None where there is nothing to learn. Raises UsageError for a step without tokens."""
    demonstration = step.metadata.get(DEMONSTRATION)
    values = per_token(step, where)
    if all(abs(value) < NOTHING for value in values):
        return None
    response: Sequence[int] = step.response_ids
    if demonstration is not None:
        response = demonstration["ids"]
        values = (values[0],) * len(response)
    if not step.prompt_ids or not response:
        raise UsageError(
            f"{where} has no token ids, so nothing can be learnt from it; use a tinker or local model"
        )
    before = len(step.prompt_ids) - 1
    tokens = [*step.prompt_ids, *response]
    weights = [0.0] * before + [value * share for value in values]
    inputs = {"target_tokens": _integers(tokens[1:])}
    if loss == "cross_entropy":
        inputs["weights"] = _floats(weights)
    else:
        if len(step.logprobs) != len(response):
            raise UsageError(f"{where} has {len(step.logprobs)} log-probabilities for {len(response)} tokens")
        inputs["logprobs"] = _floats([0.0] * before + list(step.logprobs))
        inputs["advantages"] = _floats(weights)
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def _integers(values: list[int]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="int64", shape=[len(values)])


def _floats(values: list[float]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="float32", shape=[len(values)])
