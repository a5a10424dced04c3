"""Signals on finished episodes: log-probabilities of a teacher, and demonstrations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolegraph.engine.compile import Plan, check_file, compile_file
from rolegraph.engine.errors import AdvantageError, ModelError, WorldError
from rolegraph.engine.models import Completion, LimitedModel, Model, Request
from rolegraph.engine.prompts import ChatPrefix, TokenizedPrompt
from rolegraph.engine.records import MAIN, Advantage, Episode, Message, Step, Trajectory
from rolegraph.engine.training.advantages.ledger import (
    Ledger,
    Membership,
    add_advantages,
    add_signals,
    credit_rows,
)
from rolegraph.engine.training.advantages.signals import SignalResult
from rolegraph.engine.training.analysis.outcomes import outcome_metrics
from rolegraph.engine.training.policies.batches import policy_batches
from tests.edge import COUNTDOWN

DISTILL = ["roles.judge.estimator=null"]


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


class Chat:
    """Chat format whose tokens are code points."""

    def prompt(self, messages: Sequence[Message]) -> TokenizedPrompt:
        return TokenizedPrompt(tuple(encode(json.dumps(messages))), thinking=False)

    def extended(self, continued: ChatPrefix, messages: Sequence[Message]) -> TokenizedPrompt:
        return TokenizedPrompt((*continued.ids, *encode(json.dumps(messages[-1]))), thinking=False)

    def turn(self, text: str) -> list[int]:
        return encode(text)


CHAT = Chat()


def signalled(plan: Plan, model: ScriptedScorer | None = None, given: Episode | None = None) -> SignalResult:
    teachers: dict[Any, LimitedModel] = {
        ref: LimitedModel(model or ScriptedScorer(), 4) for ref in plan.teachers
    }
    return asyncio.run(signals_of(plan, [given or episode()], teachers, CHAT))


async def signals_of(
    plan: Plan, episodes: Sequence[Episode], teachers: Mapping[Any, LimitedModel], chat: Any
) -> SignalResult:
    ledger = Membership(plan.trained, plan.policy_of).add(episodes).ledger()
    return (await add_signals(ledger, plan, teachers, {MAIN: chat})).signals


def of_judge(found: SignalResult) -> Advantage:
    """Return the advantage of the judge's only step."""
    (advantage,) = found.advantages["t1:0/judge/1"]
    return advantage


def test_a_reverse_kl_is_the_teachers_logprob_less_the_students() -> None:
    found = signalled(distilling("{reverse_kl: {teacher: 'tinker:big'}}"))
    assert of_judge(found) == (0.5, -0.25)
    assert found.metrics["signal/judge/reverse_kl"] == pytest.approx(-0.125)
    assert found.advantages.keys() == {"t1:0/judge/1"}, "the solver has an estimator"


def test_a_reverse_kl_is_clipped_and_then_scaled() -> None:
    plan = distilling("{reverse_kl: {teacher: {model: 'tinker:big'}, coefficient: 2, clip: 0.3}}")
    assert of_judge(signalled(plan)) == pytest.approx((0.6, -0.5))


def test_a_teacher_that_does_not_answer_is_named_with_role_task_and_step() -> None:
    plan = distilling("{reverse_kl: {teacher: 'tinker:big'}}")
    with pytest.raises(WorldError, match="judge 1, task t1, rollout 0, step 0: it is gone"):
        signalled(plan, ScriptedScorer(error=ModelError("it is gone")))


DEMONSTRATION = (
    "{imitation: {demonstration: "
    '"{% for c in solver if c.reward > 0 %}{{ c.index }}{% endfor %} {{ task.solution }}"}}'
)


def test_a_demonstration_sees_hidden_fields_and_the_rewards_of_roles_before() -> None:
    found = signalled(distilling(DEMONSTRATION))
    assert found.details["t1:0/judge/1"] == [{"demonstration": {"text": "1 3 + 4", "ids": encode("1 3 + 4")}}]
    assert of_judge(found) == 1.0
    assert found.metrics["signal/judge/demonstrations"] == 1


