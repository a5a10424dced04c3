"""Tests of one training step of every shipped spec on the local model, shared between tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import rolegraph as rg
from rolegraph.engine.records import SEEDS, RunFolder
from rolegraph.engine.records.episodes import read_episodes

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService
from tests.api.test_specs import SPECS

pytestmark = pytest.mark.service

OneStep = Callable[[str], rg.Run]
TRAINED = [path.stem for path in SPECS if path.stem != "solver_judge_distill"]
"""Shipped specs to train; the distilled one is trained in test_training.py."""


def episodes(trained: rg.Run, split: str = "train") -> list[rg.Episode]:
    return [*read_episodes(trained.folder / "episodes" / f"{split}-000001.jsonl")]


@pytest.mark.parametrize("spec", TRAINED)
def test_a_shipped_spec_trains_for_a_step(spec: str, one_step: OneStep) -> None:
    trained = one_step(spec)
    before, after = RunFolder(trained.folder).metrics()
    assert (before["step"], after["step"]) == (0, 1)
    assert any(name.startswith("reward/") for name in after), "somebody was compared"
    assert len(episodes(trained)) == 4
    plan = rg.load(spec).plan
    policies = [*plan.policies]
    (saved,) = trained.checkpoints
    assert list(saved.policies) == policies
    assert len({policy.sampler for policy in saved.policies.values()}) == len(policies)
    report = trained.report.read_text("utf-8")
    assert "<svg" in report
    assert ("Loss of each policy" in report) == any(name.startswith("optim/loss/") for name in after)
    learning = [role for role in plan.trained if f"optim/share/{role}" in after]
    shared = [p for p in policies if sum(p in plan.policies_of(role) for role in plan.trained) > 1]
    drawn = any(plan.policies_of(role) & {*shared} for role in learning)
    assert ("Share of its policy" in report) == drawn


# rewards that depend on other roles


def test_both_sides_of_a_debate_before_a_judge_add_up_to_nothing(one_step: OneStep) -> None:
    for episode in episodes(one_step("debate_judge")):
        assert sum(trajectory.reward or 0.0 for trajectory in episode.trajectories) == 0


def test_a_team_earns_the_same(one_step: OneStep) -> None:
    for episode in episodes(one_step("chain_team")):
        assert len({trajectory.reward for trajectory in episode.trajectories}) == 1


def test_a_proposer_earns_most_where_half_of_its_solvers_are_right(one_step: OneStep) -> None:
    for episode in episodes(one_step("proposer_solver_judge")):
        rewards = [trajectory.reward or 0.0 for trajectory in episode.trajectories]
        right = sum(rewards[1:5])
        assert rewards[0] == pytest.approx(right * (4 - right) / 4)


# loops and games


def test_every_turn_of_a_loop_learns_what_its_trajectory_earned(one_step: OneStep) -> None:
    turns: set[int] = set()
    for episode in episodes(one_step("solver_verifier_loop")):
        for trajectory in episode.trajectories:
            assert [step.round for step in trajectory.steps] == [*range(1, len(trajectory.steps) + 1)]
            assert len({step.advantage for step in trajectory.steps}) == 1
            turns.add(len(trajectory.steps))
    assert max(turns) > 1


@pytest.mark.parametrize("game", ["tic_tac_toe", "plan_path", "textarena"])
def test_a_game_has_seeds_for_tasks_and_the_same_start_in_all_rollouts(game: str, one_step: OneStep) -> None:
    trained = episodes(one_step(game))
    assert {episode.task["seed"] for episode in trained} == {0, 1}
    assert {episode.task["seed"] for episode in episodes(one_step(game), "validation")} == {SEEDS}
    for episode in trained:
        twin = next(e for e in trained if e.task_id == episode.task_id and e.rollout != episode.rollout)
        first, other = (e.trajectories[0].steps[0].chat_completions[0]["content"] for e in (episode, twin))
        assert first == other


def test_every_call_of_an_agent_is_learnt_from(one_step: OneStep) -> None:
    steps = [step for e in episodes(one_step("react")) for t in e.trajectories for step in t.steps]
    assert len(steps) >= 4
    assert {step.metadata["call"] for step in steps} <= {*range(1, 9)}
    assert all(step.prompt_ids and step.advantage is not None for step in steps)


# several policies


def test_a_training_of_two_policies_is_evaluated_with_the_weights_of_both(
    service: LocalService, one_step: OneStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = one_step("two_policies").folder
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    flow = rg.load("two_policies", base_url=service.base_url)
    found = rg.evaluate(flow, folder, tasks=2, rollouts=1)
    assert {"correct", "judge_acc", "reward/solver"} <= found.figures.keys()
    with pytest.raises(rg.UsageError, match="trains solver, judge, and tinker://x has one policy"):
        rg.evaluate(flow, "tinker://x", tasks=2, rollouts=1)
    with pytest.raises(rg.UsageError, match="no policy 'main'; it trained solver, judge"):
        rg.evaluate(rg.load("solver_judge", base_url=service.base_url), folder, tasks=2, rollouts=1)
