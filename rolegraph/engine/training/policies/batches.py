"""Batches of Tinker Datums, made from episodes with advantages, and the passes of an update. Pure.

A Datum is a sequence of tokens shifted by one: input [L-1], targets [L-1], and for each target the sampling
log-probability and the advantage (or weight), both 0 on tokens that the model did not sample. Steps whose
prompt continues the step before, token for token, are one sequence, so that its prefix is computed once.

The loop counts on losses that are sums over tokens; `ServiceTraits` say where a service differs, and
`loss_passes` makes up for that, so that every service computes the same gradient.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.service_traits import ServiceTraits, unmet_needs
from rolegraph.engine.models.tinker_sdk import tinker
from rolegraph.engine.records import Episode, Step, Trajectory
from rolegraph.engine.training.advantages.group_metrics import any_nonzero
from rolegraph.engine.training.advantages.ledger import Ledger
from rolegraph.engine.training.advantages.per_token import per_token
from rolegraph.engine.vocabulary import Loss, LossSequence, require_library

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any


class SampledSpan(NamedTuple):
    """Sampled tokens of one response in a datum: the first position, and the log-probabilities."""

    start: int
    """Index of the first sampled token among the datum's targets."""
    logprobs: Sequence[float]
    """Sampling log-probabilities, [T]."""


class ComparedMember(NamedTuple):
    """Group and reward by which a sequence of tokens is compared, for custom losses."""

    group: int
    """Number of the group in the step."""
    member: int
    """Number of the compared trajectory or turn in the step."""
    reward: float | None
    """Reward of the member in the group."""


@dataclass(slots=True)
class RoleBatch:
    """Datums of one role in one training step."""

    role: str
    loss: Loss
    data: list[tinker.Datum] = field(default_factory=list["tinker.Datum"])
    sampled: list[Sequence[SampledSpan]] = field(default_factory=list[Sequence[SampledSpan]])
    """Spans with a gradient, for each datum; empty for demonstrations."""
    steps: int = 0
    """Number of Steps with a nonzero advantage."""
    rewritten: int = 0
    """Number of Steps that continue the previous Step's messages, but not its tokens."""
    share: float = 1.0
    """Weight of one trajectory in the policy's loss; the advantages already include the weight if the service
    computes the loss."""
    trajectories: int = 0
    """Number of compared trajectories."""
    comparisons: list[ComparedMember] = field(default_factory=list[ComparedMember])
    """Group of each datum, for a custom loss."""
    starts: Sequence[Sequence[float]] = ()
    """Log-probabilities [T] of each datum under the policy's starting weights, for a loss that reads them."""

    @property
    def mass(self) -> float:
        """Sum of |advantage| over tokens, weighted by the role's loss weight."""
        key = "weights" if self.loss.name == "cross_entropy" else "advantages"
        total = float(sum(np.abs(datum.loss_fn_inputs[key].data).sum() for datum in self.data))
        return total * (1.0 if self.loss.compute is None else self.share)

    @property
    def part(self) -> float:
        """Share of the role in the policy's loss, a mean over trajectories: 1 if the policy has one role."""
        return self.share * self.trajectories

    def sequence(self, index: int, logprobs: Tensor) -> LossSequence:
        """Return a datum in the form that a custom loss reads.

        Args:
            index: Index of the datum.
            logprobs: Log-probabilities of its targets, [T].
        """
        inputs, compared = self.data[index].loss_fn_inputs, self.comparisons[index]
        mask = np.zeros(len(logprobs))
        for start, span_logprobs in self.sampled[index]:
            mask[start : start + len(span_logprobs)] = 1.0
        arrays = (inputs["logprobs"].data, inputs["advantages"].data, mask.tolist())
        sampling, advantages, is_counted = (logprobs.new_tensor(list(values)) for values in arrays)
        start_logprobs = None
        if self.starts:
            start_logprobs = logprobs.new_tensor((np.array(self.starts[index]) * mask).tolist())
        return LossSequence(logprobs, sampling, advantages, is_counted, start_logprobs, **compared._asdict())


