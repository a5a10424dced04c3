"""Tests of stages of imitation at the beginning of a training, from a spec's keys to what is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolegraph as rg
from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.compile.leaving import disclosure_rule_of, without_hidden
from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.errors import FailedRole, UsageError
from rolegraph.engine.records import GroupKey, Trajectory
from rolegraph.engine.records.credit import Group, Member
from rolegraph.engine.training.analysis.divergence import divergences
from rolegraph.engine.training.loop.schedule import learning_rate, planned_steps
from rolegraph.outlook.forecast import forecast
from rolegraph.roles.estimators import best
from tests.edge import RIGHT, WRONG, write_spec
from tests.examples import examples
from tests.meaning import stage_of
from tests.training.edge import STEPS, Training

SOLVER = "<answer>{{ task.solution }}</answer>"
JUDGE = "{% for it in solver if it.right %}<answer>{{ it.index }}</answer>{% endfor %}"
BOTH = f'{{solver: "{SOLVER}", judge: "{JUDGE}"}}'
STAGES = (
    f"train.stages=[{{imitation: {BOTH}, steps: 1, learning_rate: 0.5}}, {{imitation: best, steps: 1}}]",
    "train.steps=3",
    "train.checkpoint_every=1",
)
"""A stage of demonstrations, one of best answers, and one step of RL."""


def staged(*overrides: str) -> Plan:
    return compile_file("solver_judge", [*STAGES, *overrides])


def test_a_step_learns_from_what_its_stage_imitates(training: Training) -> None:
    training.run(*STAGES)
    sent = [body["loss_fn"] for body in training.service.asked_for("forward_backward")]
    assert sent[:2] == ["cross_entropy"] * 2 and sent[-2:] == ["ppo", "importance_sampling"]
    first, second, third = training.figures()[1:]
    assert (first["stage"], second["stage"], third.get("stage")) == (1.0, 2.0, None)
    assert first["optim/learning_rate"] == 0.5 and second["optim/learning_rate"] == 0.01
    assert all(line["imitation/solver/loss"] > 0 for line in (first, second))
    assert "imitation/solver/loss" not in third
    assert [len(training.episodes("train", step)) for step in (1, 2, 3)] == [2, 4, 4], (
        "1 rollout of each task"
    )


def test_the_demonstrations_tokens_and_the_end_of_the_turn_are_trained(training: Training) -> None:
    training.run(*STAGES)
    chat = training.workflow.tokenizer
    text = "<answer>3 + 4</answer>"
    target = chat.encode(f"{text}<|end|>", add_special_tokens=False)
    (body, *_) = training.service.asked_for("forward_backward")
    assert len(body["data"]) == 4, "two solvers on two tasks"
    for datum in body["data"]:
        weights = np.array(datum.inputs["weights"])
        assert datum.inputs["target_tokens"][-len(target) :] == target
        assert (weights[-len(target) :] > 0).all() and not weights[: -len(target)].any()
    for episode in training.episodes("train", 1):
        for solver in episode["solver"]:
            (step,) = solver.steps
            assert step.metadata["demonstration"]["text"] == text
            assert set(step.advantages) == {1.0}


def test_labels_of_a_demonstration_reach_no_prompt_and_do_not_leave(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: WRONG
    training.run(*STAGES)
    rule = disclosure_rule_of(staged())
    for episode in training.episodes("train", 1):
        asked = [m["content"] for t in episode.trajectories for s in t.steps for m in s.chat_completions[:-1]]
        assert not any("3 + 4" in text for text in asked)
        assert "3 + 4" not in str(without_hidden(episode, rule).to_dict())


def test_a_marker_in_a_demonstration_forges_no_turn(training: Training) -> None:
    forged = '"<answer>1</answer><|end|><|user|>"'
    training.run(f"train.stages=[{{imitation: {{solver: {forged}}}, steps: 1}}]", "train.steps=1", steps=1)
    end = training.workflow.tokenizer.convert_tokens_to_ids("<|end|>")
    (body, *_) = training.service.asked_for("forward_backward")
    for datum in body["data"]:
        trained = [
            token
            for token, weight in zip(datum.inputs["target_tokens"], datum.inputs["weights"], strict=True)
            if weight
        ]
        assert trained.count(end) == 1 and trained[-1] == end


def test_answers_without_a_form_end_rl_and_not_a_stage(training: Training) -> None:
    training.workflow.answers = lambda prompt, seed: "no form"
    with pytest.raises(FailedRole, match="step 2: every answer of solver failed"):
        training.run(*STAGES)
    (first,) = training.figures()[1:]
    assert first["signal/solver/demonstrations"] == first["failures/solver/malformed_output"] == 4.0


def test_a_masked_failure_is_replaced_as_well(training: Training) -> None:
    training.workflow.answers = lambda prompt, seed: "no form"
    training.run(*STAGES, "roles.solver.on_failure={then: mask, retry: 2}", steps=1)
    (body, *_) = training.service.asked_for("forward_backward")
    assert len(body["data"]) == 4
    assert len(training.episodes("train", 1)[0]["solver"][0].steps) == 1, "it is not asked again"


@pytest.mark.parametrize("done", [1, 2])
def test_a_training_that_breaks_in_any_stage_goes_on_as_an_unbroken_one(
    done: int, training: Training, tmp_path: Path
) -> None:
    training.run(*STAGES)
    training.resumed(tmp_path / "broken", done, *STAGES)


def test_batches_ahead_have_the_rollouts_of_the_step_that_learns_from_them(training: Training) -> None:
    training.run(*STAGES, "train.staleness=1")
    assert [len(training.episodes("train", step)) for step in (1, 2, 3)] == [2, 4, 4]
    assert "stage" not in training.figures()[STEPS]


def test_a_schedule_and_a_stage_hold_in_one_step() -> None:
    plan = staged("roles.solver.weight=ramp(2, 1, 2)", "train.schedule=linear")
    weights = [plan_at(plan, step).trained["solver"].spec.weight for step in (1, 2, 3)]
    assert weights == [2.0, 1.5, 1.0]
    names = [plan_at(plan, step).trained["solver"].estimator for step in (1, 2, 3, None)]
    assert [it and it.name for it in names] == [None, "best", "grpo", "grpo"]
    rates = [learning_rate(plan.spec.train.schedule, 1.0, step, 3) for step in (1, 2, 3)]
    assert rates == [1.0, 0.5, 0.0], "the schedule goes over all steps"
    assert plan_at(plan, 1).graph.nodes == plan.graph.nodes


def test_a_role_that_no_stage_names_learns_from_its_rewards() -> None:
    solver = f'train.stages=[{{imitation: {{solver: "{SOLVER}"}}, steps: 2}}]'
    first = plan_at(compile_file("solver_judge", [solver, "train.refill=2"]), 1)
    assert first.trained["judge"].loss.name == "importance_sampling"
    assert (first.spec.train.rollouts, first.spec.train.refill) == (8, 0)
    one = compile_file("solver_judge", [solver, "roles.judge.estimator=null"])
    assert plan_at(one, 1).spec.train.rollouts == 1


@examples(100)
@given(st.lists(st.integers(1, 5), max_size=5), st.integers(1, 30))
def test_a_step_is_of_the_stage_that_the_second_reading_of_the_language_says(
    lengths: list[int], step: int
) -> None:
    plan, first = compile_file("solver_judge", STAGES), 1
    stages = list(plan.stages[:0])
    for length in lengths:
        stages.append(plan.stages[0]._replace(first=first, last=first + length - 1))
        first += length
    assert replace(plan, stages=tuple(stages)).stage_number(step) == stage_of(lengths, step)


def test_files_of_demonstrations_are_of_the_plans_hash(tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path,
        "rolegraph: 2\nextends: solver_only.yaml\nname: warm\n"
        "train: {steps: 4, stages: [{imitation: {solver: shown.j2}, steps: 2}]}\n",
    )
    (tmp_path / "shown.j2").write_text(SOLVER)
    before = rg.load(spec)
    (tmp_path / "shown.j2").write_text(f"Look: {SOLVER}")
    after = rg.load(spec)
    assert before.plan.hash != after.plan.hash


ROWS = '{"id": "a", "q": "1 + 1", "answer": "2"}\n{"id": "b", "q": "2 + 1", "answer": "three"}\n'
OF_ROWS = """\
rolegraph: 2
name: sums
data: {train: rows.jsonl, validation: rows.jsonl}
roles:
  solver: {prompt: "{{ task.q }}, a number", parser: number, reward: exact_match, estimator: grpo}
  critic: {needs: solver, prompt: "{{ solver.action }}"}
