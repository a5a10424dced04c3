"""Rolegraph: specs/solver_judge.yaml as it ships, with its own templates and parsers; full Episodes come out.

Only the reward is another, so that all systems score with the same function.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from engine.compiler import compile_file
from engine.isolation import Isolation
from engine.models.gate import Gate
from engine.models.types import Completion, Request
from engine.plan import Plan
from engine.runner import stream
from engine.scheduler import Workflow
from peers.common import JUDGE_TEXT, SOLVER_TEXT, answer, make_task, reward
from roles.vocabulary import Reward, Score, rewards

TEXTS = {"solver": SOLVER_TEXT, "judge": JUDGE_TEXT}


class StubModel:
    """The stub behind the interface that every model has."""

    def __init__(self, latency: float) -> None:
        self.latency = latency

    async def complete(self, request: Request) -> Completion:
        prompt = request.messages[-1]["content"]
        return Completion(await answer(prompt, TEXTS[request.role], self.latency))

    async def aclose(self) -> None: ...


@rewards.register("benchmark")
def benchmark() -> Reward:
    """The benchmark's plain function."""

    def score(task: Any, action: Any, verdicts: Any) -> Score:
        earned = reward(task, action)
        return Score(earned, earned == 1.0)

    return Reward(score, fields=("nums",))


@cache
def plan_of(solvers: int) -> Plan:
    return compile_file(
        "solver_judge",
        [f"roles.solver.count={solvers}", "roles.solver.reward=benchmark", "roles.judge.reward=benchmark"],
    )


async def run_many(runs: int, in_flight: int, solvers: int, latency: float) -> int:
    plan = plan_of(solvers)
    gate = Gate(StubModel(latency), in_flight * solvers)
    right = 0
    async with Isolation() as isolation:
        workflow = Workflow(plan, {role.model: gate for role in plan.roles}, isolation, 0)
        tasks = (make_task(i) for i in range(runs))
        async for episode in stream(workflow, tasks, rollouts=1, concurrency=min(in_flight, runs)):
            if len(episode.trajectories) == solvers + 1 and all(t.steps for t in episode.trajectories):
                right += episode.is_correct
    return right
