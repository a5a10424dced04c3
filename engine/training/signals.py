"""Advantages from signals: log-probabilities of teachers, and demonstrations.

A reverse KL gives an advantage to each response token. A demonstration gives a turn to imitate in place of
the sampled one, and the weight of its tokens. Signals run after an episode is over, so that nothing of them
can leak into it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.role_plan import SignalPlan
from rolegraph.engine.errors import AdvantageError, ModelError, WorldError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.prompts import SELF, PromptError, Template
from rolegraph.engine.records import Advantage, Episode, Note, Step, Trajectory
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.credit import compared_rounds
from rolegraph.engine.training.group_metrics import spread
from rolegraph.engine.training.precomputed import per_token
from rolegraph.engine.vocabulary import ScoredView, Views
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error

DEMONSTRATION = "demonstration"
"""Key of a Step's metadata with the turn to imitate: `text` and `ids`."""
Lineages = Mapping[tuple[str, int], Sequence[int]]
"""Lineage of an instance, by its role and index."""


@dataclass(slots=True)
class SignalResult:
    """Advantages from the signals of some episodes, with metrics and warnings."""

    advantages: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """Advantages of each step, by trajectory uid, of roles that learn from their signal alone."""
    added: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """The same of roles whose estimator sets advantages as well; 0 for a step in no group."""
    details: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict[str, list[Mapping[str, Any]]])
    """Additions to each step's metadata, the turn to imitate or the mean of `added`, by trajectory uid."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    warnings: list[Note] = field(default_factory=list[Note])


class _ScoredStep(NamedTuple):
    """Step with advantages from a signal, by its place in a SignalResult."""

    uid: str
    number: int


@dataclass(slots=True)
class _SignalTally:
    """Running totals of one role's signal over a batch."""

    log_ratios: list[float] = field(default_factory=list[float])
    """log p_student - log p_teacher of each token; their mean estimates the reverse KL divergence."""
    counts: Counter[str] = field(default_factory=Counter[str])
    steps: list[_ScoredStep] = field(default_factory=list[_ScoredStep])
    """Steps with an advantage for each token, which the loss reads."""


async def apply_signals(
    plan: Plan,
    episodes: Sequence[Episode],
    teachers: Mapping[ModelRef, LimitedModel],
    encode: Mapping[str, Callable[[str], Sequence[int]]],
) -> SignalResult:
    """Compute the advantages of every trained role that has a signal.

    A demonstration whose template fails gives a warning and the advantage 0. A centered signal's mean is over
    the tokens of the turns that are in a group and not masked.

    Args:
        plan: the plan.
        episodes: finished episodes.
        teachers: open models of the plan's teachers.
        encode: for each policy, a function from the text of a turn to its token ids.

    Raises:
        WorldError: for a teacher that does not answer; names role, task and step.
        AdvantageError: for a signal that raises; names role, task and step.
    """
    result = SignalResult()
    tallies: defaultdict[str, _SignalTally] = defaultdict(_SignalTally)
    roles, signals = plan.trained, plan.signals
    is_read = any(signal.demonstration for signal in signals.values())
    lineages = {node.id[:2]: node.lineage for node in plan.nodes} if is_read else {}

    async def apply(episode: Episode, learner: Trajectory, signal: SignalPlan) -> None:
        where = f"{learner.name} {learner.index}, task {episode.task_id}, rollout {episode.rollout}"
        role, tally = roles[learner.name], tallies[learner.name]
        advantages = (result.added if role.adds_signal else result.advantages)[learner.uid] = []
        details = result.details[learner.uid] = []
        learnt = compared_rounds(episode, learner, role)
        ref = plan.teacher_of(learner.name, learner.index)
        teacher = None if ref is None else teachers[ref]
        for number, step in enumerate(learner.steps):
            step_name = f"{where}, step {number}"
            before_answer = signal.demonstration is not None and _is_continued(learner, number)
            if role.adds_signal and (before_answer or step.round not in learnt):
                advantages.append(0.0)
                details.append({})
                continue
            if signal.demonstration is None:
                values = await _score(signal, teacher, step, where=step_name, tally=tally)
                if role.adds_signal:
                    _check_values(values, step, step_name)
                if step.round in learnt:
                    tally.steps.append(_ScoredStep(learner.uid, number))
                advantages.append(values)
                details.append({})
                continue
            text = _demonstrate(
                plan,
                signal.demonstration,
                episode,
                _turn_view(learner, step, lineages),
                lineages,
                where=step_name,
                tally=tally,
                warnings=result.warnings,
            )
            advantages.append(signal.signal.weight if text else 0.0)
            ids = list(encode[plan.policy_of(learner.name, learner.index)](text)) if text else []
            details.append({DEMONSTRATION: {"text": text, "ids": ids}} if text else {})

    try:
        async with asyncio.TaskGroup() as group:
            for episode in episodes:
                for learner in episode.trajectories:
                    if learner.name in signals and not plan.is_past(learner.name, learner.index):
                        group.create_task(apply(episode, learner, signals[learner.name]))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    for name, tally in tallies.items():
        _center_and_measure(roles[name], tally, result)
        if tally.log_ratios:
            result.metrics[f"signal/{name}/reverse_kl"] = math.fsum(tally.log_ratios) / len(tally.log_ratios)
        for event, count in tally.counts.items():
            result.metrics[f"signal/{name}/{event}"] = float(count)
    return result