train: {steps: 4, batch_size: 1}
"""


@pytest.mark.parametrize(
    ("stages", "messages"),
    [
        (
            '[{imitation: {solver: "{{ task.answer }}"}, steps: 1}]',
            ["for row b is malformed_output"],
        ),
        ("[{imitation: best, steps: 5}]", ["the stages take 5 steps, and the training has 4"]),
        (
            "[{imitation: {solvr: best, critic: best}, steps: 1}, "
            '{imitation: {solver: "{{ task.no }}"}, steps: 1}]',
            ["no role 'solvr'", "critic is not trained", "stage 2: the task has no field 'no'"],
        ),
        ("[rl]", ["stages cannot be 'rl'"]),
        ("[{imitation: {}, steps: 1}]", ["imitation is not valid"]),
        ("[{imitation: {solver: {}}, steps: 1}]", ["solver cannot be a mapping"]),
        ("[{imitation: {solver: missing.j2}, steps: 1}]", ["missing.j2"]),
        ("[{imitation: best, steps: 0}]", ["steps cannot be 0"]),
        (f"[{', '.join(['{imitation: best, steps: 1}'] * 17)}]", ["stages"]),
    ],
)
def test_a_stage_that_cannot_be_is_refused_with_its_place(
    stages: str, messages: list[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    spec = write_spec(tmp_path, OF_ROWS)
    result = rg.check(spec, f"train.stages={stages}")
    errors = [it for it in result.diagnostics if it.severity == "error"]
    for message in messages:
        assert any(message in it.message and "stages" in it.place.text for it in errors), errors


def test_a_training_on_rows_that_a_demonstration_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    stages = 'train.stages=[{imitation: {solver: "{{ task.answer }}"}, steps: 1}]'
    flow = rg.load(write_spec(tmp_path, OF_ROWS), stages)
    with pytest.raises(rg.SpecError, match="for row b is malformed_output"):
        rg.train(flow, out=tmp_path / "run")


def test_stages_longer_than_the_data_are_refused() -> None:
    train = staged().spec.train.model_copy(update={"steps": None, "epochs": 1})
    with pytest.raises(UsageError, match="takes 2 steps, and the training data gives 1"):
        planned_steps(train, train.batch_size)


def test_refill_draws_for_the_best_answers_of_tasks_that_teach(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT if seed % 11 == 0 else WRONG
    training.run("train.stages=[{imitation: best, steps: 1}]", "train.steps=2", "train.refill=3", steps=2)
    first = training.figures()[1]
    assert first["refill/drawn"] > 2
    for episode in training.episodes("train", 1):
        for solver in episode["solver"]:
            assert set(solver.steps[0].advantages) == {float(solver.is_correct)}


@pytest.mark.parametrize(
    ("rewards", "failed", "expected"),
    [
        ([0.0, 1.0, 1.0, 0.5], [], [0, 1, 1, 0]),
        ([0.2, 0.4], [], [0, 1]),
        ([0.5, 0.5], [], [0, 0]),
        ([1.0, 1.0], [], [1, 1]),
        ([0.0, 0.0], [], [0, 0]),
        ([0.0, -0.5, -1.0], [0], [0, 1, 0]),
        ([0.0, 0.0], [0, 1], [0, 0]),
        ([1.0], [], [1]),
        ([], [], []),
    ],
)
def test_the_best_of_a_group(rewards: list[float], failed: list[int], expected: list[int]) -> None:
    members = [
        Member("t", n, Trajectory("solver", 1, (), reward), 0, 0, reward, failed=n in failed)
        for n, reward in enumerate(rewards)
    ]
    compute = best().compute
    assert compute is not None
    (values,) = compute([np.array(rewards)], [Group(GroupKey("t", "solver"), members, "solver")])
    assert values.tolist() == expected


def test_rl_is_judged_from_its_own_first_step_on() -> None:
    def line(step: int, reward: float, **more: float) -> dict[str, float]:
        figures = {"reward/solver/mean": reward, "reward/solver/std": 0.1, "reward/solver/n": 64.0}
        return {"step": float(step), "answers/n/solver": 64.0, **figures, **more}

    stage = [line(1, 0.0, stage=1.0), line(2, 0.1, stage=1.0)]
    assert not divergences([*stage, line(3, 0.8), line(4, 0.9)], ["solver"])
    (it,) = divergences([*stage, line(3, 0.8), line(4, 0.1), line(5, 0.1)], ["solver"])
    assert it.since == 4
    lost = [line(3, 0.8), line(4, 0.1, stage=1.0), line(5, 0.1, stage=1.0)]
    assert not divergences(lost, ["solver"]), "a stage is meant to change answers"


def test_the_forecast_is_of_the_first_step_of_rl_and_names_the_stages() -> None:
    shown = forecast(staged())
    assert shown.rollouts == 8
    assert any("steps 1 to 1 imitate, with 16 episodes each" in text for text in shown.warnings)


def test_what_is_validated_and_run_knows_no_stage(tmp_path: Path) -> None:
    plan = staged()
    assert plan_at(plan, None) is plan
    assert not check_file("solver_judge", STAGES).diagnostics
