"""Asks teachers and writes demonstrations: episodes go in, the advantages that signals set come out.

A reverse KL sets a number for each response token. A demonstration sets the turn to imitate beside the one
that was sampled, and what its tokens count. Runs after an episode is over, so nothing of it leaks into one.
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
"""The key of a Step's metadata that holds the turn to imitate: `text` and `ids`."""


@dataclass(slots=True)
class SignalResult:
    """What signals say of some episodes, and what was seen on the way."""

    advantages: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """By a trajectory's uid, for each of its steps."""
    details: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict[str, list[Mapping[str, Any]]])
    """What belongs into the steps' metadata: the turn to imitate."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    warnings: list[Note] = field(default_factory=list[Note])


@dataclass(slots=True)
class _Tally:
    """What one role's signal came to in a batch."""

    gaps: list[float] = field(default_factory=list[float])
    """log p_student - log p_teacher of each token."""
    seen: Counter[str] = field(default_factory=Counter[str])


async def apply_signals(
    plan: Plan,
    episodes: Sequence[Episode],
    teachers: Mapping[ModelRef, LimitedModel],
    encode: Mapping[str, Callable[[str], Sequence[int]]],
) -> SignalResult:
    """The advantages of every trainable role that has a signal. `encode` gives a turn's token ids, by policy.

    A demonstration that cannot be written for a row is warned of and counted, and teaches nothing there.
    Raises WorldError for a teacher that does not answer, AdvantageError for a signal that raises; both name
    role, task and step.
    """
    done = SignalResult()
    tallies: defaultdict[str, _Tally] = defaultdict(_Tally)
    signals = plan.signals

    async def trajectory(episode: Episode, learner: Trajectory, signal: SignalPlan) -> None:
        where = f"{learner.name} {learner.index}, task {episode.task_id}, rollout {episode.rollout}"
        advantages = done.advantages[learner.uid] = []
        details = done.details[learner.uid] = []
        for number, step in enumerate(learner.steps):
            here, tally = f"{where}, step {number}", tallies[learner.name]
            if signal.demonstration is None:
                advantages.append(await _score(signal, teachers, step, where=here, tally=tally))
                details.append({})
                continue
            text = _demonstrate(
                plan, signal.demonstration, episode, where=here, tally=tally, warnings=done.warnings
            )
            advantages.append(signal.signal.weight if text else 0.0)
            ids = list(encode[plan.policy_of(learner.name, learner.index)](text)) if text else []
            details.append({DEMONSTRATION: {"text": text, "ids": ids}} if text else {})

    try:
        async with asyncio.TaskGroup() as group:
            for episode in episodes:
                for learner in episode.trajectories:
                    if learner.name in signals:
                        group.create_task(trajectory(episode, learner, signals[learner.name]))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    for name, tally in tallies.items():
        if tally.gaps:
            done.metrics[f"signal/{name}/reverse_kl"] = sum(tally.gaps) / len(tally.gaps)
        for what, count in tally.seen.items():
            done.metrics[f"signal/{name}/{what}"] = float(count)
    return done


async def _score(
    signal: SignalPlan, teachers: Mapping[ModelRef, LimitedModel], step: Step, *, where: str, tally: _Tally
) -> tuple[float, ...]:
    compute = signal.signal.advantages
    assert compute is not None
    theirs: Sequence[float] | None = None
    if signal.teacher is not None:
        try:
            theirs = await teachers[signal.teacher].logprobs(step.prompt_ids, step.response_ids)
        except ModelError as error:
            raise WorldError(f"the teacher gives no log-probabilities for {where}: {error}") from error
        tally.gaps += [student - teacher for student, teacher in zip(step.logprobs, theirs, strict=False)]
    try:
        return tuple(map(float, compute(step, theirs)))
    except FOREIGN_ERRORS as error:  # a signal may be a package's own code
        raise AdvantageError(f"the signal of {where} raised {describe_error(error)}") from error


def _demonstrate(
    plan: Plan, template: Template, episode: Episode, *, where: str, tally: _Tally, warnings: list[Note]
) -> str:
    """The turn to imitate; empty where there is none."""
    variables: dict[str, object] = {"task": episode.task}
    for role in plan.roles:
        finished = [t for t in episode.trajectories if t.name == role.name and t.steps]
        variables[role.name] = Views(list(map(_view, finished)))
    try:
        text = template.render(variables).strip()
    except PromptError as error:
        tally.seen["demonstrations_failed"] += 1
        text = f"the demonstration for {where} cannot be written: {error}"
        warnings.append(Note(text, "warning", "demonstrations"))
        return ""
    if text:
        tally.seen["demonstrations"] += 1
    return text


def _view(trajectory: Trajectory) -> ScoredView:
    last = trajectory.steps[-1]
    return ScoredView(
        index=trajectory.index,
        action=trajectory.action,
        response=last.model_response,
        thought=last.thought,
        reward=trajectory.reward or 0.0,
        is_correct=trajectory.is_correct,
    )
