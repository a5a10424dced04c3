"""The episodes that rLLM's hand-written workflow made from recorded answers, made from the spec instead."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.compile.compiler import compile_file
from engine.compile.plan import Plan
from engine.models.limit import Gate
from engine.models.replay import Replay
from engine.models.types import Completion
from engine.records import Episode
from engine.run.isolation import Isolation
from engine.run.scheduler import Workflow
from engine.run.stream import stream

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "rllm_solver_judge_replay.json").read_text()
)


def recorded() -> Replay:
    answers: dict[tuple[str, int, str, int], Completion] = {}
    for number, case in enumerate(CASES):
        for index, response in enumerate(case["solver_responses"], 1):
            answers[str(number), 0, "solver", index] = Completion(response)
        answers[str(number), 0, "judge", 1] = Completion(case["judge_response"])
    return Replay(answers)


async def replayed(plan: Plan) -> list[Episode]:
    gate = Gate(recorded(), 128)
    workflow = Workflow(plan, {role.model: gate for role in plan.roles}, Isolation())
    tasks = [{**case["task"], "id": str(number)} for number, case in enumerate(CASES)]
    return sorted([e async for e in stream(workflow, tasks)], key=lambda e: int(e.task_id))


EPISODES = asyncio.run(replayed(compile_file("solver_judge")))


def test_there_are_120_of_them() -> None:
    assert len(EPISODES) == len(CASES) == 120


@pytest.mark.parametrize("number", range(120))
def test_the_episode_is_the_one_that_rllm_s_workflow_made(number: int) -> None:
    episode = EPISODES[number]
    found = {
        "is_correct": episode.is_correct,
        "metrics": dict(episode.metrics),
        "trajectories": [
            {"name": t.name, "action": t.action, "reward": t.reward} for t in episode.trajectories
        ],
    }
    assert found == CASES[number]["expected"]
    assert [step.reward for t in episode.trajectories for step in t.steps] == [
        t["reward"] for t in CASES[number]["expected"]["trajectories"]
    ]
