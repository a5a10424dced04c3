"""Tests of numbers that change over the steps of a training, from a spec's keys to what is trained on."""

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
from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.records import Episode
from rolegraph.engine.vocabulary import NumberSchedule
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
        late: {reward: step / 10, weight: {from: 0.5, to: 0, steps: 2}}
    estimator: {grpo: {std: false}}
    weight: {from: 2, to: 1, steps: 4, after: 1}
    sampling: {temperature: {from: 1, to: 0.5, steps: 2}}
  critic:
    needs: solver
    prompt: "Proposed solutions {{ solver.action }}"
    reward: {of: solver, scale: {from: 1, to: 3, steps: 2}}
    estimator: grpo
    group: [{by: task, weight: {from: 1, to: 0.5, steps: 2}}, {by: turn}]
loops: {once: {roles: [solver, critic], times: 1}}
episode: {correct: solver}
"""
LATE, SCALE = "roles.solver.reward.weighted.late.weight", "roles.critic.reward.scale"
VALUES = {
    1: {LATE: 0.5, SCALE: 1.0, "roles.solver.weight": 2.0, "roles.solver.sampling.temperature": 1.0},
    2: {LATE: 0.25, SCALE: 2.0, "roles.solver.weight": 2.0, "roles.solver.sampling.temperature": 0.75},
    3: {LATE: 0.0, SCALE: 3.0, "roles.solver.weight": 1.75, "roles.solver.sampling.temperature": 0.5},
    None: {LATE: 0.0, SCALE: 3.0, "roles.solver.weight": 1.0, "roles.solver.sampling.temperature": 0.5},
}
"""Values of four of the five schedules by step; None is outside of training."""


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
    st.none() | st.integers(1, 30),
)
def test_a_schedule_has_the_values_of_the_second_reading_of_the_language(
    first: float, last: float, steps: int, after: int, step: int | None
) -> None:
    made = NumberSchedule.model_validate({"from": first, "to": last, "steps": steps, "after": after})
    assert made.at(step) == pytest.approx(scheduled(first, last, steps, after, step))
    assert NumberSchedule.model_validate({"from": first, "to": first, "steps": steps}).at(step) == first


def test_episodes_are_made_and_learnt_from_with_the_values_of_their_step(annealed: Training) -> None:
    annealed.run()
    for step in range(1, STEPS + 1):
        for episode in annealed.episodes("train", step):
            assert (values(episode), episode.metadata["step"]) == (VALUES[step], step)
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
        assert (values(episode), episode.metadata["step"]) == (VALUES[None], 0)
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


def test_a_constant_schedule_is_the_constant(annealed: Training, tmp_path: Path) -> None:
    def words(value: Any) -> tuple[str, ...]:
        paths = (LATE, SCALE, "roles.solver.weight", "roles.solver.sampling.temperature")
        return (
            *(f"{path}={value}" for path in paths),
            f"roles.critic.group=[{{by: task, weight: {value}}}, turn]",
        )

    runs: list[tuple[Any, Any, Any]] = []
    for name, value in (("constant", "0.5"), ("schedule", "{from: 0.5, to: 0.5, steps: 2}")):
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


def test_a_spec_without_schedules_is_the_same_plan_in_every_step() -> None:
    plan = compile_file("solver_judge")
    assert plan_at(plan, 7) is plan
    assert not plan.reads_step


@pytest.mark.parametrize(
    ("override", "message", "at"),
    [
        ("roles.solver.weight={from: 1, to: 0, steps: 4}", "weight", "weight"),
        ("roles.solver.weight={from: 0, to: 1, steps: 4}", "weight", "weight"),
        ("roles.solver.weight={from: 1, to: 2}", "steps", "weight"),
        ("roles.solver.weight={from: 1, to: 2, steps: 0}", "steps", "weight"),
        ("roles.solver.weight={from: 1, to: 2, steps: 3, before: 1}", "before", "weight"),
        ("roles.solver.weight={from: one, to: 2, steps: 3}", "from", "weight"),
        ("roles.solver.count={from: 1, to: 2, steps: 3}", "count", "count"),
        ("train.learning_rate={from: 1, to: 2, steps: 3}", "learning_rate", "learning_rate"),
        (f"{LATE}={{from: x, to: 0, steps: 2}}", "from", "late"),
        (
            "roles.solver.reward={sum: {a: {reward: countdown, weight: {from: 0, to: 1, steps: 2}}}}",
            "positive",
            "",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_its_place(
    override: str, message: str, at: str, tmp_path: Path
) -> None:
    checked = check_file(write_spec(tmp_path, SPEC), [override])
    errors = [str(fault) for fault in checked.diagnostics if fault.severity == "error"]
    assert any(message in error and at in error for error in errors), errors


def test_the_forecast_and_the_report_show_the_curves(annealed: Training) -> None:
    shown = forecast(compile_file(annealed.spec)).schedules
    assert shown["roles.solver.weight"] == [(1, 2.0), (2, 2.0), (6, 1.0)]
    assert json.loads(json.dumps(shown))[LATE] == [[1, 0.5], [3, 0.0]]
    annealed.run()
    path = annealed.folder.path
    titles = [
        p.title
        for s in sections(read_run(path), read_digest(path, ["solver"], read_rule(annealed.folder)))
        for p in s.panels
    ]
    assert {*VALUES[1]} <= {*titles}


def test_a_run_has_the_last_values_and_step_0(tmp_path: Path) -> None:
    flow = rg.load(write_spec(tmp_path, SPEC))
    assert flow.plan.scheduled | VALUES[None] == flow.plan.scheduled
