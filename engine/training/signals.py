"""Asks teachers and writes demonstrations: episodes go in, the same with their signals' advantages come out.

A reverse KL sets a number for each response token. A demonstration sets the turn to imitate beside the one
that was sampled, and what its tokens count. Runs after an episode is over, so nothing of it leaks into one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.compile.plan import Plan, SignalPlan
from engine.errors import AdvantageError, ModelError, WorldError
from engine.models.limit import retrying
from engine.prompts.sandbox import PromptError
from engine.records import Episode, Step, Trajectory
from engine.spec.models import ModelRef
from engine.vocabulary import ScoredView, Views

DEMONSTRATION = "demonstration"
"""The key of a Step's metadata that holds the turn to imitate: `text` and `ids`."""


class Scorer(Protocol):
    """A model that says how likely given tokens are."""

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        """Log-probabilities of the response tokens, [T]; raises ModelError."""
        ...


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model with a limit on how many calls are under way."""

    model: Scorer
    slots: asyncio.Semaphore

    async def logprobs(self, step: Step) -> Sequence[float]:
        """Log-probabilities of a step's response tokens, [T]; raises ModelError."""
        async with self.slots:
            return await retrying()(self.model.logprobs, step.prompt_ids, step.response_ids)


@dataclass(slots=True)
class Signalled:
    """Episodes whose signals are set, and what was seen on the way."""

    episodes: list[Episode]
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    warnings: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Tally:
    """What one role's signal came to in a batch."""

    gaps: list[float] = field(default_factory=list[float])
    """log p_student - log p_teacher of each token."""
    seen: Counter[str] = field(default_factory=Counter[str])


async def apply_signals(
    plan: Plan,
    episodes: Sequence[Episode],
    teachers: Mapping[ModelRef, Teacher],
    encode: Callable[[str], Sequence[int]],
) -> Signalled:
    """Set the advantages of every trainable role that has a signal. `encode` gives a turn's token ids.

    A demonstration that cannot be written for a row is warned of and counted, and teaches nothing there.
    Raises WorldError for a teacher that does not answer, AdvantageError for a signal that raises; both name
    role, task and step.
    """
    done = Signalled(list(episodes))
    tallies: defaultdict[str, _Tally] = defaultdict(_Tally)
    signals = plan.signals
    if not signals:
        return done

    async def trajectory(episode: Episode, own: Trajectory) -> Trajectory:
        signal = signals.get(own.name)
        if signal is None:
            return own
        where = f"{own.name} {own.index}, task {episode.task_id}, rollout {episode.rollout_idx}"
        steps: list[Step] = []
        for number, step in enumerate(own.steps):
            here, tally = f"{where}, step {number}", tallies[own.name]
            if signal.demonstration is not None:
                steps.append(_imitate(plan, signal, episode, step, encode, here, tally, done.warnings))
            else:
                steps.append(await _score(signal, teachers, step, here, tally))
        return replace(own, steps=tuple(steps))

    async def whole(episode: Episode) -> Episode:
        found = await asyncio.gather(*(trajectory(episode, own) for own in episode.trajectories))
        return replace(episode, trajectories=tuple(found))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(whole(episode)) for episode in episodes]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    done.episodes = [task.result() for task in tasks]
    for name, tally in tallies.items():
        if tally.gaps:
            done.metrics[f"signal/{name}/reverse_kl"] = sum(tally.gaps) / len(tally.gaps)
        for what, count in tally.seen.items():
            done.metrics[f"signal/{name}/{what}"] = float(count)
    return done


async def _score(
    signal: SignalPlan, teachers: Mapping[ModelRef, Teacher], step: Step, where: str, tally: _Tally
) -> Step:
    assert signal.advantages is not None
    theirs: Sequence[float] | None = None
    if signal.teacher is not None:
        try:
            theirs = await teachers[signal.teacher].logprobs(step)
        except ModelError as error:
            raise WorldError(f"the teacher gives no log-probabilities for {where}: {error}") from error
        tally.gaps += [own - other for own, other in zip(step.logprobs, theirs, strict=False)]
    try:
        values = tuple(map(float, signal.advantages(step, theirs)))
    except Exception as error:  # a signal may be a package's own code
        raise AdvantageError(f"the signal of {where} raised {type(error).__name__}: {error}") from error
    return replace(step, advantage=values)


def _imitate(
    plan: Plan,
    signal: SignalPlan,
    episode: Episode,
    step: Step,
    encode: Callable[[str], Sequence[int]],
    where: str,
    tally: _Tally,
    warnings: list[str],
) -> Step:
    assert signal.demonstration is not None
    variables: dict[str, object] = {"task": episode.task}
    for other in plan.roles:
        views = [_view(t) for t in episode.trajectories if t.name == other.name and t.steps]
        variables[other.name] = Views(views)
    try:
        text = signal.demonstration.render(variables).strip()
    except PromptError as error:
        tally.seen["demonstrations_failed"] += 1
        warnings.append(f"the demonstration for {where} cannot be written: {error}")
        text = ""
    if not text:
        return replace(step, advantage=0.0)
    tally.seen["demonstrations"] += 1
    shown = {"text": text, "ids": list(encode(text))}
    return replace(step, advantage=signal.weight, metadata={**step.metadata, DEMONSTRATION: shown})


def _view(own: Trajectory) -> ScoredView:
    last = own.steps[-1]
    return ScoredView(
        own.index, own.action, last.model_response, last.thought, own.reward or 0.0, own.is_correct
    )
