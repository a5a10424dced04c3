"""Bare asyncio: what a person would write by hand for this one workflow. The result is a plain dict."""

from __future__ import annotations

import asyncio
from typing import Any

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


async def _solve(task: Task, latency: float) -> dict[str, Any]:
    text = await answer(solver_prompt(task), SOLVER_TEXT, latency)
    action = read_answer(text)
    return {"text": text, "action": action, "reward": reward(task, action)}


async def _run(task: Task, solvers: int, latency: float) -> dict[str, Any]:
    solved = await asyncio.gather(*(_solve(task, latency) for _ in range(solvers)))
    actions = [one["action"] for one in solved]
    text = await answer(judge_prompt(task, actions), JUDGE_TEXT, latency)
    action = read_choice(text, actions)
    judged = {"text": text, "action": action, "reward": reward(task, action)}
    return {"id": task["id"], "solver": solved, "judge": judged}


async def run_many(runs: int, in_flight: int, solvers: int, latency: float) -> int:
    async def one(task: Task) -> float:
        return (await _run(task, solvers, latency))["judge"]["reward"]

    return await drain(one, runs, in_flight)
