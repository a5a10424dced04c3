"""A compiled workflow in an actor of Ray, where rLLM's verl launcher makes its workflows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("rllm", reason="needs rLLM: pip install 'rolegraph[rllm]'")
pytest.importorskip("ray", reason="needs Ray: pip install ray")

import ray

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
