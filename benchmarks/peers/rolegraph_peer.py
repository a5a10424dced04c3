"""Rolegraph: specs/solver_judge.yaml with its own templates and parsers; what comes out are full Episodes.

Only the reward is another, so that every system scores with the same function.
"""

from __future__ import annotations

from typing import Any

from stub import Ask, RunMany, reward, task

from rolegraph.engine.compile import compile_file
from rolegraph.engine.models.limit import LimitedModel
from rolegraph.engine.models.types import Completion, Request
from rolegraph.engine.records import Episode
from rolegraph.engine.run import Isolation, jobs, run_episode, run_jobs
from rolegraph.engine.vocabulary import Reward, RewardFacts, Score, rewards


class StubModel:
    """The stub behind the interface that every model has."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    async def complete(self, request: Request) -> Completion:
        return Completion(await self.ask(request.id.node.role, request.messages[-1]["content"]))

    async def aclose(self) -> None: ...


@rewards.register("stub")
def stub() -> Reward:
    """The reward that all systems share."""

    def score(task: Any, action: Any, seen: Any) -> Score:
        earned = reward(task, action)
        return Score(earned, earned == 1.0)

    return Reward(score, RewardFacts(fields=("nums", "target")))


def build(solvers: int, ask: Ask) -> RunMany:
    overrides = [f"roles.solver.count={solvers}", "roles.solver.reward=stub", "roles.judge.reward=stub"]
    plan = compile_file("solver_judge", overrides)
    model = StubModel(ask)

    def complete(episode: Episode) -> bool:
        whole = len(episode.trajectories) == solvers + 1 and all(t.steps for t in episode.trajectories)
        return whole and episode.is_correct

    async def run_many(runs: int, in_flight: int) -> int:
        models = [LimitedModel(model, in_flight * solvers)] * len(plan.endpoints)
        async with Isolation() as isolation:
            todo = jobs((task(number) for number in range(runs)), seed=0)
            episodes = run_jobs(
                todo, lambda job: run_episode(plan, job, models, isolation=isolation), min(runs, in_flight)
            )
            return sum([complete(episode) async for episode in episodes])

    return run_many
