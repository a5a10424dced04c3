"""Rewards from the likelihood of a text, on the local service and by scripted models."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rolegraph.engine.compile import Plan, check_file, check_source, compile_file
from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.prompts import TokenizedPrompt
from rolegraph.engine.records import Episode, FailureName, Message, Source
from rolegraph.engine.run.likelihood import check_scorers
from tests.clock import run_virtually
from tests.edge import COUNTDOWN, ScriptedModel, episode, limited, write_spec
from tests.examples import examples
from tests.meaning import expected
from tests.run.test_random_specs import HERMES, tool_calls
from tests.workflows import CALLEE, TOKENS, Workflow, compiled, workflows


class Chat:
    """Chat format whose tokens are code points; 0 ends a turn."""

    end_ids = (0,)

    def prompt(self, messages: Sequence[Message]) -> TokenizedPrompt:
        return TokenizedPrompt(tuple(map(ord, f"[{messages[-1].get('content')}]")), thinking=False)

    def text_ids(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def turn(self, text: str) -> tuple[int, ...]:
        return (*map(ord, text), 0)

    def same_tokens(self, other: Chat) -> bool:
        return True


class Scorer:
    """Model that answers with a text, and gives each token the log-probability -1/(its code point)."""

    def __init__(self, answer: Callable[[Request], str], error: Exception | None = None) -> None:
        self.answer, self.error = answer, error
        self.chat = Chat()
        self.scored: list[tuple[str, str]] = []

    async def complete(self, request: Request) -> Completion:
        text, prompt = self.answer(request), self.chat.prompt(request.messages).ids
        ids = self.chat.turn(text)
        return Completion(text, prompt_ids=prompt, response_ids=ids, logprobs=[-0.5] * len(ids))

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        if self.error:
            raise self.error
        self.scored.append(("".join(map(chr, prompt_ids)), "".join(map(chr, response_ids))))
        return [-1 / (token or 1) for token in response_ids]

    async def aclose(self) -> None: ...


HEAD = """
rolegraph: 2
name: likely
data: {train: countdown, hidden: [solution]}
roles:
"""


def plan_of(folder: Path, reward: dict[str, Any], more: str = "") -> Plan:
    role = {"prompt": "{{ task.question }}", "reward": reward, "estimator": "grpo"}
    return compile_file(write_spec(folder, f"{HEAD}  solver: {json.dumps(role)}\n{more}"))


def ran(plan: Plan, scorer: Scorer) -> Episode:
    return asyncio.run(episode(plan, limited(plan, scorer)))


GOLD = [-1 / ord(letter) for letter in "3 + 4"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, sum(GOLD) / 5),
        ({"per": "text"}, sum(GOLD)),
        ({"exp": True}, math.exp(sum(GOLD) / 5)),
        ({"per": "text", "exp": True}, math.exp(sum(GOLD))),
    ],
)
def test_a_likelihood_is_the_mean_or_the_sum_over_the_tokens_of_the_text(
    options: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    scorer = Scorer(lambda _: "so")
    plan = plan_of(tmp_path, {"likelihood": {"of": "{{ task.solution }}", "after": " is ", **options}})
    (solver,) = ran(plan, scorer).trajectories
    assert solver.reward == pytest.approx(expected)
    assert (solver.is_correct, solver.failure) == (False, None)
    assert scorer.scored == [("[Make 7 from 3 and 4]so is ", "3 + 4")]
    assert "solution" in plan.hidden and "solver" not in plan.judged


def test_without_the_turn_the_text_follows_the_prompt(tmp_path: Path) -> None:
    scorer = Scorer(lambda _: "so")
    terms = {
        "with": {"likelihood": {"of": "{{ task.solution }}"}},
        "without": {"reward": {"likelihood": {"of": "{{ task.solution }}", "turn": False}}, "weight": -1},
    }
    (solver,) = ran(plan_of(tmp_path, {"sum": terms}), scorer).trajectories
    assert [prompt for prompt, _ in scorer.scored] == ["[Make 7 from 3 and 4]so", "[Make 7 from 3 and 4]"]
    assert solver.reward == 0.0 and solver.terms == {name: pytest.approx(sum(GOLD) / 5) for name in terms}


PEER = "  peer: {needs: [solver], prompt: 'peer {{ solver.action }}'}\n"


def test_the_text_may_be_the_answer_of_a_later_role(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"likelihood": {"of": "{{ peer.action }}"}}, PEER)
    scorer = Scorer(lambda request: "P" if request.id.node.role == "peer" else "so")
    solver, _ = ran(plan, scorer).trajectories
    assert scorer.scored == [("[Make 7 from 3 and 4]so", "P")]
    assert solver.reward == pytest.approx(-1 / ord("P"))


def test_an_answer_that_failed_is_no_text(tmp_path: Path) -> None:
    more = PEER.replace("needs", "parser: number, needs")
    plan = plan_of(tmp_path, {"likelihood": {"of": "{{ peer.action }}"}}, more)
    solver, peer = ran(plan, Scorer(lambda _: "so")).trajectories
    assert peer.failure is not None and solver.failure is None
    assert solver.masked and solver.reward is None


def test_a_role_that_did_not_run_gives_no_reward(tmp_path: Path) -> None:
    more = PEER.replace("needs", "when: task.target == 0, needs")
    plan = plan_of(tmp_path, {"likelihood": {"of": "{{ peer.action }}"}}, more)
    (solver,) = ran(plan, Scorer(lambda _: "so")).trajectories
    assert solver.masked and solver.reward is None and solver.failure is None


@pytest.mark.parametrize("of", ["{{ action[5:] }}", "{{ 1 / (task.target - 7) }}"])
def test_a_text_that_cannot_be_scored_masks_the_turn(of: str, tmp_path: Path) -> None:
    (solver,) = ran(plan_of(tmp_path, {"likelihood": {"of": of}}), Scorer(lambda _: "so")).trajectories
    assert solver.failure is not None and solver.failure.name is FailureName.REWARD_ERROR
    assert solver.masked and solver.reward is None


def test_a_model_that_does_not_answer_masks_the_turn_whatever_failing_earns(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"likelihood": {"of": "x"}})
    failing = compile_file(tmp_path / "spec.yaml", ["roles.solver.on_failure={reward: -1}"])
    for one in (plan, failing):
        (solver,) = ran(one, Scorer(lambda _: "so", ModelError("gone"))).trajectories
        assert solver.masked and solver.reward is None


def test_a_model_without_log_probabilities_is_a_fault_at_the_start(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"likelihood": {"of": "x"}})
    for model in (ScriptedModel(lambda _: ""), Scorer(lambda _: "", ModelError("no such request"))):
        with pytest.raises(UsageError, match="the reward of solver needs the log-probabilities"):
            asyncio.run(check_scorers(plan, limited(plan, model)))
    asyncio.run(check_scorers(plan, limited(plan, Scorer(lambda _: ""))))


def test_other_models_and_the_base_have_endpoints_of_their_own(tmp_path: Path) -> None:
    terms = {
        "start": {"likelihood": {"of": "a", "model": "base"}},
        "other": {"likelihood": {"of": "a", "model": "tinker:big"}},
        "own": {"likelihood": {"of": "a"}},
    }
    plan = plan_of(tmp_path, {"sum": terms})
    policies = [(endpoint.policy, endpoint.model.name) for endpoint in plan.endpoints]
    assert policies == [("main", None), (None, None), (None, "big")]
    models = [LimitedModel(Scorer(lambda _: "so"), 4) for _ in plan.endpoints]
    asyncio.run(episode(plan, models))
    assert [len(limited.model.scored) for limited in models] == [1, 1, 1]  # pyright: ignore


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("{likelihood: {of: '{{ pere.action }}'}}", "pere"),
        ("{likelihood: {of: '{{ task.solutoin }}'}}", "task.solutoin"),
        ("{likelihood: {of: '{{ solver.action }}'}}", "reads solver itself"),
        ("{likelihood: {of: '{{ x', after: a}}", "template"),
        ("{likelihood: {of: a, model: 'openai:x'}}", "which openai does not give"),
        ("{likelihood: {of: a, model: polcy}}", "policy, base, or a local or a tinker model"),
        ("{likelihood: {of: a, per: word}}", "per cannot be 'word'"),
        ("{likelihood: {}}", "needs of"),
    ],
)
def test_faults_of_a_likelihood_are_found_when_the_spec_is_checked(
    reward: str, message: str, tmp_path: Path
) -> None:
    text = f"{HEAD}  solver: {{prompt: x, estimator: grpo, reward: {reward}}}\n"
    checked = check_file(write_spec(tmp_path, text))
    assert checked.plan is None
    assert any(message in str(diagnostic) for diagnostic in checked.diagnostics), checked.diagnostics


@pytest.mark.parametrize("model", ["openai:x", "replay:runs/x"])
def test_a_model_that_cannot_score_is_named(model: str, tmp_path: Path) -> None:
    text = f"{HEAD}  solver: {{prompt: x, estimator: grpo, reward: {{likelihood: {{of: a}}}}}}\n"
    checked = check_source(Source.of(write_spec(tmp_path, text), model=model))
    assert any("does not give" in str(diagnostic) for diagnostic in checked.diagnostics)


def test_a_role_without_a_model_has_no_likelihood(tmp_path: Path) -> None:
    text = f"{HEAD}  tool: {{run: {{text: x}}, reward: {{likelihood: {{of: a}}}}}}\n"
    checked = check_file(write_spec(tmp_path, text))
    assert any("has no model" in str(diagnostic) for diagnostic in checked.diagnostics)


def test_no_prompt_reads_what_the_text_reads(tmp_path: Path) -> None:
    text = HEAD.replace(", hidden: [solution]", "") + (
        "  solver: {prompt: '{{ task.target }}', estimator: grpo, "
        "reward: {likelihood: {of: '{{ task.target }}'}}}\n"
    )
    checked = check_file(write_spec(tmp_path, text))
    assert any("task.target would leak the label" in str(diagnostic) for diagnostic in checked.diagnostics)
    assert COUNTDOWN


WRITTEN = "{% for turn in NAME %}{{ turn.index }}={{ turn.action }};{% endfor %}."


class CallingScorer(Scorer):
    """Scorer that parses tool calls in the base model's syntax."""

    async def complete(self, request: Request) -> Completion:
        answered = await super().complete(request)
        text, calls = HERMES.find(answered.text)
        no_ids = {"prompt_ids": (), "response_ids": (), "logprobs": ()}
        return answered._replace(text=text, calls=calls, usage={"completion_tokens": TOKENS}, **no_ids)


