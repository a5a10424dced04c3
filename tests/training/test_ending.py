"""Tests of trainings that end before their last planned step: `train.stop`, and a budget."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import SpecError, UsageError
from rolegraph.engine.training.analysis.divergence import STAGE
from rolegraph.engine.training.loop.ending import Budget, Usage, stalled
from tests.edge import RIGHT, WRONG
from tests.training.edge import STEPS, Training

STOP = ("train.stop=1", "train.validation={every: 1, tasks: 2, rollouts: 1}")


def fallen(seed: int, updates: int) -> str:
    return RIGHT if updates == 0 else WRONG


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("2M-tokens", Budget(tokens=2e6)),
        ("0.5k-tokens", Budget(tokens=500)),
        ("7-tokens", Budget(tokens=7)),
        ("30m", Budget(seconds=1800)),
        ("1h30m", Budget(seconds=5400)),
        ("90s", Budget(seconds=90)),
        ("$5", Budget(dollars=5)),
        ("$0.25", Budget(dollars=0.25)),
    ],
)
def test_a_budget_is_tokens_a_time_or_dollars(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    "text", ["", "30", "m", "2M", "-1m", "1.5h", "2T-tokens", "30m 2M-tokens", "٣m", "$", "5$", "$-1"]
)
def test_another_budget_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Budget.parse(text)


def test_no_budget_and_a_long_one_are_no_limit() -> None:
    for text in (None, "9" * 400 + "h", "9" * 400 + "-tokens"):
        assert Budget.parse(text).allows(Usage(1e12, 1e12), Usage(1e12, 1e12))


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 60))
def test_a_budget_is_never_passed_by_steps_that_grow_no_dearer(costs: list[int], most: int) -> None:
    costs.sort(reverse=True)
    budget, made = Budget(tokens=most), 0
    for cost, used in zip(costs, accumulate(costs), strict=True):
        made = used
        if not budget.allows(Usage(used, 0), Usage(cost, 0)):
            break
    assert made <= most or made == costs[0], "one step is made in any case"


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=1), st.integers(1, 4))
def test_a_training_stalls_once_as_many_validations_in_a_row_bring_no_new_best(
    values: list[float], patience: int
) -> None:
    train = compile_file("solver_judge", (f"train.stop={patience}",)).spec.train
    lines = [{"step": float(step), "validation/correct": value} for step, value in enumerate(values)]
    since = len(values) - 1 - values.index(max(values))
    assert (stalled(lines, train) is not None) == (since >= patience)


def test_rl_is_judged_from_its_own_first_validation_on() -> None:
    train = compile_file("solver_judge", ("train.stop=2",)).spec.train
    lines = [
        {"step": float(step), "validation/correct": value} for step, value in enumerate((0.9, 0.1, 0.3, 0.5))
    ]
    lines[1][STAGE] = 1.0
    assert stalled(lines[:2], train) is None and stalled(lines, train) is None
    falling = [*lines, *({"step": step, "validation/correct": 0.2} for step in (4.0, 5.0))]
    assert stalled(falling, train) is not None


def test_steps_without_a_validation_do_not_count() -> None:
    train = compile_file("solver_judge", ("train.stop=1",)).spec.train
    lines = [{"step": 0.0, "validation/correct": 0.5}, {"step": 1.0}, {"step": 2.0}]
    assert stalled(lines, train) is None and stalled([], train) is None


def test_a_training_whose_figure_falls_ends_as_a_complete_one(training: Training) -> None:
    training.workflow.solve = fallen
    training.run(*STOP)
    assert [line["step"] for line in training.folder.metrics()] == [0, 1]
    assert "greedy/correct" in training.folder.metrics()[-1]
    info = training.folder.info()
    assert info.steps == 1 and "correct" in info.stopped
    last = training.folder.last_checkpoint()
    assert last is not None and last.step == 1
    training.run(*STOP, start=last)
    assert [line["step"] for line in training.folder.metrics()] == [0, 1], "a resumption adds no step"


def test_a_kill_before_the_record_of_the_stop_changes_nothing(training: Training) -> None:
    training.workflow.solve = fallen
    training.run(*STOP)
    file = training.folder.info_file
    killed = {
        key: value for key, value in json.loads(file.read_text()).items() if key not in ("steps", "stopped")
    }
    file.write_text(json.dumps(killed))
    assert not training.folder.info().stopped
    training.run(*STOP, start=training.folder.last_checkpoint())
    assert [line["step"] for line in training.folder.metrics()] == [0, 1]
    assert training.folder.info().steps == 1 and training.folder.info().stopped


def test_a_training_whose_figure_stays_best_makes_all_steps(training: Training) -> None:
    training.run("train.stop=3", "train.validation={every: 1, tasks: 2, rollouts: 1}")
    assert len(training.folder.metrics()) == STEPS + 1
    assert not training.folder.info().stopped


def test_a_budget_ends_with_a_validation_and_the_resumption_goes_on(
    training: Training, tmp_path: Path
) -> None:
    training.budget = Budget(tokens=1)
    training.run()
    lines = training.folder.metrics()
    assert [line["step"] for line in lines] == [0, 1]
    assert {"validation/correct", "greedy/correct"} <= lines[-1].keys(), "every: 2, so it ends the training"
    start = training.folder.last_checkpoint()
    assert start is not None and start.step == 1 and not training.folder.info().stopped
    training.budget = Budget(tokens=1e9)
    training.run(start=start)
    assert [line["step"] for line in training.folder.metrics()] == [0, 1, 2, 3]


def test_a_step_costs_its_answers_and_its_updates_and_a_budget_of_dollars_ends_the_training(
    training: Training,
) -> None:
    training.budget = Budget(dollars=1e-9)
    training.run("model.price={prompt: 1, response: 10, train: 100}")
    first, second = training.folder.metrics()
    episodes = training.episodes("train", 1)
    episodes += [*training.episodes("validation", 0), *training.episodes("validation", 1)]
    episodes += [*training.episodes("greedy", 0), *training.episodes("greedy", 1)]
    steps = [step for it in episodes for trajectory in it.trajectories for step in trajectory.steps]
    trained = [
        len(datum.tokens) for it in training.service.asked_for("forward_backward") for datum in it["data"]
    ]
    answers = sum(step.prompt_tokens + 10 * step.response_tokens for step in steps)
    assert trained
    assert first["cost/step"] + second["cost/step"] == pytest.approx((answers + 100 * sum(trained)) / 1e6)


def test_a_training_without_a_price_has_no_cost(training: Training) -> None:
    training.run(steps=1)
    assert all("cost/step" not in line for line in training.folder.metrics())


@pytest.mark.parametrize(
    ("overrides", "marked"),
    [
        (("train.validation.best=judge_ac",), "judge_ac"),
        (("train.stop=2", "train.validation.every=0"), "train.stop"),
    ],
)
def test_a_stop_without_validations_or_with_another_figure_is_a_fault(
    overrides: tuple[str, ...], marked: str
) -> None:
    with pytest.raises(SpecError) as refused:
        compile_file("solver_judge", overrides)
    assert len(refused.value.diagnostics) == 1 and marked in str(refused.value)
