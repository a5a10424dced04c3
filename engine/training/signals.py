"""Advantages from signals: log-probabilities of teachers, and demonstrations.

A reverse KL gives an advantage to each response token. A demonstration gives a turn to imitate in place of
the sampled one, and the weight of its tokens. Signals run after an episode is over, so that nothing of them
can leak into it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.plan import SignalPlan
from rolegraph.engine.errors import AdvantageError, ModelError, WorldError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.prompts import PromptError, Template
from rolegraph.engine.records import Advantage, Episode, Note, Step, Trajectory
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.vocabulary import ScoredView, Views
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error

DEMONSTRATION = "demonstration"
"""Key of a Step's metadata with the turn to imitate: `text` and `ids`."""


@dataclass(slots=True)
class SignalResult:
    """Advantages from the signals of some episodes, with metrics and warnings."""

    advantages: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """Advantages of each step, by trajectory uid."""
    details: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict[str, list[Mapping[str, Any]]])
    """Additions to each step's metadata, the turn to imitate, by trajectory uid."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    warnings: list[Note] = field(default_factory=list[Note])


@dataclass(slots=True)
class _SignalTally:
    """Running totals of one role's signal over a batch."""

    log_ratios: list[float] = field(default_factory=list[float])
    """log p_student - log p_teacher of each token; their mean estimates the reverse KL divergence."""
    counts: Counter[str] = field(default_factory=Counter[str])


async def apply_signals(
    plan: Plan,
    episodes: Sequence[Episode],
    teachers: Mapping[ModelRef, LimitedModel],
    encode: Mapping[str, Callable[[str], Sequence[int]]],
) -> SignalResult:
    """Compute the advantages of every trained role that has a signal.

    A demonstration whose template fails gives a warning and the advantage 0.

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
    signals = plan.signals

    async def apply(episode: Episode, learner: Trajectory, signal: SignalPlan) -> None:
        where = f"{learner.name} {learner.index}, task {episode.task_id}, rollout {episode.rollout}"
        advantages = result.advantages[learner.uid] = []
        details = result.details[learner.uid] = []
        for number, step in enumerate(learner.steps):
            step_name, tally = f"{where}, step {number}", tallies[learner.name]
            if signal.demonstration is None:
                advantages.append(await _score(signal, teachers, step, where=step_name, tally=tally))
                details.append({})
                continue
            text = _demonstrate(
                plan, signal.demonstration, episode, where=step_name, tally=tally, warnings=result.warnings
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
        if tally.log_ratios:
            result.metrics[f"signal/{name}/reverse_kl"] = sum(tally.log_ratios) / len(tally.log_ratios)
        for event, count in tally.counts.items():
            result.metrics[f"signal/{name}/{event}"] = float(count)
    return result


async def _score(
    signal: SignalPlan,
    teachers: Mapping[ModelRef, LimitedModel],
    step: Step,
    *,
    where: str,
    tally: _SignalTally,
) -> tuple[float, ...]:
    """Return a step's advantages [T] by its signal, from the teacher's log-probabilities if it has one."""
    compute = signal.signal.advantages
    assert compute is not None
    teacher_logprobs: Sequence[float] | None = None
    if signal.teacher is not None:
        try:
            teacher_logprobs = await teachers[signal.teacher].logprobs(step.prompt_ids, step.response_ids)
        except ModelError as error:
            raise WorldError(f"the teacher gives no log-probabilities for {where}: {error}") from error
        tally.log_ratios += [p - q for p, q in zip(step.logprobs, teacher_logprobs, strict=False)]
    try:
        return tuple(map(float, compute(step, teacher_logprobs)))
    except FOREIGN_ERRORS as error:  # a signal may be code of a package
        raise AdvantageError(f"the signal of {where} raised {describe_error(error)}") from error


def _demonstrate(
    plan: Plan, template: Template, episode: Episode, *, where: str, tally: _SignalTally, warnings: list[Note]
) -> str:
    """Render the turn to imitate; empty for a failed template, which is warned of, and for an empty text."""
    variables: dict[str, object] = {"task": episode.task}
    for role in plan.roles:
        finished = [t for t in episode.trajectories if t.name == role.name and t.steps]
        variables[role.name] = Views(list(map(_view, finished)))
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


def _view(trajectory: Trajectory) -> ScoredView:
    """Return what a demonstration's template may read of a trajectory: its last turn, with its reward."""
    last = trajectory.steps[-1]
    its = [step for step in trajectory.steps if step.round == last.round and not step.tool]
    return ScoredView(
        index=trajectory.index,
        action=trajectory.action,
        response=last.model_response,
        thought=last.thought,
        reward=trajectory.reward or 0.0,
        is_correct=trajectory.is_correct,
        role=trajectory.name,
        tokens=sum(step.response_tokens for step in its),
        calls=len(its),
    )
