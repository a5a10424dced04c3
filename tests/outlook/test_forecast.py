"""Forecasts from episodes whose figures are known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.compile import compile_file
from rolegraph.engine.records import Episode, Failure, FailureName, Step, Trajectory
from rolegraph.engine.training.loop.schedule import batch_tasks
from rolegraph.outlook.forecast import ObservedEpisodes, SampleMean, forecast
from rolegraph.outlook.forecasting import probe_sizes
from tests import replays


def an_episode(task: str, rollout: int, *rewards: float, tokens: int = 10) -> Episode:
    """Return an episode of solver_only with a solver for each reward, each with one Step."""
    trajectories = tuple(
        Trajectory(
            "solver",
            index,
            (
                Step(
                    prompt_ids=(1,) * 5, response_ids=(2,) * tokens, logprobs=(-0.1,) * tokens, reward=reward
                ),
            ),
            reward,
            uid=f"{task}:{rollout}/solver.{index}",
        )
        for index, reward in enumerate(rewards, 1)
    )
    return Episode(task, rollout, {"id": task}, trajectories)


SMALL = ("roles.solver.count=1", "train.rollouts=4")


def test_without_episodes_there_are_the_bounds_of_the_spec() -> None:
    found = forecast(compile_file("solver_judge"))
    assert (found.episodes, found.calls_at_most, found.chain) == (16 * 8, 16 * 8 * 3, 2)
    assert found.roles["solver"].group_sizes == (16, 16)
    assert found.roles["judge"].calls_at_most == 128
    assert found.roles["solver"].teaching is found.seconds is found.cost is None


TEACHER = "roles.solver.signal={reverse_kl: {teacher: base}}"
LIKELY = "roles.judge.reward={likelihood: {of: yes, model: base}}"


@pytest.mark.parametrize(
    ("overrides", "solver", "judge"), [([], 0, 0), ([TEACHER], 256, 0), ([TEACHER, LIKELY], 256, 128)]
)
def test_teachers_and_likelihoods_are_requests_beside_the_calls(
    overrides: list[str], solver: int, judge: int
) -> None:
    found = forecast(compile_file("solver_judge", overrides))
    assert found.calls_at_most == 16 * 8 * 3
    roles = found.roles
    assert (roles["solver"].scorings_at_most, roles["judge"].scorings_at_most) == (solver, judge)
    assert found.scorings_at_most == solver + judge


def test_groups_over_a_batch_have_no_number_before_the_batch_is_whole() -> None:
    plan = compile_file("solver_only", (*SMALL, "roles.solver.group={by: turn, over: batch}"))
    assert forecast(plan).roles["solver"].group_sizes is None
    equal = [an_episode(f"t{n}", k, float(n)) for n in range(2) for k in range(4)]
    solver = forecast(plan, ObservedEpisodes("seen", equal)).roles["solver"]
    assert (solver.groups, solver.group_sizes) == (None, None)
    assert solver.teaching == SampleMean(1.0, 1), "the tasks differ, and are one group"


def test_a_step_that_may_draw_again_is_said_to_cost_more() -> None:
    (warning,) = forecast(compile_file("solver_judge", ["train.refill=2"])).warnings
    assert "3 times these calls" in warning


def test_tokens_and_costs_are_those_of_as_many_episodes_as_the_step_has() -> None:
    plan = compile_file("solver_only", (*SMALL, "train.batch_size=8"))
    seen = [an_episode(f"t{n}", k, k % 2, tokens=10 + n) for n in range(4) for k in range(4)]
    price = rg.Price(prompt=2.0, response=4.0, train=1.0)
    found = forecast(plan, ObservedEpisodes("seen", seen, seconds=8.0), price=price)
    solver = found.roles["solver"]
    assert solver.response_tokens == SampleMean(32 * 11.5, 4)
    assert found.tokens("prompt") == 32 * 5
    assert found.cost == pytest.approx((160 * 2 + 368 * 4 + 528) / 1e6)
    assert found.seconds == 16.0
    assert (solver.groups, solver.group_sizes, solver.share) == (8, (4, 4), 1.0)


def test_a_cost_is_by_the_models_price_or_as_its_endpoint_counts_it() -> None:
    priced = "model.price={prompt: 2, response: 4, train: 1}"
    plan = compile_file("solver_only", (*SMALL, "train.batch_size=8", priced))
    seen = [an_episode(f"t{n}", k, k % 2, tokens=10 + n) for n in range(4) for k in range(4)]
    found = forecast(plan, ObservedEpisodes("seen", seen))
    assert found.cost == pytest.approx((160 * 2 + 368 * 4 + 528) / 1e6)
    for step in (step for it in seen for trajectory in it.trajectories for step in trajectory.steps):
        step.metadata["usage"] = {"cost": 0.5}
    counted = forecast(plan, ObservedEpisodes("seen", seen))
    assert counted.cost == pytest.approx(32 * 0.5 + 528 / 1e6)


def test_the_share_of_groups_that_teach_is_a_mean_over_the_whole_groups() -> None:
    plan = compile_file("solver_only", SMALL)
    mixed = [an_episode("mixed", k, float(k % 2)) for k in range(4)]
    equal = [an_episode(f"equal{n}", k, 1.0) for n in range(2) for k in range(4)]
    partial = [an_episode("partial", 0, 0.0)]
    solver = forecast(plan, ObservedEpisodes("seen", [*mixed, *equal, *partial])).roles["solver"]
    assert solver.teaching == SampleMean(1 / 3, 3)
    assert solver.response_tokens and solver.response_tokens.n == 4


def test_a_probe_is_of_tasks_that_a_training_of_the_same_seed_begins_with(tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0, 2), tasks=1)
    flow = rg.load("solver_only", *SMALL, model=f"replay:{tmp_path / 'model.jsonl'}")
    for seed in (0, 1):
        events: list[api.Event] = []
        rg.forecast(flow, probe=11, seed=seed, observe=events.append)
        probed = [event.episode.task_id for event in events if isinstance(event, api.EpisodeDone)]
        first = batch_tasks(flow.tasks("train"), flow.plan.spec.train, seed, number=1)
        counts = Counter(probed)
        assert len(probed) == 11 and counts[first[0]["id"]] == 4
        assert {*counts} == {task["id"] for task in first[: len(counts)]}


@given(st.integers(1, 100), st.integers(1, 12), st.integers(1, 20), st.integers(1, 30))
def test_a_probe_has_the_number_of_episodes_that_was_asked_for(
    wanted: int, rollouts: int, batch_size: int, rows: int
) -> None:
    sizes = probe_sizes(wanted, rollouts, batch_size, rows)
    assert sum(sizes) == min(wanted, rows * rollouts)
    assert len(sizes) <= rows and max(sizes) <= rollouts
    assert (sizes[0] == rollouts) == (wanted >= rollouts)


def test_a_role_that_will_not_learn_is_warned_of() -> None:
    plan = compile_file("solver_only", SMALL)
    flat = [an_episode(f"t{n}", k, 1.0) for n in range(3) for k in range(4)]
    (warning,) = forecast(plan, ObservedEpisodes("seen", flat)).warnings
    assert warning == "solver: every advantage was 0; its reward was 1 every time"
    few = [an_episode(f"t{n}", 0, 1.0) for n in range(3)]
    (warning,) = forecast(plan, ObservedEpisodes("seen", few)).warnings
    assert warning.startswith("solver: no task has 4 episodes in which it ran")


@pytest.mark.parametrize("masked", [False, True])
def test_a_role_whose_answers_all_failed_is_said_to_fail(masked: bool) -> None:
    plan = compile_file("solver_only", SMALL)
    failed = [
        episode._replace(
            trajectories=[
                t._replace(failure=Failure(FailureName.MALFORMED_OUTPUT, "no <answer>"), masked=masked)
                for t in episode.trajectories
            ]
        )
        for episode in (an_episode(f"t{n}", k, 0.0) for n in range(3) for k in range(4))
    ]
    found = forecast(plan, ObservedEpisodes("seen", failed))
    (warning,) = found.warnings
    assert warning.startswith("solver: 12 of 12 answers failed with malformed_output: no <answer>")
    solver = found.roles["solver"]
    assert (solver.failing, solver.teaching) == (SampleMean(1.0, 3), SampleMean(0.0, 3))


def test_answers_without_a_rating_are_said_to_be_unrated() -> None:
    plan = compile_file("debate_judge", ("train.rollouts=4",))
    seen = [an_episode("t", k, 0.0) for k in range(4)]
    unrated = [
        episode._replace(
            trajectories=[t._replace(name="pro", reward=None, masked=True) for t in episode.trajectories]
        )
        for episode in seen
    ]
    warnings = forecast(plan, ObservedEpisodes("seen", unrated)).warnings
    assert warnings[0] == (
        "pro: 4 of 4 answers are unrated: judge did not run or gave no rating that can be read"
    )
    assert not any(warning.startswith("pro: no task") for warning in warnings)


def test_equal_rewards_without_a_baseline_do_not_teach() -> None:
    plan = compile_file("solver_only", (*SMALL, "roles.solver.estimator=reinforce"))
    found = forecast(plan, ObservedEpisodes("seen", [an_episode("t", k, 1.0) for k in range(4)]))
    assert found.roles["solver"].teaching == SampleMean(0.0, 1)
    assert found.warnings == (
        "solver: no group has different rewards, so all its answers get likelier, or none",
    )
