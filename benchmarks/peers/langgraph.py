"""LangGraph: a StateGraph with a node for each solver, edges from START, and a judge that joins them.

A conditional edge with `Send` does as well: no faster with 2 solvers, about a fifth faster with 256.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

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


class State(TypedDict, total=False):
    task: Any
    solved: Annotated[list[dict[str, Any]], operator.add]
    judged: dict[str, Any]


@cache
def build(solvers: int, latency: float) -> Any:
    async def solve(state: State) -> State:
        task = state["task"]
        text = await answer(solver_prompt(task), SOLVER_TEXT, latency)
        action = read_answer(text)
        return {"solved": [{"text": text, "action": action, "reward": reward(task, action)}]}

    async def judge(state: State) -> State:
        task = state["task"]
        actions = [one["action"] for one in state["solved"]]
        text = await answer(judge_prompt(task, actions), JUDGE_TEXT, latency)
        action = read_choice(text, actions)
        return {"judged": {"text": text, "action": action, "reward": reward(task, action)}}

    builder = StateGraph(State)
    names = [f"solver_{i}" for i in range(1, solvers + 1)]
    for name in names:
        builder.add_node(name, solve)
        builder.add_edge(START, name)
    builder.add_node("judge", judge)
    builder.add_edge(names, "judge")
    builder.add_edge("judge", END)
    return builder.compile()


async def run_many(runs: int, in_flight: int, solvers: int, latency: float) -> int:
    graph = build(solvers, latency)

    async def one(task: Task) -> float:
        result = await graph.ainvoke({"task": task, "solved": []})
        if len(result["solved"]) != solvers:
            raise RuntimeError(f"{len(result['solved'])} of {solvers} solvers answered")
        return result["judged"]["reward"]

    return await drain(one, runs, in_flight)
