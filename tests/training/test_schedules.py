"""Tests of numbers that follow the steps of a training, from a spec's keys to what is trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolegraph as rg
from rolegraph.engine.compile import compile_file
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.compile.leaving import read_rule
from rolegraph.engine.compile.numbers import STEP
from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.prompts import read_expression
from rolegraph.engine.records import Episode
from rolegraph.outlook.forecast import forecast
from rolegraph.pages.report.digest import read_digest
from rolegraph.pages.report.panels import sections
from rolegraph.pages.report.reading import read_run
from tests.edge import RIGHT, WRONG, write_spec
from tests.examples import examples
from tests.meaning import scheduled
from tests.training.edge import STEPS, Training, comparable

SPEC = """\
rolegraph: 2
name: annealed
data: {train: countdown, validation: countdown}
roles:
  solver:
    prompt: "{{ task.question }} Give <answer></answer>."
    parser: {tag: answer}
    reward:
      sum:
        right: countdown
        late: {reward: (step + 1) / 10, weight: "ramp(0.5, 0, 2)"}
    estimator: {grpo: {std: false}}
    weight: ramp(2, 1, 4, after=1)
    sampling: {temperature: "ramp(1, 0.5, 2)"}
  critic:
    needs: solver
    prompt: "Proposed solutions {{ solver.action }}"
    reward: {sum: {team: {reward: solver.reward, weight: "ramp(1, 3, 2)"}}}
    estimator: grpo
    group: [{by: task, weight: "1 - step / 4 if step < 2 else 0.5"}, {by: turn}]