class StepAdvantages(NamedTuple):
    """Recorded Step with the advantages of its response tokens."""

    step: Step
    values: Sequence[float]
    """Advantages [T]; zeros for a masked turn."""
    where: str
    """Description of the step, for messages."""
    is_read: bool = False
    """True where a custom loss reads the tokens, whatever their advantages."""
    turn: int = 0
    """Number of the turn, for a custom loss that compares turns and so has a sequence for each turn.

    For other losses it is 0: turns that continue each other are one sequence.
    """

    @property
    def counts(self) -> bool:
        """True where the loss reads the response's tokens."""
        return self.is_read or any_nonzero(self.values)


def policy_batches(ledger: Ledger) -> dict[str, list[RoleBatch]]:
    """Return one training step's datums, by policy; policies without a nonzero advantage are left out.

    Args:
        ledger: The step's ledger, with advantages; tasks that the update does not use are left out.

    Raises:
        AdvantageError: For a Step without an advantage.
        UsageError: For a Step with an advantage, but without token ids or log-probabilities.
    """
    batches: dict[str, dict[str, RoleBatch]] = {}
    has_custom_loss = any(role.loss.compute for role in ledger.roles.values())
    comparisons = _comparisons(ledger) if has_custom_loss else {}
    for number, episode, learner_trajectory, role, policy, _ in ledger.used:
        trajectory = ledger.filled(number, learner_trajectory)
        share, is_custom = ledger.loss_weights[policy, role.name], role.loss.compute is not None
        if not share:  # a role of weight 0 in this step
            continue
        new_batch = RoleBatch(role.name, role.loss, share=share)
        batch = batches.setdefault(policy, {}).setdefault(role.name, new_batch)
        batch.trajectories += 1
        batch.rewritten += sum(_is_rewritten(step, previous) for previous, step in pairwise(trajectory.steps))
        for sequence in token_sequences(step_advantages(episode, trajectory, role)):
            datum, spans = build_datum(sequence, role.loss.name, 1.0 if is_custom else share)
            if is_custom:
                round = sequence[0].step.round if role.compares_turns else 0
                batch.comparisons.append(comparisons[number, round])
            batch.data.append(datum)
            batch.sampled.append(spans)
            batch.steps += sum(any_nonzero(entry.values) for entry in sequence)
    by_policy = {
        policy: [by_role[name] for name in ledger.roles if name in by_role and by_role[name].data]
        for policy, by_role in batches.items()
    }
    return {policy: role_batches for policy, role_batches in by_policy.items() if role_batches}


def _comparisons(ledger: Ledger) -> dict[tuple[int, int], ComparedMember]:
    """Return the group and reward of each compared trajectory or turn, by number of the trajectory and
    round."""
    members = [(group.number, group.members[n]) for group in ledger.groups for n in group.places]
    return {
        (member.number, member.round): ComparedMember(group, index, member.reward)
        for index, (group, member) in enumerate(members)
    }


def step_advantages(
    episode: Episode, trajectory: Trajectory, role: RolePlan | None = None
) -> Iterator[StepAdvantages]:
    """Yield a trajectory's Steps with their advantages [T].

    The advantages are zeros for turns that are masked or in no group, and for answers without usable
    log-probabilities.

    Raises:
        AdvantageError: For any other Step without an advantage.
    """
    by_key = role is not None and any(grouping.key is not None for grouping in role.groupings)
    uid = trajectory.uid or f"{episode.id}/{trajectory.node}"
    masked_rounds = {step.round for step in trajectory.steps if step.masked}
    for index, step in enumerate(trajectory.steps):
        label, length = f"{uid}, step {index}", len(step.response_ids)
        is_unusable = step.is_unusable and "demonstration" not in step.metadata
        is_zero = is_unusable or step.round in masked_rounds or (by_key and step.advantage is None)
        values = (0.0,) * length if is_zero else per_token(step.advantage, length, label)
        is_read = role is not None and role.loss.compute is not None and not is_zero
        turn = step.round if role is not None and is_read and role.compares_turns else 0
        yield StepAdvantages(step, values, label, is_read, turn)


