"""Episodes with advantages to what the Tinker service learns from: one Datum a Step, a batch for each role.

Pure. A Datum is a sequence of prompt and response tokens shifted by one: input [L-1], targets [L-1], and for
each target the sampling log-probability and the advantage (or weight), both 0 on the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tinker

from engine.compile import RolePlan
from engine.errors import UsageError
from engine.records import Episode, PolicyOf, Step, Trajectory
from engine.training.advantages import is_compared, per_token, teaches
from engine.training.signals import DEMONSTRATION
from engine.vocabulary import LossName


@dataclass(frozen=True, slots=True)
class RoleBatch:
    """What one role learns from in a step."""

    role: str
    loss: LossName
    data: Sequence[tinker.Datum]
    sampled: Sequence[Sequence[float]]
    """The sampling log-probabilities of each datum's last T tokens; empty for a demonstration."""

    @property
    def mass(self) -> float:
        """The sum of |advantage| over its tokens, times what the role's losses count."""
        key = "weights" if self.loss == "cross_entropy" else "advantages"
        return float(sum(np.abs(datum.loss_fn_inputs[key].data).sum() for datum in self.data))


def policy_batches(
    episodes: Sequence[Episode], roles: Mapping[str, RolePlan], policy_of: PolicyOf
) -> dict[str, list[RoleBatch]]:
    """The batches of a step, by policy; policies with nothing to learn are left out."""
    compared: dict[str, list[tuple[Episode, Trajectory]]] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            if trajectory.name in roles and is_compared(trajectory):
                policy = policy_of(trajectory.name, trajectory.index)
                compared.setdefault(policy, []).append((episode, trajectory))
    batches = {policy: role_batches(theirs, roles) for policy, theirs in compared.items()}
    return {policy: theirs for policy, theirs in batches.items() if theirs}


def role_batches(
    compared: Sequence[tuple[Episode, Trajectory]], roles: Mapping[str, RolePlan]
) -> list[RoleBatch]:
    """One policy's batches. Steps whose advantages are all zero are left out: they have no gradient.

    Losses are sums over tokens; dividing each by the weights of all trajectories that the policy was compared
    in, those left out included, makes its loss a weighted mean that does not depend on the batch's size.
    """
    whole = sum(roles[trajectory.name].weight for _, trajectory in compared)
    batches: list[RoleBatch] = []
    for name, role in roles.items():
        data: list[tinker.Datum] = []
        sampled: list[Sequence[float]] = []
        share = role.weight / (whole or 1.0)
        for episode, trajectory in compared:
            if trajectory.name != name:
                continue
            for number, step in enumerate(trajectory.steps):
                where = f"{trajectory.uid or f'{episode.id}/{trajectory.node}'}, step {number}"
                example = datum(step, role.loss, share, where)
                if example is not None:
                    data.append(example)
                    sampled.append(() if DEMONSTRATION in step.metadata else step.logprobs)
        if data:
            batches.append(RoleBatch(name, role.loss, data, sampled))
    return batches


def datum(step: Step, loss: LossName, share: float, where: str) -> tinker.Datum | None:
    """One step's Datum, None where there is nothing to learn. Raises UsageError for a step without tokens."""
    if step.masked:
        return None
    demonstration = step.metadata.get(DEMONSTRATION)
    values = per_token(step.advantage, len(step.response_ids), where)
    if not teaches(values):
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