@examples(200)
@given(workflows(), st.data())
def test_a_likelihood_reads_what_the_language_says(workflow: Workflow, data: st.DataObject) -> None:
    askers = [
        name
        for name in workflow.roles
        if name != CALLEE and not workflow.runs(name) and not workflow.loops_of(name)
    ]
    assume(askers)
    asker = data.draw(st.sampled_from(askers))
    others = [name for name in workflow.roles if name not in (asker, CALLEE)]
    assume(others)
    other = data.draw(st.sampled_from(others))
    workflow.roles[asker]["reward"] = {"likelihood": {"of": WRITTEN.replace("NAME", other)}}
    plan, meant = compiled(workflow), expected(workflow)

    def answer(request: Request) -> str:
        action = workflow.action(request.id.node)
        if action is None:
            raise ModelError("now and then")
        last = request.id.call > workflow.uses(request.id.node)
        return action if last else tool_calls(workflow, request.id)

    scorer = CallingScorer(answer)
    run_virtually(episode(plan, limited(plan, scorer)))
    texts: list[str] = []
    for node, read in meant.rewarding.items():
        turn = meant.turns[node]
        if node.role == asker and turn is not None and not turn.failed:
            turns = read[other]
            if turns and not any(it.failed for it in turns):
                texts.append("".join(f"{it.id.index}={it.action};" for it in turns) + ".")
    assert sorted(text for _, text in scorer.scored) == sorted(texts)
