"""Advantages from signals: log-probabilities of teachers, and demonstrations.

A reverse KL gives an advantage to each response token. A demonstration gives a turn to imitate in place of
the sampled one, and the weight of its tokens. Signals run after an episode is over, so that nothing of them
can leak into it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import TeacherKey
from rolegraph.engine.compile.role_plan import SignalPlan, TeacherPlan
from rolegraph.engine.errors import (
    FOREIGN_ERRORS,
    AdvantageError,
    ContextFull,
    ModelError,
    WorldError,
    describe_error,
)
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.prompts import SELF, Expression, PromptError, Template
from rolegraph.engine.records import Advantage, Episode, Note, Step, StepMetadata, Trajectory
from rolegraph.engine.training.advantages.finished import FinishedEpisode
from rolegraph.engine.training.advantages.group_metrics import spread
from rolegraph.engine.training.advantages.per_token import per_token
from rolegraph.engine.training.advantages.teacher_prompts import StudentChat, teacher_prompt
from rolegraph.engine.vocabulary import UNKNOWN, Views
from rolegraph.engine.vocabulary.foreign import finite_number


@dataclass(slots=True)
class SignalResult:
    """Advantages from the signals of some episodes, with metrics and warnings."""

    advantages: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """Advantage of each step of a trajectory, by trajectory uid; only of roles that learn from their signal
    alone."""
    added: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """Advantage that a signal adds to an estimator's on each step of a trajectory, by trajectory uid; 0 for a
    step in no group."""
    details: dict[str, list[StepMetadata]] = field(default_factory=dict[str, list[StepMetadata]])
    """Entries to add to each step's metadata, by trajectory uid: the turn to imitate, or the gate and the
    mean of `added`."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    warnings: list[Note] = field(default_factory=list[Note])

    def alone(self, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory with the advantages of a role that learns from its signal alone."""
        if (advantages := self.advantages.get(trajectory.uid)) is None:
            return trajectory
        details = self.details[trajectory.uid]
        steps = (
            step._replace(advantage=advantage, metadata={**step.metadata, **detail})
            for step, advantage, detail in zip(trajectory.steps, advantages, details, strict=True)
        )
        return trajectory._replace(steps=tuple(steps))


@dataclass(slots=True)
class _SignalTally:
    """Running totals of one role's signal over a batch: log ratios, counts, and the steps that have
    advantages."""

    log_ratios: list[float] = field(default_factory=list[float])
    """log p_student - log p_teacher of each token; their mean estimates the reverse KL divergence."""
    by_teacher: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list[float]))
    """Log ratios by the key of the teacher, where an expression picks one of several."""
    gates: list[float] = field(default_factory=list[float])
    """Value of the gate of each turn."""
    counts: Counter[str] = field(default_factory=Counter[str])
    steps: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Trajectory uid and index of the steps with an advantage for each token, which the loss reads."""


async def apply_signals(
    plan: Plan,
    episodes: Sequence[Episode],
    teachers: Mapping[TeacherKey, LimitedModel],
    chats: Mapping[str, StudentChat],
    learnt: Mapping[str, Collection[int]],
) -> SignalResult:
    """Compute the advantages of every trained role that has a signal.

    A demonstration whose template fails gives a warning and the advantage 0. A gate that cannot be computed
    is 0, and so is the signal of a turn whose teacher's prompt cannot be rendered or does not fit; metrics
    count both. A centered signal's mean is over the tokens of the turns that a teacher scored, that are in a
    group and not masked.

    Args:
        plan: The plan.
        episodes: Finished episodes.
        teachers: Open models of the plan's teachers.
        chats: Chat format of each policy.
        learnt: Rounds of the turns that are in a group and not masked, by trajectory uid.

    Raises:
        WorldError: For a teacher that does not answer; names role, task and step.
        AdvantageError: For a signal that raises; names role, task and step.
    """
    run = _SignalRun(plan, teachers, chats, learnt)
    try:
        async with asyncio.TaskGroup() as group:
            for episode in episodes:
                finished_episode = FinishedEpisode(plan, episode)
                for trajectory in episode.trajectories:
                    if trajectory.name in plan.signals and not plan.is_past(
                        trajectory.name, trajectory.index
                    ):
                        group.create_task(
                            run.apply(finished_episode, trajectory, plan.signals[trajectory.name])
                        )
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    result = run.result
    for name, tally in run.tallies.items():
        _center_and_measure(plan.trained[name], tally, result)
        ratios = {"": tally.log_ratios, **{f"/{key}": values for key, values in tally.by_teacher.items()}}
        for teacher, values in ratios.items():
            if values:
                result.metrics[f"signal/{name}/reverse_kl{teacher}"] = math.fsum(values) / len(values)
        if tally.gates:
            result.metrics[f"signal/{name}/gate"] = math.fsum(tally.gates) / len(tally.gates)
        for event, count in tally.counts.items():
            result.metrics[f"signal/{name}/{event}"] = float(count)
    return result


class _SignalRun:
    """Runner of the signals of a batch, with the result so far."""

    def __init__(
        self,
        plan: Plan,
        teachers: Mapping[TeacherKey, LimitedModel],
        chats: Mapping[str, StudentChat],
        learnt: Mapping[str, Collection[int]],
    ) -> None:
        self.plan, self.teachers, self.chats, self.learnt = plan, teachers, chats, learnt
        self.result = SignalResult()
        self.tallies: defaultdict[str, _SignalTally] = defaultdict(_SignalTally)

    async def apply(self, finished: FinishedEpisode, learner: Trajectory, signal: SignalPlan) -> None:
        """Compute the advantages or demonstrations that a role's signal gives to a trajectory's steps; add
        them to `result`."""
        role, tally, result = self.plan.trained[learner.name], self.tallies[learner.name], self.result
        episode = finished.episode
        advantages = (result.added if role.adds_signal else result.advantages)[learner.uid] = []
        details = result.details[learner.uid] = []
        learnt_rounds = self.learnt.get(learner.uid, ())
        for index, step in enumerate(learner.steps):
            label = (
                f"{learner.name} {learner.index}, task {episode.task_id}, rollout {episode.rollout}, "
                f"step {index}"
            )
            value: Advantage = 0.0
            detail: StepMetadata = {}
            is_continued = index + 1 < len(learner.steps) and learner.steps[index + 1].round == step.round
            # The demonstration replaces the turn's answer, its last step.
            is_replaced = signal.demonstration is not None and is_continued
            if role.adds_signal and (step.round not in learnt_rounds or is_replaced):
                pass  # the estimator's advantage stays as it is
            elif signal.demonstration is None:
                gate = 1.0 if signal.gate is None else self._gate(signal.gate, finished, learner, step, label)
                if signal.gate is not None:
                    detail["gate"] = gate
                    tally.gates.append(gate)
                token_advantages = await self._score(signal, finished, learner, step, label) if gate else None
                if token_advantages is not None:
                    value, length = tuple(gate * a for a in token_advantages), len(step.response_ids)
                    if role.adds_signal and len(per_token(value, length, label)) != length:
                        text = f"the signal of {label} gave {len(value)} advantages for {length} tokens"
                        raise AdvantageError(text)
                    if step.round in learnt_rounds:
                        tally.steps.append((learner.uid, index))
            elif text := self._demonstrate(signal.demonstration, finished, learner, step, label):
                ids = list(self.chats[self.plan.policy_of(learner.name, learner.index)].turn(text))
                value, detail = signal.signal.weight, {"demonstration": {"text": text, "ids": ids}}
                name, limit = learner.name, role.max_tokens
                if len(ids) > limit:
                    text = (
                        f"{name} imitates {len(ids)} tokens, but max_tokens ({limit}) cuts its answers off; "
                    )
                    text += f"raise roles.{name}.sampling.max_tokens"
                    result.warnings.append(Note(text, "warning", f"demonstration/{name}"))
            advantages.append(value)
            details.append(detail)

    def _gate(
        self, gate: Expression, finished: FinishedEpisode, learner: Trajectory, step: Step, where: str
    ) -> float:
        """Return the factor by which a gate multiplies a turn's advantages; 0, with a warning, if the gate
        cannot be computed."""
        turn = finished.turn(*learner.node[:2], step.round)
        variables = {
            **finished.of_turn(learner, step.round, self.plan.hidden),
            **{name: getattr(turn, name) for name in ("action", "reward", "right")},
            "step": finished.episode.metadata.get("step", 0),
        }
        try:
            value = gate.value(variables)
            if value is UNKNOWN:
                raise PromptError("it is unknown")
            if not isinstance(value, bool | int | float):
                raise PromptError("its value is neither a number nor true or false")
            return finite_number(value, "it is")
        except ValueError as error:
            self._uncomputed(learner.name, "gates_failed", f"the gate of {where} counts as 0", error)
            return 0.0

    def _uncomputed(self, role: str, event: str, text: str, error: Exception) -> None:
        """Add a warning that a part of a signal cannot be computed, and count it under `event`.

        The warning leaves the error out if the plan has hidden fields, which the error may quote.
        """
        self.tallies[role].counts[event] += 1
        reason = "" if self.plan.hidden else f": {error}"
        self.result.warnings.append(Note(f"{text}{reason}", "warning", f"{event}/{role}"))

    async def _score(
        self, signal: SignalPlan, finished: FinishedEpisode, learner: Trajectory, step: Step, where: str
    ) -> tuple[float, ...] | None:
        """Return a step's advantages [T] from its signal, which may ask a teacher for log-probabilities. None
        if the spec masks the turn, the answer has no usable log-probabilities, or the teacher's prompt cannot
        be rendered or does not fit."""
        compute, plan, tally = signal.signal.advantages, self.plan, self.tallies[learner.name]
        assert compute is not None
        if step.is_unusable:
            tally.counts["unscored"] += 1
            return None
        logprobs: Sequence[float] | None = None
        if signal.all_teachers:
            visible_fields = {k: v for k, v in finished.episode.task.items() if k not in plan.hidden}
            key, teacher = signal.teacher_for(visible_fields)
            if teacher is None:
                tally.counts["masked"] += 1
                return None
            try:
                logprobs = await self._logprobs(teacher, finished, learner, step)
            except (PromptError, ContextFull) as error:
                text = f"the teacher of {where} scores nothing, since its prompt cannot be written or sent"
                self._uncomputed(learner.name, "unscored", text, error)
                return None
            except ModelError as error:
                raise WorldError(f"the teacher gives no log-probabilities for {where}: {error}") from error
            ratios = [p - q for p, q in zip(step.logprobs, logprobs, strict=False)]
            tally.log_ratios += ratios
            if signal.by is not None:
                tally.by_teacher[key] += ratios
        try:
            return tuple(map(float, compute(step, logprobs)))
        except FOREIGN_ERRORS as error:  # a signal may be code of a package
            reason = describe_error(error, with_place=True)
            raise AdvantageError(f"the signal of {where} raised {reason}") from error

    async def _logprobs(
        self, teacher: TeacherPlan, finished: FinishedEpisode, learner: Trajectory, step: Step
    ) -> Sequence[float]:
        """Return the teacher's log-probabilities [T] of a step's response, after the teacher's own prompt if
        it has one."""
        model = self.teachers[self.plan.weights_of(teacher, learner.name, learner.index)]
        prompt_ids = step.prompt_ids
        if teacher.prompt or teacher.system:
            sees = teacher.sees.union(self.plan.trained[learner.name].spec.sees)
            variables = finished.of_turn(learner, step.round, sees)
            chat = self.chats[self.plan.policy_of(learner.name, learner.index)]
            prompt_ids = teacher_prompt(teacher, variables, step, finished.episode, chat)
        return await model.logprobs(prompt_ids, step.response_ids)

    def _demonstrate(
        self, template: Template, finished: FinishedEpisode, learner: Trajectory, step: Step, where: str
    ) -> str:
        """Render the answer to imitate from a demonstration's template.

        Returns:
            The answer; empty if the template renders an empty text, or fails, which adds a warning.
        """
        episode, node = finished.episode, (*learner.node[:2], step.round)
        variables: dict[str, object] = {"task": episode.task, SELF: finished.turn(*node)}
        for role in self.plan.roles:
            trajectories = [t for t in episode.trajectories if t.name == role.name and t.steps]
            variables[role.name] = Views([finished.last_turn(t) for t in trajectories])
        counts = self.tallies[learner.name].counts
        try:
            text = template.render(variables).strip()
        except PromptError as error:
            counts["demonstrations_failed"] += 1
            text = f"the demonstration for {where} cannot be written: {error}"
            self.result.warnings.append(Note(text, "warning", "demonstrations"))
            return ""
        if text:
            counts["demonstrations"] += 1
        return text


def _center_and_measure(role: RolePlan, tally: _SignalTally, result: SignalResult) -> None:
    """Subtract the mean from a centered signal's advantages, in place, and add metrics of the signal."""
    advantages = result.added if role.adds_signal else result.advantages
    tally.steps.sort()  # teachers answer in any order, and a sum's rounding depends on the order
    arrays = [np.array(advantages[uid][index], dtype=np.float64) for uid, index in tally.steps]
    if not sum(map(len, arrays)):
        return
    values = np.concatenate(arrays)
    if role.signal is not None and role.signal.signal.center:
        mean = values.mean()
        values -= mean
        for (uid, index), array in zip(tally.steps, arrays, strict=True):
            advantages[uid][index] = tuple((array - mean).tolist())
    if role.adds_signal:
        for uid, index in tally.steps:
            result.details[uid][index]["signal"] = float(np.mean(advantages[uid][index] or 0.0))
        result.metrics |= spread(f"signal/{role.name}/advantage", values)