def test_a_demonstration_of_nothing_teaches_nothing() -> None:
    plan = distilling("{imitation: {demonstration: ' {% if false %}x{% endif %} '}}")
    found = signalled(plan)
    assert of_judge(found) == 0.0
    assert found.metrics == {}


def test_a_demonstration_beyond_max_tokens_is_a_warning_with_the_key_to_raise() -> None:
    plan = distilling("{imitation: {demonstration: '{% for n in range(900) %}7777777777{% endfor %}'}}")
    limit = plan.trained["judge"].max_tokens
    (warning,) = signalled(plan).warnings
    assert f"max_tokens ({limit})" in warning.text
    assert "roles.judge.sampling.max_tokens" in warning.text
    assert not signalled(distilling(DEMONSTRATION)).warnings


def test_a_demonstration_that_fails_on_one_row_is_counted_and_placed() -> None:
    plan = distilling("{imitation: {demonstration: '{{ 1 / (solver[1].reward) }}'}}")
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
        (
            ["roles.judge.signal={reverse_kl: {teacher: base}}", "roles.judge.reward=null"],
            "judge has the estimator reinforce, but no reward",
        ),
        ([f"roles.judge.signal={DEMONSTRATION}", "roles.judge.loss=ppo"], "which ppo cannot train"),
        ([*DISTILL, "roles.judge.signal={reverse_kl: {teacher: bse}}"], "teacher.provider: input should be"),
        ([*DISTILL, "roles.judge.signal={reverse_kl: {teacher: 'openai:x'}}"], "which openai does not"),
        ([*DISTILL, "roles.judge.signal={reverse_kl: {teacher: {modle: x}}}"], "teacher.modle: extra inputs"),
        ([*DISTILL, "roles.judge.signal={reverse_kl: {}}"], "needs teacher"),
        ([*DISTILL, "roles.judge.signal={imitation: {demonstration: gone.j2}}"], "no template 'gone.j2'"),
        (
            [*DISTILL, "roles.judge.signal={imitation: {demonstration: '{{ self.rewrd }}'}}"],
            "rewrd",
        ),
        ([*DISTILL, f"roles.judge.signal={DEMONSTRATION}", "roles.judge.loss=ppo"], "which ppo cannot train"),
        (["roles.judge.loss=poo"], "unknown loss 'poo'"),
        (["roles.judge.loss=dro"], "unknown loss 'dro'"),
        (
            ["roles.judge.loss={importance_sampling: {clip_low_threshold: 1}}"],
            "loss 'importance_sampling' has no option 'clip_low_threshold'",
        ),
        (["roles.judge.loss={ppo: {clip_high: 1.2}}"], "clip_high_threshold"),
        (
            ["roles.judge.loss={ppo: {clip_low_threshold: 2, clip_high_threshold: 1}}"],
            "clip_low_threshold of 2, expected at most clip_high_threshold",
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
    words = ['roles.judge.prompt="{{ solver[0].reward }} {{ solver }}"']
    compiled = check_file("solver_judge", words)
    assert any("would leak the label" in str(diagnostic) for diagnostic in compiled.diagnostics)


# beside an estimator

BASE = "roles.solver.signal={reverse_kl: {teacher: base, coefficient: 0.5}}"


def batch(
    plan: Plan, teacher: Model | None = None, sampled: Sequence[Sequence[float]] = ()
) -> tuple[list[Episode], SignalResult, dict[str, float]]:
    """Return the episodes of `stepped` with advantages, what their signals gave, and the figures."""
    ledger = stepped(plan, teacher, sampled)
    return [*ledger.filled_episodes()], ledger.signals, ledger.estimates.metrics


def stepped(plan: Plan, teacher: Model | None = None, sampled: Sequence[Sequence[float]] = ()) -> Ledger:
    """Return the ledger of four episodes of two tasks.

    `sampled` are the log-probabilities of the answers of 3, 4, 5 and 6 tokens.
    """
    made: list[Episode] = []
    for number, reward in enumerate((1.0, 0.0, 1.0, 1.0)):
        task, rollout = f"t{number // 2}", number % 2
        logprobs = sampled[number] if sampled else [-0.5 * number - 0.125 * n for n in range(3 + number)]
        steps = (Step(prompt_ids=[1, 2], response_ids=list(range(3, 6 + number)), logprobs=logprobs),)
        row = {**COUNTDOWN, "id": task}
        masked = Trajectory("solver", 2, steps, 0.0, uid=f"{task}:{rollout}/solver/2", masked=True)
        own = Trajectory("solver", 1, steps, reward, reward > 0, f"{task}:{rollout}/solver/1")
        made.append(Episode(task, rollout, row, [own, masked]))
    teachers = {r: LimitedModel(teacher or ScriptedScorer(), 4) for r in plan.teachers}
    ledger = Membership(plan.trained, plan.policy_of).add(made).ledger()
    return add_advantages(asyncio.run(add_signals(ledger, plan, teachers, {MAIN: CHAT})))


def values(episodes: Sequence[Episode], index: int = 1) -> list[list[float]]:
    """Return the advantages of the tokens of each solver with a number."""
    return [[*t.steps[0].advantages] for e in episodes for t in e["solver"] if t.index == index]


def test_the_advantage_of_a_token_is_the_estimators_plus_the_signals() -> None:
    both, found, metrics = batch(compile_file("solver_judge", [BASE]))
    alone, _, rewards = batch(compile_file("solver_judge"))
    for added, reward, episode in zip(values(both), values(alone), both, strict=True):
        gaps = [0.5 * (-0.5 - logprob) for logprob in episode["solver"][0].steps[0].logprobs]
        assert added == pytest.approx([r + g for r, g in zip(reward, gaps, strict=True)])
    assert metrics == rewards, "of the reward's part"
    sizes = np.array(
        [value for values in found.added.values() for step in values for value in np.atleast_1d(step)]
    )
    assert found.metrics["signal/solver/advantage/min"] == pytest.approx(sizes.min())
    assert found.metrics["signal/solver/advantage/std"] > 0


def test_whether_a_group_teaches_goes_by_the_rewards() -> None:
    ledger = stepped(compile_file("solver_judge", [BASE]))
    assert [any(value) for value in values([*ledger.filled_episodes()])] == [True] * 4
    figures = outcome_metrics(credit_rows(ledger))
    assert (figures["outcome/solver/taught"], figures["outcome/solver/too_easy"]) == (0.5, 0.5)


def test_a_turn_that_no_group_compares_gets_no_signal() -> None:
    episodes, found, _ = batch(compile_file("solver_judge", [BASE]))
    assert values(episodes, 2) == [[]] * 4
    assert all(found.added[f"t{n // 2}:{n % 2}/solver/2"] == [0.0] for n in range(4))


def cookbooks_penalty(
    sampled: Sequence[Sequence[float]], base: Sequence[Sequence[float]], mask: Sequence[float], weight: float
) -> list[list[float]]:
    """Compute the KL penalty of tinker-cookbook: weight × mask × (mean over all tokens of the gap - the gap),
    where the gap is log p_sampled - log p_base (tinker_cookbook/rl/metrics.py, incorporate_kl_penalty)."""
    gaps = [
        [(p - q) * m for p, q in zip(*pair, strict=True)]
        for *pair, m in zip(sampled, base, mask, strict=True)
    ]
    tokens = sum(m * len(own) for own, m in zip(sampled, mask, strict=True))
    mean = sum(map(sum, gaps)) / tokens
    return [[weight * m * (mean - gap) for gap in own] for own, m in zip(gaps, mask, strict=True)]


def test_centered_and_not_clipped_is_the_penalty_of_tinker_cookbook() -> None:
    signal = "{reverse_kl: {teacher: base, coefficient: 0.3, clip: null, center: true}}"
    both, found, _ = batch(compile_file("solver_judge", [f"roles.solver.signal={signal}"]))
    alone, _, _ = batch(compile_file("solver_judge"))
    trajectories = [t for episode in both for t in episode["solver"]]
    sampled = [t.steps[0].logprobs for t in trajectories]
    base = [[-0.5] * len(own) for own in sampled]
    penalties = cookbooks_penalty(sampled, base, [float(t.index == 1) for t in trajectories], 0.3)
    expected = [
        [reward + penalty for reward, penalty in zip(own, penalties[2 * number], strict=True)]
        for number, own in enumerate(values(alone))
    ]
    assert [value for own in values(both) for value in own] == pytest.approx(
        [value for own in expected for value in own], abs=1e-12
    )
    assert found.metrics["signal/solver/advantage/mean"] == pytest.approx(0.0, abs=1e-12)
    gap = np.mean([p + 0.5 for own in sampled[::2] for p in own])
    assert found.metrics["signal/solver/reverse_kl"] == pytest.approx(gap), "its kl_policy_base"


def test_a_demonstration_replaces_the_answer_where_its_template_writes_any() -> None:
    wrong = "{% if not self.right %}{{ task.solution }} of {{ self.index }}{% endif %}"
    signal = f"{{imitation: {{weight: 2, demonstration: '{wrong}'}}}}"
    plan = compile_file("solver_judge", ["roles.solver.estimator=reinforce", f"roles.solver.signal={signal}"])
    assert plan.trained["solver"].loss.name == "cross_entropy"
    ledger = stepped(plan)
    found, episodes = ledger.signals, [*ledger.filled_episodes()]
    steps = [episode["solver"][0].steps[0] for episode in episodes]
    assert [step.advantage for step in steps] == [1.0, 2.0, 1.0, 1.0]
    assert [step.metadata.get("demonstration", {}).get("text") for step in steps] == [
        None,
        f"{COUNTDOWN['solution']} of 1",
        None,
        None,
    ]
    rows = [it for it in credit_rows(ledger) if it.advantage is not None]
    assert [it.advantage for it in rows if it.source == "estimator"] == [1.0, 0.0, 1.0, 1.0]
    assert [(it.rollout, it.advantage) for it in rows if it.source == "demonstration"] == [(1, 2.0)]
    assert found.metrics == {"signal/solver/demonstrations": 1.0}
    batches = policy_batches(ledger)["main"]
    solver = next(own for own in batches if own.role == "solver")
    assert [datum.model_input.to_ints()[2:] for datum in solver.data][1] == encode(
        f"{COUNTDOWN['solution']} of 1"
    )[:-1]


def test_a_demonstration_knows_of_whom_an_instance_is() -> None:
    one = "{{ own.response }}{{ own.lineage[-1] }}"
    text = f"{{% for own in judge if own.lineage[0] == self.index %}}{one}{{% endfor %}}"
    signal = f"{{imitation: {{demonstration: '{text}'}}}}"
    each = ["roles.judge.needs={solver: each}", "roles.judge.prompt='{{ solver.action }}'"]
    each += [
        "roles.judge.parser=text",
        "roles.judge.reward=null",
        "roles.judge.estimator=null",
        "roles.judge.count=2",
    ]
    plan = compile_file(
        "solver_judge",
        [
            "roles.solver.estimator=null",
            "roles.solver.count=2",
            *each,
            "episode={correct: all(solver.right)}",
            f"roles.solver.signal={signal}",
        ],
    )
    solvers = [t._replace(uid=f"s{t.index}") for t in episode().trajectories if t.name == "solver"]
    step = solvers[0].steps[0]
    judges = [Trajectory("judge", n, (step._replace(model_response="abcd"[n - 1]),)) for n in range(1, 5)]
    found = signalled(plan, given=episode()._replace(trajectories=[*solvers, *judges]))
    assert [found.details[f"s{n}"][0]["demonstration"]["text"] for n in (1, 2)] == ["a1b2", "c1d2"]


def test_a_demonstration_replaces_the_last_call_of_a_turn_alone() -> None:
    signal = "{imitation: {demonstration: right}}"
    plan = compile_file("solver_judge", ["roles.solver.estimator=reinforce", f"roles.solver.signal={signal}"])
    step = Step(prompt_ids=[1, 2], response_ids=[3, 4], logprobs=[-1.0, -0.25])
    calls = Trajectory("solver", 1, (step, step), 0.5, False, "t:0/solver/1")
    made = [Episode("t", 0, {**COUNTDOWN, "id": "t"}, [calls])]
    ledger = Membership(plan.trained, plan.policy_of).add(made).ledger()
    ledger = add_advantages(asyncio.run(add_signals(ledger, plan, {}, {MAIN: CHAT})))
    first, last = next(ledger.filled_episodes())["solver"][0].steps
    assert (first.advantage, last.advantage) == (0.5, 1.0)
    assert "demonstration" not in first.metadata and last.metadata["demonstration"]["text"] == "right"


LOGPROBS = st.floats(-20, 0, allow_nan=False)


@given(
    st.tuples(*(st.lists(LOGPROBS, min_size=size, max_size=size) for size in (3, 4, 5, 6))),
    st.floats(0.01, 10),
    st.none() | st.floats(0.01, 10),
    st.booleans(),
    st.sampled_from(["{by: task}", "turn", "[{by: task}, {by: 0, weight: 0.5}]"]),
)
@settings(max_examples=30)
def test_an_advantage_is_the_sum_of_both_whatever_the_options(
    sampled: tuple[list[float], ...], coefficient: float, clip: float | None, center: bool, group: str
) -> None:
    options = {"teacher": "base", "coefficient": coefficient, "clip": clip, "center": center}
    words = [f"roles.solver.group={group}"]
    both = stepped(
        compile_file("solver_judge", [*words, f"roles.solver.signal={{reverse_kl: {json.dumps(options)}}}"]),
        sampled=sampled,
    )
    alone = stepped(compile_file("solver_judge", words), sampled=sampled)
    bound = clip or 100.0
    parts = [[min(bound, max(-bound, -0.5 - p)) for p in own] for own in sampled]
    mean = sum(map(sum, parts)) / 18 if center else 0.0
    shown = [values([*ledger.filled_episodes()]) for ledger in (both, alone)]
    for added, reward, part in zip(*shown, parts, strict=True):
        expected = [r + coefficient * (gap - mean) for r, gap in zip(reward, part, strict=True)]
        assert added == pytest.approx(expected, abs=1e-9)
    assert outcome_metrics(credit_rows(both)) == outcome_metrics(credit_rows(alone))


def test_a_demonstration_may_read_later_roles_and_those_that_were_skipped() -> None:
    text = "{% if judge.ran %}{{ judge.response }}{% else %}skipped{% endif %}"
    signal = f"{{imitation: {{demonstration: '{text}'}}}}"
    plan = compile_file("solver_judge", ["roles.solver.estimator=null", f"roles.solver.signal={signal}"])
    given = episode()
    given = given._replace(
        trajectories=[t._replace(uid=t.node.role + str(t.index)) for t in given.trajectories]
    )
    assert signalled(plan, given=given).details["solver1"][0]["demonstration"]["text"] == "so"
    given = given._replace(trajectories=given.trajectories[:2])
    assert signalled(plan, given=given).details["solver1"][0]["demonstration"]["text"] == "skipped"


@pytest.mark.parametrize(
    ("estimator", "signal", "loss"),
    [
        ("grpo", "{reverse_kl: {teacher: base}}", "ppo"),
        ("rloo", "{reverse_kl: {teacher: base}}", "importance_sampling"),
        ("null", "{reverse_kl: {teacher: base}}", "importance_sampling"),
        ("reinforce", "{imitation: {demonstration: x}}", "cross_entropy"),
    ],
)
def test_the_loss_beside_an_estimator_is_the_estimators(estimator: str, signal: str, loss: str) -> None:
    words = [f"roles.solver.estimator={estimator}", f"roles.solver.signal={signal}"]
    assert compile_file("solver_judge", words).trained["solver"].loss.name == loss


def test_each_policys_own_start_is_its_teacher() -> None:
    words = [BASE, "policies.other={checkpoint: 'tinker://r/weights/x'}", "roles.solver.policy=[main, other]"]
    plan = compile_file("solver_judge", words)
    signal = plan.signals["solver"]
    starts = [plan.weights_of(signal.teachers[""], "solver", index) for index in (1, 2)]
    assert [start and start.checkpoint for start in starts] == [None, "tinker://r/weights/x"]
    assert plan.teachers == starts and plan.reference_policies == ["main", "other"]
