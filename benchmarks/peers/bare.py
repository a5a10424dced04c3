"""Plain asyncio: what a person would write by hand for this one workflow. A run's result is a dict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stub import (
    Ask,
    RunMany,
    Task,
    judge_prompt,
    read_choice,
    read_solution,
    reward,
    solver_prompt,
    with_semaphore,
)


def one_run(solvers: int, ask: Ask) -> Callable[[Task], Awaitable[float]]:
    """One run of the workflow, down to the judge's reward."""

    async def solve(task: Task) -> dict[str, Any]:
        prompt = solver_prompt(task)
        response = await ask("solver", prompt)
        action = read_solution(response)
        return {"prompt": prompt, "response": response, "action": action, "reward": reward(task, action)}

    async def judge(task: Task, actions: list[str]) -> dict[str, Any]:
        prompt = judge_prompt(task, actions)
        response = await ask("judge", prompt)
        action = read_choice(response, actions)
        return {"prompt": prompt, "response": response, "action": action, "reward": reward(task, action)}

    async def episode(task: Task) -> dict[str, Any]:
        solved = await asyncio.gather(*(solve(task) for _ in range(solvers)))
        judged = await judge(task, [solution["action"] for solution in solved])
        return {"id": task["id"], "task": task, "solver": solved, "judge": judged}

    async def run(task: Task) -> float:
        return (await episode(task))["judge"]["reward"]

    return run


def build(solvers: int, ask: Ask) -> RunMany:
    run = one_run(solvers, ask)

    async def run_many(runs: int, in_flight: int) -> int:
        return await with_semaphore(run, runs, in_flight)

    return run_many