def _is_continued(trajectory: Trajectory, number: int) -> bool:
    """Return whether the step with a number, from 0, is followed by another call of its turn."""
    steps = trajectory.steps
    return number + 1 < len(steps) and steps[number + 1].round == steps[number].round


def _center_and_measure(role: RolePlan, tally: _SignalTally, result: SignalResult) -> None:
    """Subtract the mean of a centered signal, and measure advantages that are added to an estimator's."""
    found = result.added if role.adds_signal else result.advantages
    tally.steps.sort()  # teachers answer in any order, and a sum's rounding depends on the order
    arrays = [np.array(found[uid][number], dtype=np.float64) for uid, number in tally.steps]
    if not sum(map(len, arrays)):
        return
    values = np.concatenate(arrays)
    if role.signal is not None and role.signal.signal.center:
        mean = values.mean()
        values -= mean
        for (uid, number), array in zip(tally.steps, arrays, strict=True):
            found[uid][number] = tuple((array - mean).tolist())
    if role.adds_signal:
        for uid, number in tally.steps:
            result.details[uid][number] = {"signal": float(np.mean(found[uid][number] or 0.0))}
        result.metrics |= spread(f"signal/{role.name}/advantage", values)


async def _score(
    signal: SignalPlan,
    teacher: LimitedModel | None,
    step: Step,
    *,
    where: str,
    tally: _SignalTally,
) -> tuple[float, ...]:
    """Return a step's advantages [T] by its signal, from the teacher's log-probabilities if it has one."""
    compute = signal.signal.advantages
    assert compute is not None
    teacher_logprobs: Sequence[float] | None = None
    if teacher is not None:
        try:
            teacher_logprobs = await teacher.logprobs(step.prompt_ids, step.response_ids)
        except ModelError as error:
            raise WorldError(f"the teacher gives no log-probabilities for {where}: {error}") from error
        tally.log_ratios += [p - q for p, q in zip(step.logprobs, teacher_logprobs, strict=False)]
    try:
        return tuple(map(float, compute(step, teacher_logprobs)))
    except FOREIGN_ERRORS as error:  # a signal may be code of a package
        raise AdvantageError(f"the signal of {where} raised {describe_error(error)}") from error


def _check_values(values: Sequence[float], step: Step, where: str) -> None:
    """Raise AdvantageError unless there is a finite number for each response token."""
    length = len(step.response_ids)
    if len(per_token(values, length, where)) != length:
        raise AdvantageError(f"the signal of {where} gave {len(values)} advantages for {length} tokens")


def _demonstrate(
    plan: Plan,
    template: Template,
    episode: Episode,
    own: ScoredView,
    lineages: Lineages,
    *,
    where: str,
    tally: _SignalTally,
    warnings: list[Note],
) -> str:
    """Render the turn to imitate; empty for a failed template, which is warned of, and for an empty text."""
    variables: dict[str, object] = {"task": episode.task, SELF: own}
    for role in plan.roles:
        finished = [t for t in episode.trajectories if t.name == role.name and t.steps]
        skipped = ScoredView(1, role.parser.default, "", "", 0.0, False, ran=False, role=role.name)
        variables[role.name] = Views(
            [_view(t, lineages) for t in finished], skipped if role.count == 1 else None
        )
    try:
        text = template.render(variables).strip()
    except PromptError as error:
        tally.counts["demonstrations_failed"] += 1
        text = f"the demonstration for {where} cannot be written: {error}"
        warnings.append(Note(text, "warning", "demonstrations"))
        return ""
    if text:
        tally.counts["demonstrations"] += 1
    return text


def _view(trajectory: Trajectory, lineages: Lineages) -> ScoredView:
    """Return the fields of a trajectory for a demonstration's template: its last turn, and its reward."""
    return _turn_view(trajectory, trajectory.steps[-1], lineages)._replace(
        action=trajectory.action, reward=trajectory.reward or 0.0
    )


def _turn_view(trajectory: Trajectory, step: Step, lineages: Lineages) -> ScoredView:
    """Return the fields of the turn of a step for a demonstration's template, with the turn's own reward."""
    turn = [each for each in trajectory.steps if each.round == step.round]
    last, its = turn[-1], [each for each in turn if not each.tool]
    return ScoredView(
        index=trajectory.index,
        action=last.action,
        response=last.model_response,
        thought=last.thought,
        reward=last.reward,
        is_correct=trajectory.is_correct,
        round=last.round,
        lineage=lineages.get(trajectory.node[:2], ()),
        role=trajectory.name,
        tokens=sum(step.response_tokens for step in its),
        calls=len(its),
    )