def token_sequences(steps: Iterator[StepAdvantages]) -> Iterator[Sequence[StepAdvantages]]:
    """Yield runs of consecutive Steps that fit in one datum: each prompt extends the tokens of the previous
    Step.

    Steps after the last that the loss reads are left out.
    """
    runs: list[list[StepAdvantages]] = []
    for step in steps:
        previous = runs[-1][-1] if runs else None
        # A demonstration is learnt in place of the sampled answer, so that no Step continues it.
        is_sampled = previous and not any("demonstration" in s.step.metadata for s in (previous, step))
        if previous and is_sampled and previous.turn == step.turn and continues(step.step, previous.step):
            runs[-1].append(step)
        else:
            runs.append([step])
    for run in runs:
        if length := max((ordinal for ordinal, step in enumerate(run, 1) if step.counts), default=0):
            yield run[:length]


def continues(step: Step, before: Step) -> bool:
    """Return True if a Step's prompt begins with all tokens of the Step before."""
    prompt_length, response_length = len(before.prompt_ids), len(before.response_ids)
    return (
        prompt_length > 0
        and prompt_length + response_length <= len(step.prompt_ids)
        and list(step.prompt_ids[:prompt_length]) == list(before.prompt_ids)
        and list(step.prompt_ids[prompt_length : prompt_length + response_length])
        == list(before.response_ids)
    )


def build_datum(
    sequence: Sequence[StepAdvantages], loss: str, share: float
) -> tuple[tinker.Datum, list[SampledSpan]]:
    """Build the Datum of a sequence.

    Args:
        sequence: Steps that continue each other.
        loss: Name of the loss, which decides the Datum's inputs.
        share: Factor of the advantages.

    Returns:
        The Datum, and its spans of sampled tokens that the loss reads.

    Raises:
        UsageError: For a Step without token ids, or without a log-probability for each token.
    """
    tokens, weights, logprobs = array("i"), array("d"), array("d")
    spans: list[SampledSpan] = []
    for step_values in sequence:
        step, values, label = step_values[:3]
        response: Sequence[int] = step.response_ids
        sampled: Sequence[float] = step.logprobs
        if (demonstration := step.metadata.get("demonstration")) is not None:
            response, sampled = demonstration["ids"], ()
            values = (values[0],) * len(response)
        if not step_values.counts:
            sampled = ()
        elif not step.prompt_ids or not response:
            raise UsageError(
                f"{label} has no token ids, so nothing can be learnt from it; use a tinker or local model"
            )
        elif loss != "cross_entropy" and len(sampled) != len(response):
            raise UsageError(f"{label} has {len(sampled)} log-probabilities for {len(response)} tokens")
        # The tokens so far are the beginning of this Step's prompt; its remainder was not sampled.
        padding = [0.0] * (len(step.prompt_ids) - len(tokens))
        if sampled:
            spans.append(SampledSpan(len(step.prompt_ids) - 1, sampled))
        weights.extend((*padding, *(value * share for value in values)))
        logprobs.extend((*padding, *(sampled or [0.0] * len(response))))
        tokens = array("i", (*step.prompt_ids, *response))
    inputs = {"target_tokens": _tensor(tokens[1:], "int64")}
    if loss == "cross_entropy":
        inputs["weights"] = _tensor(weights[1:])
    else:
        inputs["logprobs"] = _tensor(logprobs[1:])
        inputs["advantages"] = _tensor(weights[1:])
    if loss == "gspo":
        mask = np.zeros(len(tokens) - 1)
        for start, sampled in spans:
            mask[start : start + len(sampled)] = 1.0
        inputs["sequence_ratio_mask"] = _tensor(mask)
    # `from_ints` would make a list.
    chunk = tinker.EncodedTextChunk.model_construct(tokens=tokens[:-1])
    model_input = tinker.ModelInput(chunks=[chunk])
    return tinker.Datum(model_input=model_input, loss_fn_inputs=inputs), spans


