"""Batches of Tinker Datums, made from episodes with advantages. Pure.

A Datum is a sequence of tokens shifted by one: input [L-1], targets [L-1], and for each target the sampling
log-probability and the advantage (or weight), both 0 on tokens that the model did not sample. Steps whose
prompt continues the step before, token for token, are one sequence, so that its prefix is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import tinker

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode, PolicyOf, Step, Trajectory
from rolegraph.engine.spec import Loss
from rolegraph.engine.training.credit import is_compared, loss_weights, turns
from rolegraph.engine.training.group_metrics import any_nonzero
from rolegraph.engine.training.precomputed import per_token
from rolegraph.engine.training.signals import DEMONSTRATION
from rolegraph.engine.vocabulary import LossName


class SampledSpan(NamedTuple):
    """Sampled tokens within a datum."""

    start: int
    """Index of the first of them among the datum's targets."""
    logprobs: Sequence[float]
    """Sampling log-probabilities, [T]."""


@dataclass(frozen=True, slots=True)
class RoleBatch:
    """Datums of one role in one training step."""

    role: str
    loss: Loss
    data: Sequence[tinker.Datum]
    sampled: Sequence[Sequence[SampledSpan]]
    """Spans with a gradient, for each datum; empty for demonstrations."""
    steps: int
    """Number of Steps with a nonzero advantage."""
    rewritten: int = 0
    """Number of Steps that continue the messages of the Step before, but not its tokens."""

    @property
    def mass(self) -> float:
        """Sum of |advantage| over tokens, weighted by the role's loss weight."""
        key = "weights" if self.loss.name == "cross_entropy" else "advantages"
        return float(sum(np.abs(datum.loss_fn_inputs[key].data).sum() for datum in self.data))


class StepAdvantages(NamedTuple):
    """Recorded Step with the advantages of its response tokens."""

    step: Step
    values: Sequence[float]
    """Advantages [T]; zeros for a masked turn."""
    where: str
    """Description of the step, for messages."""

    @property
    def is_demonstration(self) -> bool:
        """True if a demonstration is learnt in place of the sampled answer; no Step continues it then."""
        return DEMONSTRATION in self.step.metadata


def policy_batches(
    episodes: Sequence[Episode], roles: Mapping[str, RolePlan], policy_of: PolicyOf
) -> dict[str, list[RoleBatch]]:
    """Return one training step's batches, by policy; policies without a nonzero advantage are left out.

    Args:
        episodes: the step's episodes, with advantages.
        roles: the trained roles.
        policy_of: function from (role, instance index) to the name of the policy.

    Raises:
        AdvantageError: for a Step without an advantage.
        UsageError: for a Step to learn from without token ids or log-probabilities.
    """
    compared: dict[str, list[tuple[Episode, Trajectory]]] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            role = roles.get(trajectory.name)
            if role is not None and is_compared(trajectory, role):
                policy = policy_of(trajectory.name, trajectory.index)
                compared.setdefault(policy, []).append((episode, trajectory))
    weights = loss_weights(episodes, roles, policy_of)
    batches = {
        policy: role_batches(pairs, roles, {name: weights.get((policy, name), 0.0) for name in roles})
        for policy, pairs in compared.items()
    }
    return {policy: own for policy, own in batches.items() if own}


def role_batches(
    compared: Sequence[tuple[Episode, Trajectory]],
    roles: Mapping[str, RolePlan],
    weights: Mapping[str, float],
) -> list[RoleBatch]:
    """Return one policy's batches, a batch for each role; sequences with zero advantages are left out.

    Args:
        compared: the policy's trajectories that are in a group, with their episodes.
        roles: the trained roles.
        weights: factor of each role's advantages, from `loss_weights`.
    """
    batches: list[RoleBatch] = []
    for name, role in roles.items():
        data: list[tinker.Datum] = []
        sampled: list[Sequence[SampledSpan]] = []
        steps = rewritten = 0
        for episode, trajectory in compared:
            if trajectory.name != name:
                continue
            rewritten += sum(_is_rewritten(step, before) for before, step in pairwise(trajectory.steps))
            for sequence in token_sequences(step_advantages(episode, trajectory, role)):
                datum, spans = build_datum(sequence, role.loss.name, weights[name])
                data.append(datum)
                sampled.append(spans)
                steps += sum(any_nonzero(own.values) for own in sequence)
        if data:
            batches.append(RoleBatch(name, role.loss, data, sampled, steps, rewritten))
    return batches


