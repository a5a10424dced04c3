"""Grouping hook under rLLM's synchronous tinker backend: each role has its own estimator's advantages."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

from rllm.trainer.algorithms import AlgorithmConfig
from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
from rllm.trainer.algorithms.config import TransformConfig, rLLMAdvantageEstimator
from rllm.trainer.algorithms.transform import transform_episodes_to_trajectory_groups
from rllm.trainer.tinker.transform import transform_trajectory_groups_to_datums
from rllm.types import Episode, TrajectoryGroup

from rolegraph.engine.compile.compiler import compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode as OurEpisode
from rolegraph.integrations.rllm import compile_workflow, grouping_hook
from tests.edge import RIGHT, WRONG
from tests.integrations.rllm.edge import RecordedEngine, is_judge, run_all, tasks
from tests.training.credited import ledger

pytestmark = pytest.mark.rllm

TEACHER_LOGPROBS = (-0.25, -0.5)


class Teacher:
    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        return TEACHER_LOGPROBS


async def open_teacher(ref: Any) -> Any:
    return Teacher()


class UnevenAnswers:
    """Answers of which a third of the solvers' are wrong, so that rewards in a group differ."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, prompt: str) -> str:
        if is_judge(prompt):
            return "<answer>1</answer>"
        self.calls += 1
        return WRONG if self.calls % 3 == 0 else RIGHT


def episodes_of(spec: str, *overrides: str, validation: bool = False) -> list[Episode]:
    class Engine(RecordedEngine):
        is_validation = property(lambda _: validation, lambda *_: None)

    return run_all(
        compile_workflow(spec, overrides),
        Engine(UnevenAnswers()),
        tasks(8),
        rollouts=4,
        workflow_args={"open_model": open_teacher},
    )


def grouped(hook: Any, episodes: list[Episode]) -> list[TrajectoryGroup]:
    return transform_episodes_to_trajectory_groups(episodes, TransformConfig(), traj_grouping_hook=hook)[0]


def algorithm(**options: Any) -> AlgorithmConfig:
    estimators = {"solver": rLLMAdvantageEstimator.GRPO, "judge": rLLMAdvantageEstimator.REINFORCE}
    return AlgorithmConfig(estimator_map=estimators, **options)


def test_a_spec_that_mixes_precomputed_and_estimated_roles_loses_no_solver() -> None:
    episodes = episodes_of("solver_judge_distill")
    groups = grouped(grouping_hook("solver_judge_distill"), episodes)
    datums, metrics = transform_trajectory_groups_to_datums(groups, algorithm(use_precomputed_advantage=True))
    assert {role: len(own) for role, own in datums.items()} == {"solver": 64, "judge": 32}
    assert metrics["batch/dropped_malformed_sequences"] == 0
    by_role = {name: [t for g in groups if g.group_role == name for t in g.trajectories] for name in datums}
    assert {tuple(t.steps[0].advantage) for t in by_role["judge"]} == {(0.25, -0.25)}
    solver = [t.steps[0].advantage for t in by_role["solver"]]
    assert all(isinstance(value, float) for value in solver)
    assert min(solver) < 0 < max(solver)


def test_a_roles_weight_multiplies_its_advantages_estimated_or_precomputed() -> None:
    episodes = episodes_of("solver_judge_distill")

    def sums(*words: str) -> dict[str, float]:
        steps = [
            (group.group_role, np.abs(step.advantage).sum())
            for group in grouped(grouping_hook("solver_judge_distill", words), episodes)
            for trajectory in group.trajectories
            for step in trajectory.steps
        ]
        return {name: sum(value for role, value in steps if role == name) for name in ("solver", "judge")}

    whole, half = sums(), sums("roles.solver.weight=0.5", "roles.judge.weight=0.25")
    assert half == pytest.approx({"solver": whole["solver"] / 2, "judge": whole["judge"] / 4})


def test_the_model_itself_may_teach_a_role_under_rllm() -> None:
    signal = "roles.judge.signal={reverse_kl: {teacher: base, coefficient: 2}}"
    judges = [
        t for e in episodes_of("solver_judge_distill", signal) for t in e.trajectories if t.name == "judge"
    ]
    assert {tuple(t.steps[0].advantage) for t in judges} == {(0.5, -0.5)}


def test_a_signal_beside_an_estimator_is_refused_before_rollouts() -> None:
    with pytest.raises(UsageError, match="adds no signal to the advantages that solver's estimator"):
        episodes_of("solver_judge", "roles.solver.signal={reverse_kl: {teacher: base}}")


def test_without_the_hook_rllm_drops_every_solver() -> None:
    """Without the hook rLLM drops estimated roles; a failure here means that rLLM has fixed it."""
    groups, _ = transform_episodes_to_trajectory_groups(
        episodes_of("solver_judge_distill"), TransformConfig()
    )
    datums, _ = transform_trajectory_groups_to_datums(groups, algorithm(use_precomputed_advantage=True))
    assert {role: len(own) for role, own in datums.items()} == {"judge": 32}


def test_the_hook_s_advantages_are_those_of_our_own_loop() -> None:
    plan = compile_file("solver_judge")
    episodes = episodes_of("solver_judge")
    ours = [OurEpisode.from_dict(episode.to_dict()) for episode in episodes]
    filled = ledger(plan, ours).filled_episodes()
    expected = {t.uid: t.steps[0].advantage for episode in filled for t in episode.trajectories}
    groups = grouped(grouping_hook(plan), episodes)
    found = {t.uid: t.steps[0].advantage for group in groups for t in group.trajectories}
    assert found == expected
    assert len(found) == 96


def test_the_hook_s_advantages_are_those_of_rllm_where_rllm_computes_them() -> None:
    episodes = episodes_of("solver_judge")
    groups, _ = transform_episodes_to_trajectory_groups(episodes, TransformConfig())
    collect_reward_and_advantage_from_trajectory_groups(groups, algorithm())
    theirs = {t.uid: t.steps[0].advantage for group in groups for t in group.trajectories}
    for step in (s for e in episodes for t in e.trajectories for s in t.steps):
        step.advantage = None
    ours = {
        t.uid: t.steps[0].advantage
        for group in grouped(grouping_hook("solver_judge"), episodes)
        for t in group.trajectories
    }
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_masked_trajectories_and_roles_that_are_not_trained_are_in_no_group() -> None:
    spec = ("solver_judge", "roles.judge.estimator=null")
    episodes = episodes_of(*spec)
    episodes[0].trajectories[0].metadata = {"masked": True}
    groups = grouped(grouping_hook(spec[0], spec[1:]), episodes)
    assert {group.group_role for group in groups} == {"solver"}
    assert [len(group.trajectories) for group in groups] == [7, *[8] * 7]
    assert [len(group.metadata) for group in groups] == [7, *[8] * 7]


def test_a_validation_keeps_its_reward_metrics() -> None:
    episodes = episodes_of("solver_judge_distill", validation=True)
    groups = grouped(grouping_hook("solver_judge_distill"), episodes)
    assert all(s.advantage is None for g in groups for t in g.trajectories for s in t.steps)
    metrics = collect_reward_and_advantage_from_trajectory_groups(
        groups, algorithm(use_precomputed_advantage=True), collect_advantage=False
    )
    assert {"reward/solver/mean", "reward/judge/mean"} <= metrics.keys()


def test_a_hook_can_be_sent_to_another_process() -> None:
    hook = grouping_hook("solver_judge", ["train.rollouts=4"])
    assert pickle.loads(pickle.dumps(hook)).plan.hash == hook.plan.hash
