"""llama-index workflows: an event for each solver, and a judge step that collects what they answer."""

import logging
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
    with_workers,
)
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

logging.getLogger("workflows").setLevel(logging.ERROR)


class Begin(StartEvent):
    task: Any


class Solve(Event):
    task: Any
    number: int


class Solved(Event):
    task: Any
    number: int
    prompt: str
    response: str
    action: str
    reward: float


def build(solvers: int, ask: Ask) -> RunMany:
    class SolverJudge(Workflow):
        @step
        async def fan_out(self, ctx: Context, event: Begin) -> Solve | None:
            for number in range(solvers):
                ctx.send_event(Solve(task=event.task, number=number))

        @step(num_workers=solvers)
        async def solve(self, event: Solve) -> Solved:
            prompt = solver_prompt(event.task)
            response = await ask("solver", prompt)
            action = read_solution(response)
            return Solved(
                task=event.task,
                number=event.number,
                prompt=prompt,
                response=response,
                action=action,
                reward=reward(event.task, action),
            )

        @step
        async def judge(self, ctx: Context, event: Solved) -> StopEvent | None:
            events = ctx.collect_events(event, [Solved] * solvers)
            if events is None:
                return None
            solved = sorted(events, key=lambda solution: solution.number)
            actions = [solution.action for solution in solved]
            prompt = judge_prompt(event.task, actions)
            response = await ask("judge", prompt)
            action = read_choice(response, actions)
            earned = reward(event.task, action)
            judged = {"prompt": prompt, "response": response, "action": action, "reward": earned}
            return StopEvent(result={"solver": solved, "judge": judged})

    workflow = SolverJudge(timeout=None)

    async def run(task: Task) -> float:
        return (await workflow.run(start_event=Begin(task=task)))["judge"]["reward"]

    async def run_many(runs: int, in_flight: int) -> int:
        return await with_workers(run, runs, in_flight)

    return run_many