loops: {once: {roles: [solver, critic], times: 1}}
episode: {correct: solver.right}
train: {steps: 3}
"""
LATE, SCALE = "roles.solver.reward.sum.late.weight", "roles.critic.reward.sum.team.weight"
VALUES = {
    1: {LATE: 0.5, SCALE: 1.0, "roles.solver.weight": 2.0, "roles.solver.sampling.temperature": 1.0},
    2: {LATE: 0.25, SCALE: 2.0, "roles.solver.weight": 2.0, "roles.solver.sampling.temperature": 0.75},
    3: {LATE: 0.0, SCALE: 3.0, "roles.solver.weight": 1.75, "roles.solver.sampling.temperature": 0.5},
}
VALUES[None] = VALUES[3]
"""Values of four of the five numbers by step; None is outside of training, where the last step counts."""


@pytest.fixture
def annealed(training: Training, tmp_path: Path) -> Training:
    """Return a training of SPEC."""
    training.spec = write_spec(tmp_path, SPEC)
    training.workflow.solve = lambda seed, updates: RIGHT if seed % 2 else WRONG
    return training


def values(episode: Episode) -> dict[str, float]:
    return {path: value for path, value in episode.metadata["scheduled"].items() if "group" not in path}


@examples(200)
@given(
    st.floats(-10, 10),
    st.floats(-10, 10),
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(1, 30),
)
def test_a_ramp_has_the_values_of_the_second_reading_of_the_language(
    first: float, last: float, steps: int, after: int, step: int
) -> None:
    number, faults = read_expression((), f"ramp({first}, {last}, {steps}, after={after})", STEP)
    assert number is not None and not faults
    assert number.value({"step": step - 1}) == pytest.approx(scheduled(first, last, steps, after, step))


def test_episodes_are_made_and_learnt_from_with_the_values_of_their_step(annealed: Training) -> None:
    annealed.run()
    for step in range(1, STEPS + 1):
        for episode in annealed.episodes("train", step):
            assert (values(episode), episode.metadata["step"]) == (VALUES[step], step - 1)
            (solver,), (critic,) = episode["solver"], episode["critic"]
            assert solver.terms["late"] == step / 10
            expected = solver.terms["right"] + VALUES[step][LATE] * step / 10
            assert solver.reward == pytest.approx(expected)
            assert critic.reward == pytest.approx(VALUES[step][SCALE] * expected)
        rows = annealed.folder.credit_rows(step) or []
        weights = {row.grouping: row.weight for row in rows if row.role == "critic"}
        assert weights == {0: {1: 1.0, 2: 0.75, 3: 0.5}[step], 1: 1.0}
        shares = {row.role: row.loss_weight or 0.0 for row in rows}
        assert shares["solver"] == pytest.approx(VALUES[step]["roles.solver.weight"] * shares["critic"])
        line = annealed.figures()[step]
        assert line[f"schedule/{LATE}"] == VALUES[step][LATE]
    for episode in annealed.episodes("validation", 2):
        assert (values(episode), episode.metadata["step"]) == (VALUES[None], STEPS - 1)
    sent = {body["sampling_params"]["temperature"] for body in annealed.service.asked}
    assert sent == {1.0, 0.75, 0.5, 0.0}  # the last of the greedy validation


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_training_that_is_resumed_has_the_values_of_an_unbroken_one(
    annealed: Training, tmp_path: Path, staleness: int
) -> None:
    words = (f"train.staleness={staleness}",)
    annealed.run(*words)
    resumed = annealed.resumed(tmp_path / "resumed", 1, *words)
    for step in range(1, STEPS + 1):
        assert all(values(episode) == VALUES[step] for episode in resumed.episodes("train", step))


def test_policies_train_in_turns_where_their_roles_weigh_0_in_turns(annealed: Training) -> None:
    annealed.run(
        "policies={even: {}, odd: {}}",
        *("roles.solver.policy=even", "roles.solver.weight=1 if step % 2 == 0 else 0"),
        *("roles.critic.policy=odd", "roles.critic.weight=step % 2"),
    )
    even, odd, again = (body["model_id"] for body in annealed.service.asked_for("optim_step"))
    assert even == again != odd
    assert [len(annealed.episodes("train", step)) for step in range(1, STEPS + 1)] == [4, 4, 4]


def test_a_constant_expression_is_the_constant(annealed: Training, tmp_path: Path) -> None:
    def words(value: Any) -> tuple[str, ...]:
        paths = (LATE, SCALE, "roles.solver.weight", "roles.solver.sampling.temperature")
        return (
            *(f"{path}={value}" for path in paths),
            f"roles.critic.group=[{{by: task, weight: {value}}}, turn]",
        )

    runs: list[tuple[Any, Any, Any]] = []
    for name, value in (("constant", "0.5"), ("expression", "1 - 1 / 2")):
        run = Training(annealed.workflow, annealed.tokenizer, tmp_path / name)
        run.spec = annealed.spec
        before = len(run.service.asked_for("forward_backward"))
        run.run(*words(value))
        rows = [comparable(run.episodes("train", step)) for step in range(1, STEPS + 1)]
        for row in (row for of_step in rows for row in of_step):
            for key in ("hash", "scheduled"):
                row["info"].pop(key, None)
        figures = [{k: v for k, v in line.items() if "schedule/" not in k} for line in run.figures()]
        sent = [body["data"] for body in run.service.asked_for("forward_backward")[before:]]
        runs.append((rows, figures, [[(d.tokens, d.inputs) for d in data] for data in sent]))
    assert runs[0] == runs[1]


def test_a_spec_without_such_numbers_is_the_same_plan_in_every_step() -> None:
    plan = compile_file("solver_judge")
    assert plan_at(plan, 7) is plan
    assert not plan.reads_step


@pytest.mark.parametrize(
    ("override", "message", "at"),
    [
        ("roles.solver.weight=1 / (37 - step)", "in step 37: ", "weight"),
        ("roles.solver.weight=1 - step / 50", "in step 99: weight cannot be -0.98", "weight"),
        ("roles.solver.weight=step > 3", "in step 0 it is no number", "weight"),
        ("roles.solver.weight=0 * step", "is 0 in every step", "weight"),
        ("roles.solver.weight=0", "is 0 in every step", "weight"),
        ("roles.solver.weight={from: 1, to: 2, steps: 3}", "an expression over `step`", "weight"),
        ("roles.solver.weight=rmap(1, 2, 3)", "did you mean ramp", "weight"),
        ("roles.solver.weight=ramp(1, 2)", "ramp takes", "weight"),
        ("roles.solver.weight=judge.reward + 1", "judge", "weight"),
        ("roles.solver.count=ramp(1, 2, 3)", "count", "count"),
        ("train.learning_rate=ramp(1, 2, 3)", "learning_rate", "learning_rate"),
        (f"{LATE}=ramp(x, 0, 2)", "x", "late"),
        ("roles.solver.reward={sum: {a: {reward: countdown, weight: step}}}", "positive", ""),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_its_place(
    override: str, message: str, at: str, tmp_path: Path
) -> None:
    checked = check_file(write_spec(tmp_path, SPEC), ["train.steps=100", override])
    errors = [str(fault) for fault in checked.diagnostics if fault.severity == "error"]
    assert any(message in error and at in error for error in errors), errors


def test_the_forecast_and_the_report_show_the_curves(annealed: Training) -> None:
    shown = forecast(compile_file(annealed.spec, ["train.steps=9"])).numbers
    assert shown["roles.solver.weight"] == [(0, 2.0), (1, 2.0), (5, 1.0), (8, 1.0)]
    assert json.loads(json.dumps(shown))[LATE] == [[0, 0.5], [2, 0.0], [8, 0.0]]
    annealed.run()
    path = annealed.folder.path
    titles = [
        p.title
        for s in sections(read_run(path), read_digest(path, ["solver"], read_rule(annealed.folder)))
        for p in s.panels
    ]
    assert {*VALUES[1]} <= {*titles}


def test_a_run_has_the_values_of_the_last_step(tmp_path: Path) -> None:
    spec = SPEC.replace("train: {steps: 3}", "")
    without_training = rg.load(write_spec(tmp_path, spec)).plan
    assert (without_training.last_step, without_training.scheduled[SCALE]) == (0, 1.0)
    by_steps = rg.load(write_spec(tmp_path, spec + "train: {steps: 2}\n")).plan
    assert (by_steps.last_step, by_steps.scheduled[SCALE]) == (1, 2.0)
    by_rows = spec.replace("train: countdown,", "train: {countdown: {count: 40}},")
    by_rows = rg.load(write_spec(tmp_path, by_rows + "train: {batch_size: 8, epochs: 2}\n")).plan
    assert (by_rows.last_step, by_rows.scheduled["roles.solver.weight"]) == (9, 1.0)
