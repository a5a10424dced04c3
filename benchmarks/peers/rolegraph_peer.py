"""Rolegraph: specs/solver_judge.yaml with its own templates and parsers; what comes out are full Episodes.

Only the reward is another, so that every system scores with the same function.
"""

from __future__ import annotations

from typing import Any

from stub import Ask, RunMany, reward, task

from engine.compile.compiler import compile_file
from engine.models.limit import Gate
from engine.models.types import Completion, Request
from engine.records import Episode
from engine.run.isolation import Isolation
from engine.run.scheduler import Workflow
from engine.run.stream import stream
from engine.vocabulary import Reward, Score, rewards


class StubModel:
    """The stub behind the interface that every model has."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    async def complete(self, request: Request) -> Completion:
        return Completion(await self.ask(request.role, request.messages[-1]["content"]))

    async def aclose(self) -> None: ...


@rewards.register("stub")
def stub() -> Reward:
    """The reward that all systems share."""

    def score(task: Any, action: Any, seen: Any) -> Score:
        earned = reward(task, action)
        return Score(earned, earned == 1.0)

    return Reward(score, fields=("nums", "target"))


def build(solvers: int, ask: Ask) -> RunMany:
    overrides = [f"roles.solver.count={solvers}", "roles.solver.reward=stub", "roles.judge.reward=stub"]
    plan = compile_file("solver_judge", overrides)
    model = StubModel(ask)

    def complete(episode: Episode) -> bool:
        whole = len(episode.trajectories) == solvers + 1 and all(t.steps for t in episode.trajectories)
        return whole and episode.is_correct

    async def run_many(runs: int, in_flight: int) -> int:
        gate = Gate(model, in_flight * solvers)
        async with Isolation() as isolation:
            workflow = Workflow(plan, {role.model: gate for role in plan.roles}, isolation, seed=0)
            tasks = (task(number) for number in range(runs))
            episodes = stream(workflow, tasks, concurrency=min(runs, in_flight))
            return sum([complete(episode) async for episode in episodes])

    return run_many
