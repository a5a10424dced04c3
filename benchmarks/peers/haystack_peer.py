"""Haystack: a pipeline with a component for each solver and a judge with an input for each of them."""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack import Pipeline, component
from stub import (
    Ask,
    RunMany,
    Task,
    judge_prompt,
    read_choice,
    read_solution,
    reward,
    solver_prompt,
    with_workers,
)

logging.getLogger("haystack").setLevel(logging.ERROR)


@component
class Solver:
    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    @component.output_types(prompt=str, response=str, action=str, reward=float)
    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("the pipeline runs asynchronously")

    @component.output_types(prompt=str, response=str, action=str, reward=float)
    async def run_async(self, task: dict[str, Any]) -> dict[str, Any]:
        prompt = solver_prompt(task)
        response = await self.ask("solver", prompt)
        action = read_solution(response)
        return {"prompt": prompt, "response": response, "action": action, "reward": reward(task, action)}


@component
class Judge:
    def __init__(self, solvers: list[str], ask: Ask) -> None:
        self.solvers, self.ask = solvers, ask
        component.set_input_types(self, task=dict[str, Any], **dict.fromkeys(solvers, str))

    @component.output_types(prompt=str, response=str, action=str, reward=float)
    def run(self, **inputs: Any) -> dict[str, Any]:
        raise NotImplementedError("the pipeline runs asynchronously")

    @component.output_types(prompt=str, response=str, action=str, reward=float)
    async def run_async(self, **inputs: Any) -> dict[str, Any]:
        task: Task = inputs["task"]
        actions: list[str] = [inputs[solver] for solver in self.solvers]
        prompt = judge_prompt(task, actions)
        response = await self.ask("judge", prompt)
        action = read_choice(response, actions)
        return {"prompt": prompt, "response": response, "action": action, "reward": reward(task, action)}


def build(solvers: int, ask: Ask) -> RunMany:
    names = [f"solver_{number}" for number in range(1, solvers + 1)]
    pipeline = Pipeline()
    pipeline.add_component("judge", Judge(names, ask))
    for name in names:
        pipeline.add_component(name, Solver(ask))
        pipeline.connect(f"{name}.action", f"judge.{name}")
    everyone = {*names, "judge"}

    async def run(task: Task) -> float:
        inputs = {name: {"task": task} for name in everyone}
        outputs = await pipeline.run_async(inputs, include_outputs_from=everyone, concurrency_limit=solvers)
        return outputs["judge"]["reward"]

    async def run_many(runs: int, in_flight: int) -> int:
        return await with_workers(run, runs, in_flight)

    return run_many
