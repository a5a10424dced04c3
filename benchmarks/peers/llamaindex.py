"""llama-index workflows: a step sends an event to each solver, a judge step collects their answers."""

import logging
from functools import cache
from typing import Any

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

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

logging.getLogger("workflows").setLevel(logging.ERROR)


class Begin(StartEvent):
    task: Any


class Ask(Event):
    task: Any
    index: int


class Answered(Event):
    task: Any
    index: int
    text: str
    action: str
    reward: float


@cache
def build(solvers: int, latency: float) -> Workflow:
    class SolverJudge(Workflow):
        @step
        async def begin(self, ctx: Context, event: Begin) -> Ask | None:
            for index in range(solvers):
                ctx.send_event(Ask(task=event.task, index=index))

        @step(num_workers=solvers)
        async def solve(self, event: Ask) -> Answered:
            text = await answer(solver_prompt(event.task), SOLVER_TEXT, latency)
            action = read_answer(text)
            earned = reward(event.task, action)
            return Answered(task=event.task, index=event.index, text=text, action=action, reward=earned)

        @step
        async def judge(self, ctx: Context, event: Answered) -> StopEvent | None:
            found = ctx.collect_events(event, [Answered] * solvers)
            if found is None:
                return None
            solved = sorted(found, key=lambda one: one.index)
            actions = [one.action for one in solved]
            text = await answer(judge_prompt(event.task, actions), JUDGE_TEXT, latency)
            action = read_choice(text, actions)
            judged = {"text": text, "action": action, "reward": reward(event.task, action)}
            return StopEvent(result={"solver": solved, "judge": judged})

    return SolverJudge(timeout=None)


async def run_many(runs: int, in_flight: int, solvers: int, latency: float) -> int:
    workflow = build(solvers, latency)

    async def one(task: Task) -> float:
        result = await workflow.run(start_event=Begin(task=task))
        return result["judge"]["reward"]

    return await drain(one, runs, in_flight)
