"""Tests of the findings about roles that cannot be trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.compile.trainable import training_findings
from rolegraph.engine.spec.diagnostics import Diagnostic
from tests.edge import solver_judge, write_spec

FROZEN = "estimator: null"


def against(*overrides: str) -> list[Diagnostic]:
    """Return the findings about training the shipped spec with these changes."""
    return [*check_file("solver_judge", overrides, training_findings).diagnostics]


def test_a_shipped_spec_can_be_trained() -> None:
    assert against() == []
    assert list(training_findings(solver_judge())) == []


@pytest.mark.parametrize(
    ("override", "message", "underlined"),
    [
        ("roles.solver.reward=null", "solver has the estimator grpo, but no reward", "solver"),
        ("train.validation.best=judge_ac", "no figure 'judge_ac'", "judge_ac"),
    ],
)
def test_any_spec_is_refused_where_a_role_cannot_learn(override: str, message: str, underlined: str) -> None:
    diagnostics = check_file("solver_judge", [override]).diagnostics
    (fault,) = [diagnostic for diagnostic in diagnostics if message in diagnostic.message]
    place = fault.place
    assert place.text[place.column - 1 :][: place.width] == underlined


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.staleness=1",), "staleness draws before that is known"),
        (
            ("roles.judge.estimator=null", "roles.solver={estimator: null, reward: null}"),
            "no role's rewards are compared",
        ),
    ],
)
def test_a_step_cannot_draw_again_without_rewards_to_decide_by(
    overrides: tuple[str, ...], message: str
) -> None:
    teacher = "roles.solver.signal={reverse_kl: {teacher: {model: local:rolegraph-teacher}}}"
    found = check_file("solver_judge", ["train.refill=2", teacher, *overrides]).diagnostics
    (fault,) = [diagnostic for diagnostic in found if diagnostic.message.startswith("refill")]
    assert message in fault.message and fault.place.text == "train.refill=2"


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("model=openai:gpt-5", "a model of openai cannot be trained", "train another with --model"),
        ("roles.judge.model=tinker:other", "judge has a model of its own", "policies: {judge: {model: …}}"),
        ("roles.judge.sampling={temperature: 0.5}", "judge samples with temperature 0.5 and top_p 1", ""),
        ("roles.judge.sampling={top_p: 0.9}", "judge samples with temperature 1 and top_p 0.9", ""),
        ("sampling.temperature=0", "solver samples with temperature 0 and top_p 1", ""),
    ],
)
def test_a_plan_that_cannot_be_trained_is_refused_at_the_place_that_says_so(
    override: str, message: str, hint: str
) -> None:
    assert check_file("solver_judge", [override]).diagnostics == ()
    (fault,) = against(override)
    assert message in fault.message
    assert hint in fault.hint
    assert fault.place.text == override


def test_what_is_not_written_is_missed_at_the_key_that_should_hold_it(tmp_path: Path) -> None:
    roles = "\n".join(f"  {name}: {{{FROZEN}}}" for name in ("solver", "judge"))
    spec = write_spec(tmp_path, f"extends: solver_judge.yaml\ndata: {{train: null}}\nroles:\n{roles}\n")
    faults = check_file(spec, (), training_findings).diagnostics
    assert [(fault.place.line, fault.place.column, fault.message) for fault in faults] == [
        (2, 1, "solver_judge has no training data"),
        (3, 1, "no role of solver_judge has an `estimator` or a `signal`: there is nothing to train"),
    ]


def test_every_fault_comes_at_once() -> None:
    assert len(against("model=openai:x", "data.train=null", "roles.judge.sampling={temperature: 0.5}")) == 3


def test_a_frozen_role_may_have_any_model_and_any_sampling() -> None:
    frozen = ("roles.judge.model=openai:x", "roles.judge.sampling={temperature: 0}")
    assert against("roles.judge.estimator=null", *frozen) == []


SIBLINGS = """
rolegraph: 2
name: tree
data: {train: countdown}
roles:
  idea:
    count: 3
    needs: {kept: previous}
    prompt: "{{ kept.action }}"
    reward: answer.reward
    group: prompt
    estimator: grpo
  kept: {needs: idea, run: majority}
  answer: {needs: kept, prompt: "{{ kept.action }}", reward: countdown, estimator: grpo}
loops: {tree: {roles: [idea, kept], times: 2}}
"""


@pytest.mark.parametrize(
    ("override", "warned"),
    [
        ((), True),
        (("roles.idea.reward={sum: {team: answer.reward, more: answer.reward}}",), True),
        (("roles.idea.reward={sum: {team: answer.reward, form: {length: {under: 9}}}}",), False),
        (("roles.idea.group=turn",), False),
        (("roles.idea.estimator=null",), False),
        (
            ("roles.answer.needs={idea: each}", 'roles.answer.prompt="{{ idea.action }}"'),
            False,
        ),
    ],
    ids=str,
)
def test_siblings_that_earn_the_same_have_nothing_to_learn_from_one_another(
    tmp_path: Path, override: tuple[str, ...], warned: bool
) -> None:
    diagnostics = check_file(write_spec(tmp_path, SIBLINGS), override).diagnostics
    assert not [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
    about = [
        d for d in diagnostics if d.message.startswith("all members of a group of idea get the same reward")
    ]
    assert [d.severity for d in about] == ["warning"] * warned


def test_in_a_tree_whoever_stands_above_has_leaves_of_its_own() -> None:
    assert check_file("malt").diagnostics == ()