def _is_rewritten(step: Step, before: Step) -> bool:
    """Return True if a step repeats the messages of the step before, but in other tokens."""
    earlier_messages, sent = (
        [(message.get("role"), message.get("content")) for message in call.chat_completions]
        for call in (before, step)
    )
    extends = bool(step.prompt_ids and earlier_messages) and sent[: len(earlier_messages)] == earlier_messages
    return extends and not continues(step, before)


def _tensor(values: ArrayLike, dtype: Literal["int64", "float32"] = "float32") -> tinker.TensorData:
    numbers = np.asarray(values, dtype)
    return tinker.TensorData(data=numbers, dtype=dtype, shape=[len(numbers)])


@dataclass(frozen=True, slots=True)
class LossPass:
    """Arguments of one `forward_backward` call: loss, settings and datums."""

    loss: str
    settings: Mapping[str, float]
    data: Sequence[tinker.Datum]


def loss_passes(batches: Sequence[RoleBatch], traits: ServiceTraits) -> list[LossPass]:
    """Return the passes of one update, a pass for each batch whose loss the service computes.

    Thresholds are always given, because services have different defaults.

    Args:
        batches: The batches of one policy between two optimizer steps.
        traits: Behaviour of the policy's service.
    """
    total = sum(len(batch.data) for batch in batches)
    passes: list[LossPass] = []
    for batch in batches:
        if batch.loss.compute is not None:
            continue
        loss, data, settings = batch.loss.name, batch.data, batch.loss.settings
        if traits.takes_means:  # by the number of all datums and by each one's length
            data = [_scaled(datum, total) for datum in data]
            if loss == "cross_entropy":
                settings = {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0}
        passes.append(LossPass(_sent_loss(loss, traits), settings, data))
    return passes


def _sent_loss(loss: str, traits: ServiceTraits) -> str:
    """Return the loss name to send to a service so that it computes `loss`: cispo for a cross-entropy of
    means.

    A service of means divides a cross-entropy by the sum of the weights, which no factor restores. The
    gradient of CISPO with both thresholds at 1 is that of a cross-entropy, whatever the sampling
    log-probabilities.
    """
    return "cispo" if traits.takes_means and loss == "cross_entropy" else loss


def _scaled(datum: tinker.Datum, total: int) -> tinker.Datum:
    inputs = dict(datum.loss_fn_inputs)
    advantages = inputs.pop("weights", None) or inputs["advantages"]
    values = np.asarray(advantages.data, np.float64)
    inputs["advantages"] = _tensor(values * len(values) * total)
    inputs.setdefault("logprobs", _tensor(np.zeros(len(values))))
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def check_service(plan: Plan, policy: str, url: str, traits: ServiceTraits) -> None:
    """Check that a policy's service trains as the plan says.

    Raises:
        UsageError: The service lacks a trait that the plan needs, or a library for custom losses is not
            installed.
    """
    roles = [role for role in plan.trained.values() if policy in plan.policies_of(role.name)]
    complaints = [
        f"computes the loss {role.loss.name} of {role.name} otherwise; it has {', '.join(traits.losses)}"
        for role in roles
        if role.loss.compute is None and _sent_loss(role.loss.name, traits) not in traits.losses
    ]
    custom_roles = [role for role in roles if role.loss.compute is not None]
    if custom_roles:  # the SDK differentiates them
        require_library("torch", "local", "custom losses, such as " + custom_roles[0].loss.name)
    if traits.takes_means or "cross_entropy" not in traits.losses:
        complaints += [
            f"cannot train {role.name} with {role.loss.name}: the gradient of a custom loss is sent as a "
            f"cross_entropy of sums, which the service lacks; it has {', '.join(traits.losses)}"
            for role in custom_roles
        ]
    complaints += [need.message for need in unmet_needs(plan, traits, policy) if need.severity == "error"]
    if complaints:
        raise UsageError("\n".join(f"the service at {url} {complaint}" for complaint in complaints))