def step_advantages(
    episode: Episode, trajectory: Trajectory, role: RolePlan | None = None
) -> Iterator[StepAdvantages]:
    """Yield a trajectory's Steps with their advantages [T], zeros for turns that are masked or in no group.

    Raises:
        AdvantageError: for another Step without an advantage.
    """
    by_key = role is not None and any(grouping.key is not None for grouping in role.groupings)
    uid = trajectory.uid or f"{episode.id}/{trajectory.node}"
    number = 0
    for turn in turns(trajectory):
        masked = any(step.masked for step in turn)
        for step in turn:
            where, length = f"{uid}, step {number}", len(step.response_ids)
            unset = masked or (by_key and step.advantage is None)
            yield StepAdvantages(
                step, (0.0,) * length if unset else per_token(step.advantage, length, where), where
            )
            number += 1


def token_sequences(steps: Iterator[StepAdvantages]) -> Iterator[Sequence[StepAdvantages]]:
    """Yield runs of Steps that continue each other token for token, up to the last nonzero advantage."""
    run: list[StepAdvantages] = []
    for own in steps:
        if (
            run
            and not own.is_demonstration
            and not run[-1].is_demonstration
            and continues(own.step, run[-1].step)
        ):
            run.append(own)
            continue
        yield from _cut_zero_tail(run)
        run = [own]
    yield from _cut_zero_tail(run)


def _cut_zero_tail(run: Sequence[StepAdvantages]) -> Iterator[Sequence[StepAdvantages]]:
    last = max((place for place, own in enumerate(run, 1) if any_nonzero(own.values)), default=0)
    if last:
        yield run[:last]


def continues(step: Step, before: Step) -> bool:
    """Return True if a Step's prompt begins with all tokens of the Step before."""
    prompt, response = len(before.prompt_ids), len(before.response_ids)
    return (
        prompt > 0
        and prompt + response <= len(step.prompt_ids)
        and list(step.prompt_ids[:prompt]) == list(before.prompt_ids)
        and list(step.prompt_ids[prompt : prompt + response]) == list(before.response_ids)
    )


def build_datum(
    sequence: Sequence[StepAdvantages], loss: LossName, share: float
) -> tuple[tinker.Datum, list[SampledSpan]]:
    """Build the Datum of a sequence.

    Args:
        sequence: Steps that continue each other.
        loss: name of the loss, which decides the Datum's inputs.
        share: factor of the advantages.

    Returns:
        The Datum, and its spans of sampled tokens with a nonzero advantage.

    Raises:
        UsageError: for a Step without token ids, or without a log-probability for each token.
    """
    tokens: list[int] = []
    weights: list[float] = []
    logprobs: list[float] = []
    spans: list[SampledSpan] = []
    for step, values, where in sequence:
        response: Sequence[int] = step.response_ids
        sampled: Sequence[float] = step.logprobs
        if (demonstration := step.metadata.get(DEMONSTRATION)) is not None:
            response, sampled = demonstration["ids"], ()
            values = (values[0],) * len(response)
        if not any_nonzero(values):
            sampled = ()
        elif not step.prompt_ids or not response:
            raise UsageError(
                f"{where} has no token ids, so nothing can be learnt from it; use a tinker or local model"
            )
        elif loss != "cross_entropy" and len(sampled) != len(response):
            raise UsageError(f"{where} has {len(sampled)} log-probabilities for {len(response)} tokens")
        # The tokens so far are the beginning of this Step's prompt; its remainder was not sampled.
        padding = [0.0] * (len(step.prompt_ids) - len(tokens))
        if sampled:
            spans.append(SampledSpan(len(step.prompt_ids) - 1, sampled))
        weights += [*padding, *(value * share for value in values)]
        logprobs += [*padding, *(sampled or [0.0] * len(response))]
        tokens = [*step.prompt_ids, *response]
    inputs = {"target_tokens": _integers(tokens[1:])}
    if loss == "cross_entropy":
        inputs["weights"] = _floats(weights[1:])
    else:
        inputs["logprobs"] = _floats(logprobs[1:])
        inputs["advantages"] = _floats(weights[1:])
    if loss == "gspo":
        mask = np.zeros(len(tokens) - 1)
        for start, sampled in spans:
            mask[start : start + len(sampled)] = 1.0
        inputs["sequence_ratio_mask"] = _floats(mask.tolist())
    model_input = tinker.ModelInput.from_ints(tokens[:-1])
    return tinker.Datum(model_input=model_input, loss_fn_inputs=inputs), spans


def _is_rewritten(step: Step, before: Step) -> bool:
    """Return True if the chat template re-rendered the earlier messages in other tokens."""
    earlier = [_role_and_content(message) for message in before.chat_completions]
    now = [_role_and_content(message) for message in step.chat_completions[: len(earlier)]]
    return bool(step.prompt_ids) and bool(earlier) and now == earlier and not continues(step, before)


def _role_and_content(message: Mapping[str, object]) -> tuple[object, object]:
    return message.get("role"), message.get("content")


def _integers(values: list[int]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="int64", shape=[len(values)])


def _floats(values: list[float]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="float32", shape=[len(values)])
