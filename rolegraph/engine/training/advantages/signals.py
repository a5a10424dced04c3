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

import numpy as np

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.role_plan import SignalPlan
from rolegraph.engine.errors import FOREIGN_ERRORS, AdvantageError, ModelError, WorldError, describe_error
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.prompts import SELF, PromptError, Template
from rolegraph.engine.records import Advantage, Episode, Note, Step, StepMetadata, Trajectory
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.advantages.credit import compared_rounds
from rolegraph.engine.training.advantages.group_metrics import spread
from rolegraph.engine.training.advantages.precomputed import per_token
from rolegraph.engine.vocabulary import ScoredView, Views


@dataclass(slots=True)
class SignalResult:
    """Advantages from the signals of some episodes, with metrics and warnings."""

    advantages: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """Advantages of each step, by trajectory uid, of roles that learn from their signal alone."""
    added: dict[str, list[Advantage]] = field(default_factory=dict[str, list[Advantage]])
    """Advantages of each step that a signal adds to those of an estimator, by trajectory uid; 0 for a step in
    no group."""
    details: dict[str, list[StepMetadata]] = field(default_factory=dict[str, list[StepMetadata]])
    """Additions to each step's metadata, the turn to imitate or the mean of `added`, by trajectory uid."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    warnings: list[Note] = field(default_factory=list[Note])


@dataclass(slots=True)
class _SignalTally:
    """Running totals of one role's signal over a batch: log ratios, counts, and the steps that have
    advantages."""

    log_ratios: list[float] = field(default_factory=list[float])
    """log p_student - log p_teacher of each token; their mean estimates the reverse KL divergence."""
    counts: Counter[str] = field(default_factory=Counter[str])
    steps: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Trajectory uid and number of the steps with an advantage for each token, which the loss reads."""


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
        plan: The plan.
        episodes: Finished episodes.
        teachers: Open models of the plan's teachers.
        encode: For each policy, a function from the text of a turn to its token ids.

    Raises:
        WorldError: For a teacher that does not answer; names role, task and step.
        AdvantageError: For a signal that raises; names role, task and step.
    """
    run = _SignalRun(plan, teachers, encode)
    try:
        async with asyncio.TaskGroup() as group:
            for episode in episodes:
                for learner in episode.trajectories:
                    if learner.name in plan.signals and not plan.is_past(learner.name, learner.index):
                        group.create_task(run.apply(episode, learner, plan.signals[learner.name]))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    result = run.result
    for name, tally in run.tallies.items():
        _center_and_measure(plan.trained[name], tally, result)
        if tally.log_ratios:
            result.metrics[f"signal/{name}/reverse_kl"] = math.fsum(tally.log_ratios) / len(tally.log_ratios)
        for event, count in tally.counts.items():
            result.metrics[f"signal/{name}/{event}"] = float(count)
    return result


class _SignalRun:
    """Signals of a batch, and their result so far."""

    def __init__(
        self,
        plan: Plan,
        teachers: Mapping[ModelRef, LimitedModel],
        encode: Mapping[str, Callable[[str], Sequence[int]]],
    ) -> None:
        self.plan, self.teachers, self.encode = plan, teachers, encode
        self.result = SignalResult()
        self.tallies: defaultdict[str, _SignalTally] = defaultdict(_SignalTally)
        self.lineages = {node.id[:2]: node.lineage for node in plan.nodes}

    async def apply(self, episode: Episode, learner: Trajectory, signal: SignalPlan) -> None:
        """Compute the advantages or demonstrations of a trajectory's steps by its role's signal, into
        `result`."""
        role, tally, result = self.plan.trained[learner.name], self.tallies[learner.name], self.result
        advantages = (result.added if role.adds_signal else result.advantages)[learner.uid] = []
        details = result.details[learner.uid] = []
        learnt = compared_rounds(episode, learner, role)
        for number, step in enumerate(learner.steps):
            where = (
                f"{learner.name} {learner.index}, task {episode.task_id}, rollout {episode.rollout}, "
                f"step {number}"
            )
            value: Advantage = 0.0
            detail: StepMetadata = {}
            is_continued = number + 1 < len(learner.steps) and learner.steps[number + 1].round == step.round
            # The demonstration replaces the turn's answer, its last step.
            is_replaced = signal.demonstration is not None and is_continued
            if role.adds_signal and (step.round not in learnt or is_replaced):
                pass  # the estimator's advantage stays as it is
            elif signal.demonstration is None:
                value, length = await self._score(signal, learner, step, where), len(step.response_ids)
                if role.adds_signal and len(per_token(value, length, where)) != length:
                    text = f"the signal of {where} gave {len(value)} advantages for {length} tokens"
                    raise AdvantageError(text)
                if step.round in learnt:
                    tally.steps.append((learner.uid, number))
            elif text := self._demonstrate(signal.demonstration, episode, learner, step, where):
                ids = list(self.encode[self.plan.policy_of(learner.name, learner.index)](text))
                value, detail = signal.signal.weight, {"demonstration": {"text": text, "ids": ids}}
            advantages.append(value)
            details.append(detail)

    async def _score(
        self, signal: SignalPlan, learner: Trajectory, step: Step, where: str
    ) -> tuple[float, ...]:
        """Return a step's advantages [T] by its signal; asks the teacher for log-probabilities where it has
        one."""
        compute, ref = signal.signal.advantages, self.plan.teacher_of(learner.name, learner.index)
        assert compute is not None
        logprobs: Sequence[float] | None = None
        if ref is not None:
            try:
                logprobs = await self.teachers[ref].logprobs(step.prompt_ids, step.response_ids)
            except ModelError as error:
                raise WorldError(f"the teacher gives no log-probabilities for {where}: {error}") from error
            ratios = [p - q for p, q in zip(step.logprobs, logprobs, strict=False)]
            self.tallies[learner.name].log_ratios += ratios
        try:
            return tuple(map(float, compute(step, logprobs)))
        except FOREIGN_ERRORS as error:  # a signal may be code of a package
            reason = describe_error(error, with_place=True)
            raise AdvantageError(f"the signal of {where} raised {reason}") from error

    def _demonstrate(
        self, template: Template, episode: Episode, learner: Trajectory, step: Step, where: str
    ) -> str:
        """Render the answer to imitate from a demonstration's template.

        Returns an empty text where it renders empty, or fails, which adds a warning.
        """
        variables: dict[str, object] = {"task": episode.task, SELF: self._turn_view(learner, step)}
        for role in self.plan.roles:
            finished = [
                self._turn_view(t, t.steps[-1])._replace(action=t.action, reward=t.reward or 0.0)
                for t in episode.trajectories
                if t.name == role.name and t.steps
            ]
            skipped = ScoredView(1, role.parser.default, "", "", 0.0, False, ran=False, role=role.name)
            variables[role.name] = Views(finished, skipped if role.count == 1 else None)
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

    def _turn_view(self, trajectory: Trajectory, step: Step) -> ScoredView:
        """Return the view that a demonstration's template has of the turn of `step`, with the turn's
        reward."""
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
            lineage=self.lineages.get(trajectory.node[:2], ()),
            role=trajectory.name,
            tokens=sum(step.response_tokens for step in its),
            calls=len(its),
        )


def _center_and_measure(role: RolePlan, tally: _SignalTally, result: SignalResult) -> None:
    """Subtract the mean from a centered signal's advantages, in place, and add metrics of the signal."""
    advantages = result.added if role.adds_signal else result.advantages
    tally.steps.sort()  # teachers answer in any order, and a sum's rounding depends on the order
    arrays = [np.array(advantages[uid][number], dtype=np.float64) for uid, number in tally.steps]
    if not sum(map(len, arrays)):
        return
    values = np.concatenate(arrays)
    if role.signal is not None and role.signal.signal.center:
        mean = values.mean()
        values -= mean
        for (uid, number), array in zip(tally.steps, arrays, strict=True):
            advantages[uid][number] = tuple((array - mean).tolist())
    if role.adds_signal:
        for uid, number in tally.steps:
            result.details[uid][number] = {"signal": float(np.mean(advantages[uid][number] or 0.0))}
        result.metrics |= spread(f"signal/{role.name}/advantage", values)
