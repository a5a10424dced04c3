"""Signals on finished episodes: log-probabilities of a teacher, and demonstrations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan, check_file, compile_file
from rolegraph.engine.errors import AdvantageError, ModelError, WorldError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.records import MAIN, Advantage, Episode, Step, Trajectory
from rolegraph.engine.training.signals import SignalResult, apply_signals
from tests.edge import COUNTDOWN

DISTILL = ["roles.judge.estimator=precomputed"]


class ScriptedScorer:
    """Teacher that gives every token the same log-probability, or raises."""

    def __init__(self, value: float = -0.5, error: Exception | None = None) -> None:
        self.value, self.error = value, error

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        if self.error is not None:
            raise self.error
        return [self.value] * len(response_ids)

    async def complete(self, request: Request) -> Completion:
        raise AssertionError("a teacher is not asked for answers")

    async def aclose(self) -> None: ...


def distilling(signal: str) -> Plan:
    return compile_file("solver_judge", [*DISTILL, f"roles.judge.signal={signal}"])


def episode(judge_reward: float = 1.0) -> Episode:
    step = Step(
        prompt_ids=[1, 2], response_ids=[3, 4], logprobs=[-1.0, -0.25], model_response="so", action="a"
    )
    return Episode(
        "t1",
        0,
        {**COUNTDOWN, "id": "t1"},
        [
            Trajectory("solver", 1, (step._replace(action="<answer>3+4</answer>"),), 1.0, True),
            Trajectory("solver", 2, (step._replace(action="<answer>3*4</answer>"),), 0.0, False),
            Trajectory("judge", 1, (step,), judge_reward, judge_reward > 0, "t1:0/judge/1"),
        ],
    )


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def signalled(plan: Plan, model: ScriptedScorer | None = None, given: Episode | None = None) -> SignalResult:
    async def run() -> SignalResult:
        teachers = {ref: LimitedModel(model or ScriptedScorer(), 4) for ref in plan.teachers}
        return await apply_signals(plan, [given or episode()], teachers, {MAIN: encode})

    return asyncio.run(run())


def of_judge(found: SignalResult) -> Advantage:
    """Return the advantage of the judge's only step."""
    (advantage,) = found.advantages["t1:0/judge/1"]
    return advantage


def test_a_reverse_kl_is_the_teachers_logprob_less_the_students() -> None:
    found = signalled(distilling("{reverse_kl: {teacher: 'tinker:big'}}"))
    assert of_judge(found) == (0.5, -0.25)
    assert found.metrics["signal/judge/reverse_kl"] == pytest.approx(-0.125)
    assert found.advantages.keys() == {"t1:0/judge/1"}, "the solver has an estimator"


def test_it_is_clipped_and_scaled_in_that_order() -> None:
    plan = distilling("{reverse_kl: {teacher: {model: 'tinker:big'}, coefficient: 2, clip: 0.3}}")
    assert of_judge(signalled(plan)) == pytest.approx((0.6, -0.5))


def test_a_teacher_that_does_not_answer_is_named_with_role_task_and_step() -> None:
    plan = distilling("{reverse_kl: {teacher: 'tinker:big'}}")
    with pytest.raises(WorldError, match="judge 1, task t1, rollout 0, step 0: it is gone"):
        signalled(plan, ScriptedScorer(error=ModelError("it is gone")))


DEMONSTRATION = (
    "{imitation: {demonstration: {inline: "
    '"{% for c in solver if c.reward > 0 %}{{ c.index }}{% endfor %} {{ task.solution }}"}}}'
)


def test_a_demonstration_sees_hidden_fields_and_the_rewards_of_roles_before() -> None:
    found = signalled(distilling(DEMONSTRATION))
    assert found.details["t1:0/judge/1"] == [{"demonstration": {"text": "1 3 + 4", "ids": encode("1 3 + 4")}}]
    assert of_judge(found) == 1.0
    assert found.metrics["signal/judge/demonstrations"] == 1


