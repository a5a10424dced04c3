"""Episodes with advantages to what the Tinker service learns from: a batch of Datums for each role.

Pure. A Datum is a sequence of tokens shifted by one: input [L-1], targets [L-1], and for each target the
sampling log-probability and the advantage (or weight), both 0 on what the model did not write. Where a Step's
prompt continues the Step before it, token for token, both are one sequence.
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
from rolegraph.engine.training.advantages import per_token, teaches
from rolegraph.engine.training.credit import is_compared, loss_weights, turns
from rolegraph.engine.training.signals import DEMONSTRATION
from rolegraph.engine.vocabulary import LossName


class SampledSpan(NamedTuple):
    """What was sampled of a datum: the place of its first token among the targets, and log-probabilities."""

    start: int
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class RoleBatch:
    """What one role learns from in a step."""

    role: str
    loss: Loss
    data: Sequence[tinker.Datum]
    sampled: Sequence[Sequence[SampledSpan]]
    """Of each datum, the answers that are learnt from; none of a demonstration."""
    steps: int
    """How many Steps are learnt from."""
    rewritten: int = 0
    """How many Steps continue the conversation of the Step before, but not its tokens."""

    @property
    def mass(self) -> float:
        """The sum of |advantage| over its tokens, times what the role's losses count."""
        key = "weights" if self.loss.name == "cross_entropy" else "advantages"
        return float(sum(np.abs(datum.loss_fn_inputs[key].data).sum() for datum in self.data))


class StepAdvantages(NamedTuple):
    """A Step with the advantages of its T tokens, all of them 0 where nothing is learnt from it."""

    step: Step
    values: Sequence[float]
    where: str

    @property
    def alone(self) -> bool:
        """Whether something else than its answer is learnt, which the Step after it does not continue."""
        return DEMONSTRATION in self.step.metadata


def policy_batches(
    episodes: Sequence[Episode], roles: Mapping[str, RolePlan], policy_of: PolicyOf
) -> dict[str, list[RoleBatch]]:
    """The batches of a step, by policy; policies with nothing to learn are left out."""
    compared: dict[str, list[tuple[Episode, Trajectory]]] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            role = roles.get(trajectory.name)
            if role is not None and is_compared(trajectory, role):
                policy = policy_of(trajectory.name, trajectory.index)
                compared.setdefault(policy, []).append((episode, trajectory))
    weights = loss_weights(episodes, roles, policy_of)
    batches = {
        policy: role_batches(theirs, roles, {name: weights.get((policy, name), 0.0) for name in roles})
        for policy, theirs in compared.items()
    }
    return {policy: theirs for policy, theirs in batches.items() if theirs}


def role_batches(
    compared: Sequence[tuple[Episode, Trajectory]],
    roles: Mapping[str, RolePlan],
    weights: Mapping[str, float],
) -> list[RoleBatch]:
    """One policy's batches. Sequences whose advantages are all zero are left out: they have no gradient.

    `weights` are what each role's advantages count (`loss_weights`).
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
            for sequence in sequences(taught(episode, trajectory)):
                example, spans = datum(sequence, role.loss.name, weights[name])
                data.append(example)
                sampled.append(spans)
                steps += sum(teaches(own.values) for own in sequence)
        if data:
            batches.append(RoleBatch(name, role.loss, data, sampled, steps, rewritten))
    return batches


def taught(episode: Episode, trajectory: Trajectory) -> Iterator[StepAdvantages]:
    """The Steps of a trajectory with what each of their tokens counts; nothing where its turn is masked.

    Raises AdvantageError for a Step that should have an advantage, and has none.
    """
    uid = trajectory.uid or f"{episode.id}/{trajectory.node}"
    number = 0
    for turn in turns(trajectory):
        masked = any(step.masked for step in turn)
        for step in turn:
            where, length = f"{uid}, step {number}", len(step.response_ids)
            yield StepAdvantages(
                step, (0.0,) * length if masked else per_token(step.advantage, length, where), where
            )
            number += 1


def sequences(steps: Iterator[StepAdvantages]) -> Iterator[Sequence[StepAdvantages]]:
    """Steps that continue each other, token for token, up to the last of them that teaches anything."""
    run: list[StepAdvantages] = []
    for own in steps:
        if run and not own.alone and not run[-1].alone and continues(own.step, run[-1].step):
            run.append(own)
            continue
        yield from _teaching(run)
        run = [own]
    yield from _teaching(run)


def _teaching(run: Sequence[StepAdvantages]) -> Iterator[Sequence[StepAdvantages]]:
    last = max((place for place, own in enumerate(run, 1) if teaches(own.values)), default=0)
    if last:
        yield run[:last]


def continues(step: Step, before: Step) -> bool:
    """Whether a Step's prompt begins with all the tokens of the Step before it."""
    asked, answered = len(before.prompt_ids), len(before.response_ids)
    return (
        asked > 0
        and asked + answered <= len(step.prompt_ids)
        and list(step.prompt_ids[:asked]) == list(before.prompt_ids)
        and list(step.prompt_ids[asked : asked + answered]) == list(before.response_ids)
    )


def datum(
    sequence: Sequence[StepAdvantages], loss: LossName, share: float
) -> tuple[tinker.Datum, list[SampledSpan]]:
    """One sequence's Datum, and what was sampled of it. Raises UsageError for a Step without tokens."""
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
        if not teaches(values):
            sampled = ()
        elif not step.prompt_ids or not response:
            raise UsageError(
                f"{where} has no token ids, so nothing can be learnt from it; use a tinker or local model"
            )
        elif loss != "cross_entropy" and len(sampled) != len(response):
            raise UsageError(f"{where} has {len(sampled)} log-probabilities for {len(response)} tokens")
        asked = [0.0] * (len(step.prompt_ids) - len(tokens))
        if sampled:
            spans.append(SampledSpan(len(step.prompt_ids) - 1, sampled))
        weights += [*asked, *(value * share for value in values)]
        logprobs += [*asked, *(sampled or [0.0] * len(response))]
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
    """Whether a chat template has written what was said before in other tokens than it was said in."""
    earlier = [_said(message) for message in before.chat_completions]
    now = [_said(message) for message in step.chat_completions[: len(earlier)]]
    return bool(step.prompt_ids) and bool(earlier) and now == earlier and not continues(step, before)


def _said(message: Mapping[str, object]) -> tuple[object, object]:
    return message.get("role"), message.get("content")


def _integers(values: list[int]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="int64", shape=[len(values)])


def _floats(values: list[float]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="float32", shape=[len(values)])
