"""A compiled workflow in an actor of Ray, where rLLM's verl launcher makes its workflows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")
pytest.importorskip("ray", reason="needs Ray: pip install ray")

import ray
from rllm.trainer.algorithms import AlgorithmConfig
from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
from rllm.types import Step, Trajectory, TrajectoryGroup

from rolegraph.integrations.rllm import compile_workflow
from tests.integrations.rllm.edge import RecordedEngine, agreeable, run_all, tasks

pytestmark = pytest.mark.rllm


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class Runner:
    """What the launcher's actor does: rLLM's engine around a workflow class that was sent."""

    def run(self, workflow: type, count: int) -> list[Any]:
        return run_all(workflow, RecordedEngine(agreeable), tasks(count))


class Estimating:
    """What the launcher's actor does with a group, after rollouts: rLLM's advantages, by the map's name."""

    def run(self, workflow: type, name: str) -> list[float]:
        run_all(workflow, RecordedEngine(agreeable), tasks(1))  # whose instances register the estimators
        trajectories = [
            Trajectory(name="judge", steps=[Step(response_ids=[1, 2])], reward=reward)
            for reward in (1.0, 0.0)
        ]
        group = TrajectoryGroup(trajectories=trajectories, group_id="t:judge", metadata=[{}, {}])
        config = AlgorithmConfig(estimator_map={"judge": name})
        collect_reward_and_advantage_from_trajectory_groups([group], config)
        return [trajectory.steps[0].advantage for trajectory in group.trajectories]


def test_an_actor_has_the_estimators_and_weights_of_the_spec() -> None:
    workflow = compile_workflow("solver_judge", ["roles.judge.estimator=opo", "roles.judge.weight=0.5"])
    actor = ray.remote(Estimating).remote()
    found = ray.get(actor.run.remote(workflow, "opo/judge"))
    ray.kill(actor)
    assert found == [0.25, -0.25]


@pytest.mark.parametrize("name", ["solver_judge", "solver_verifier_loop", "debate"])
def test_an_actor_gives_the_episodes_of_this_process(name: str) -> None:
    workflow = compile_workflow(name)
    actor = ray.remote(Runner).remote()
    found = ray.get(actor.run.remote(workflow, 4))
    ray.kill(actor)
    here = Runner().run(workflow, 4)
    assert [shape(episode) for episode in found] == [shape(episode) for episode in here]


def shape(episode: Any) -> object:
    """Return an episode without times and numbers of calls, which differ from run to run."""
    trajectories = [
        (t.name, t.uid, t.reward, [(s.action, s.chat_completions) for s in t.steps])
        for t in episode.trajectories
    ]
    return episode.id, episode.is_correct, episode.metrics, trajectories
