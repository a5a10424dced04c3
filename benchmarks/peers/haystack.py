"""Haystack: a pipeline of a component for each solver and a judge with an input for each, run async.

`AsyncPipeline` up to version 2, `Pipeline` from version 3 on, which took over its methods.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import haystack
from haystack import component

from peers.common import (
    JUDGE_TEXT,
    SOLVER_TEXT,
    Task,
    answer,
    drain,
    judge_prompt,
    read_answer,
    read_choice,
    reward,
    solver_prompt,
)

AsyncPipeline = getattr(haystack, "AsyncPipeline", None) or haystack.Pipeline
logging.getLogger("haystack").setLevel(logging.ERROR)


def solver_names(solvers: int) -> list[str]:
    return [f"solver_{i}" for i in range(1, solvers + 1)]


@component
class Solver:
    def __init__(self, latency: float) -> None:
        self.latency = latency

    @component.output_types(action=str, text=str, reward=float)
    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("only run_async is used")

    @component.output_types(action=str, text=str, reward=float)
    async def run_async(self, task: dict[str, Any]) -> dict[str, Any]:
        text = await answer(solver_prompt(task), SOLVER_TEXT, self.latency)
        action = read_answer(text)
        return {"action": action, "text": text, "reward": reward(task, action)}


@component
class Judge:
    def __init__(self, names: list[str], latency: float) -> None:
        self.names, self.latency = names, latency
        component.set_input_types(self, task=dict[str, Any], **dict.fromkeys(names, str))

    @component.output_types(action=str, text=str, reward=float)
    def run(self, **inputs: Any) -> dict[str, Any]:
        raise NotImplementedError("only run_async is used")

    @component.output_types(action=str, text=str, reward=float)
    async def run_async(self, **inputs: Any) -> dict[str, Any]:
        task, actions = inputs["task"], [inputs[name] for name in self.names]
        text = await answer(judge_prompt(task, actions), JUDGE_TEXT, self.latency)
        action = read_choice(text, actions)
        return {"action": action, "text": text, "reward": reward(task, action)}


@cache
def build(solvers: int, latency: float) -> Any:
    names = solver_names(solvers)
    pipeline = AsyncPipeline()
    pipeline.add_component("judge", Judge(names, latency))
    for name in names:
        pipeline.add_component(name, Solver(latency))
        pipeline.connect(f"{name}.action", f"judge.{name}")
    return pipeline


async def run_many(runs: int, in_flight: int, solvers: int, latency: float) -> int:
    pipeline = build(solvers, latency)
    wanted = {*solver_names(solvers), "judge"}

    async def one(task: Task) -> float:
        data = {name: {"task": task} for name in wanted}
        result = await pipeline.run_async(data, include_outputs_from=wanted, concurrency_limit=solvers)
        if len(result) != solvers + 1:
            raise RuntimeError(f"{len(result) - 1} of {solvers} solvers answered")
        return result["judge"]["reward"]

    return await drain(one, runs, in_flight)
