"""Scripted models, and helpers that compile specs and run episodes on scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import networkx as nx

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.compile.wiring import turn_graph
from rolegraph.engine.models import Completion, LimitedModel, Model, Request
from rolegraph.engine.records import Episode, NodeId, Observer, Task
from rolegraph.engine.run import EpisodeJob, Isolation, run_episode
from rolegraph.migrate.correct import roles_that_can_be_right

COUNTDOWN: Task = {
    "id": "t1",
    "question": "Make 7 from 3 and 4",
    "nums": [3, 4],
    "target": 7,
    "solution": "3 + 4",
}
MISSING = "MISSING"
"""Placeholder of a path where nothing exists, for `below`."""
RIGHT, WRONG = "<answer>3 + 4</answer>", "<answer>3 * 4</answer>"

Answer = Callable[[Request], str]


class ScriptedModel:
    """Model whose text is `answer(request)`; errors of `answer` propagate, and requests are kept."""

    def __init__(self, answer: Answer, latency: Callable[[Request], float] = lambda _: 0.0) -> None:
        self.answer, self.latency = answer, latency
        self.requests: list[Request] = []
        self.under_way = self.most_under_way = 0

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if seconds := self.latency(request):
                await asyncio.sleep(seconds)
            return Completion(self.answer(request))
        finally:
            self.under_way -= 1

    async def aclose(self) -> None: ...


def write_spec(folder: Path, text: str, name: str = "spec.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def decided(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec in which the last role that can be right decides whether an episode is, unless it says
    who does."""
    able = roles_that_can_be_right(spec["roles"])
    if len(able) < 2 or "correct" in spec.get("episode", {}):
        return spec
    able = [it for it in able if "callable" not in spec["roles"][it]] or able
    return {**spec, "episode": {"correct": f"all({able[-1]}.right)", **spec.get("episode", {})}}


def below(folder: Path, value: str) -> str:
    """Return `value` with `MISSING` as a path in `folder` where nothing exists."""
    return value.replace(MISSING, str(folder / "missing"))


def limited(plan: Plan, model: Model, concurrency: int = 1000) -> list[LimitedModel]:
    """Wrap a model in one concurrency limit and return it once per endpoint of a plan."""
    return [LimitedModel(model, concurrency)] * len(plan.endpoints)


async def episode(
    plan: Plan,
    models: list[LimitedModel],
    task: Task = COUNTDOWN,
    rollout: int = 0,
    *,
    seed: int | None = None,
    observe: Observer | None = None,
) -> Episode:
    job = EpisodeJob(task, rollout, seed)
    async with Isolation(plan.imports) as isolation:
        return await run_episode(plan, job, models, isolation=isolation, observe=observe)


def run_one(plan: Plan, model: ScriptedModel, task: Task = COUNTDOWN, seed: int | None = None) -> Episode:
    return asyncio.run(episode(plan, limited(plan, model), task, seed=seed))


def solver_judge(*overrides: str) -> Plan:
    return compile_file("solver_judge", overrides)


def turn_dag(plan: Plan) -> nx.DiGraph[NodeId]:
    """Return the DAG of a plan's turns, an edge from each turn to every turn that waits for it."""
    return turn_graph([node.id for node in plan.nodes], plan.dag)


def by_role(answers: dict[str, str | Sequence[str]]) -> Answer:
    """Return an answer function that looks up a role's text, or the text per instance if given a list."""

    def answer(request: Request) -> str:
        found = answers[request.id.node.role]
        return found if isinstance(found, str) else found[request.id.node.index - 1]

    return answer
