"""Tests that a spec makes the same episodes from recorded answers as rLLM's hand-written workflow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.models import Completion, LimitedModel
from rolegraph.engine.models.replay import RecordedCall, Replay
from rolegraph.engine.records import CallId, Episode, NodeId, Trajectory
from rolegraph.engine.run import Isolation, jobs, run_episode, run_jobs

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "rllm_solver_judge_replay.json").read_text()
)


def recorded() -> Replay:
    calls: dict[CallId, RecordedCall] = {}
    for number, case in enumerate(CASES):
        for index, response in enumerate(case["solver_responses"], 1):
            first = response.partition(" no wait ")[0]  # rLLM reads the first answer, a spec the last
            calls[CallId(str(number), 0, NodeId("solver", index))] = RecordedCall(Completion(first))
        calls[CallId(str(number), 0, NodeId("judge"))] = RecordedCall(Completion(case["judge_response"]))
    return Replay(calls)


async def replayed(plan: Plan) -> list[Episode]:
    models = [LimitedModel(recorded(), 128)] * len(plan.endpoints)
    tasks = [{**case["task"], "id": str(number)} for number, case in enumerate(CASES)]
    made = run_jobs(jobs(tasks), lambda job: run_episode(plan, job, models, isolation=Isolation()))
    return sorted([e async for e in made], key=lambda e: int(e.task_id))


EPISODES = asyncio.run(replayed(compile_file("solver_judge")))


def chosen(trajectory: Trajectory) -> str:
    """Return an action as rLLM's workflow gives it: a spec's judge cannot choose an unreadable answer."""
    is_refused = trajectory.failure is not None and "no answer to choose" in trajectory.failure.message
    return "No solution found" if is_refused else trajectory.action


def test_there_are_120_of_them() -> None:
    assert len(EPISODES) == len(CASES) == 120


@pytest.mark.parametrize("number", range(120))
def test_the_episode_is_the_one_that_rllm_s_workflow_made(number: int) -> None:
    episode = EPISODES[number]
    found = {
        "is_correct": episode.is_correct,
        "metrics": dict(episode.metrics),
        "trajectories": [
            {"name": t.name, "action": chosen(t), "reward": t.reward} for t in episode.trajectories
        ],
    }
    assert found == CASES[number]["expected"]
    assert [step.reward for t in episode.trajectories for step in t.steps] == [
        t["reward"] for t in CASES[number]["expected"]["trajectories"]
    ]