def test_a_demonstration_of_nothing_teaches_nothing() -> None:
    plan = distilling("{imitation: {demonstration: {inline: ' {% if false %}x{% endif %} '}}}")
    found = signalled(plan)
    assert of_judge(found) == 0.0
    assert found.metrics == {}


def test_a_demonstration_that_fails_on_one_row_is_counted_and_placed() -> None:
    plan = distilling("{imitation: {demonstration: {inline: '{{ 1 / (solver[1].reward) }}'}}}")
    found = signalled(plan)
    assert found.metrics["signal/judge/demonstrations_failed"] == 1
    assert found.warnings[0].text.startswith(
        "the demonstration for judge 1, task t1, rollout 0, step 0 cannot be written: float division"
    )
    assert of_judge(found) == 0.0


def test_a_signal_of_a_package_that_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = distilling("{reverse_kl: {teacher: 'tinker:big'}}")
    judge = plan.roles[1]
    assert judge.signal is not None

    def broken(step: Step, teacher: Any) -> list[float]:
        raise KeyError("x")

    roles = (
        plan.roles[0],
        replace(judge, signal=judge.signal._replace(signal=replace(judge.signal.signal, advantages=broken))),
    )
    with pytest.raises(
        AdvantageError, match="the signal of judge 1, task t1, rollout 0, step 0 raised KeyError"
    ):
        signalled(replace(plan, roles=roles))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roles.judge.estimator=precomputed"], "judge is precomputed, but nothing sets its advantages"),
        (
            ["roles.judge.signal={reverse_kl: {teacher: 'tinker:x'}}"],
            "which the estimator reinforce would replace",
        ),
        ([*DISTILL, "roles.judge.signal={reverse_kl: {teacher: 'openai:x'}}"], "which openai does not"),
        ([*DISTILL, "roles.judge.signal={reverse_kl: {teacher: {modle: x}}}"], "teacher.modle: extra inputs"),
        ([*DISTILL, "roles.judge.signal={reverse_kl: {}}"], "needs teacher"),
        ([*DISTILL, "roles.judge.signal={imitation: {demonstration: gone.j2}}"], "no template 'gone.j2'"),
        (
            [*DISTILL, "roles.judge.signal={imitation: {demonstration: {inline: '{{ judge.reward }}'}}}"],
            "the prompt mentions 'judge', which the role does not need",
        ),
        ([*DISTILL, f"roles.judge.signal={DEMONSTRATION}", "roles.judge.loss=ppo"], "which ppo cannot train"),
        (["roles.judge.loss=poo"], "loss cannot be 'poo'"),
        (["roles.judge.loss=dro"], "loss cannot be 'dro'"),
        (
            ["roles.judge.loss={importance_sampling: {clip_low_threshold: 1}}"],
            "importance_sampling takes no settings, not clip_low_threshold",
        ),
        (["roles.judge.loss={ppo: {clip_high: 1.2}}"], "clip_high_threshold"),
        (
            ["roles.judge.loss={ppo: {clip_low_threshold: 2, clip_high_threshold: 1}}"],
            "a clip_low_threshold of at most clip_high_threshold",
        ),
        (["train.validation.best=judge_accuracy"], "no figure 'judge_accuracy'"),
        (["train.schedule=cosin"], "cannot be 'cosin'"),
    ],
)
def test_what_cannot_teach_is_refused_when_the_spec_is_checked(
    words: list[str], message: str, tmp_path: Path
) -> None:
    compiled = check_file("solver_judge", words)
    assert compiled.plan is None
    assert any(message in str(diagnostic) for diagnostic in compiled.diagnostics), [
        *map(str, compiled.diagnostics)
    ]


def test_rewards_stay_hidden_from_prompts() -> None:
    words = ['roles.judge.prompt={inline: "{{ solver[0].reward }} {{ solver }}"}']
    compiled = check_file("solver_judge", words)
    assert any("would leak the label" in str(diagnostic) for diagnostic in compiled.diagnostics)
