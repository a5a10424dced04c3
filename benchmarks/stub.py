"""What every system shares: the tasks, the prompts, the answers and how they are read, the reward.

A system adds its own orchestration and nothing else. Rolegraph alone renders and parses with what its spec
names; that the prompts come out the same is checked. This file imports no system.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

Task = Mapping[str, Any]

ANSWERS = {
    "solver": "3 and 4 are given, and their sum is 7.\n<answer>3 + 4</answer>",
    "judge": "Candidate 1 uses both numbers once and comes to 7.\n<answer>1</answer>",
}


class Ask(Protocol):
    """The model as a system calls it."""

    async def __call__(self, role: str, prompt: str) -> str:
        """The answer of `solver` or `judge`."""
        ...


RunMany = Callable[[int, int], Awaitable[int]]
"""`run_many(runs, in_flight)`: how many of the runs ended in the right answer, which must be all."""


def task(number: int) -> dict[str, Any]:
    """Task `number`. Each has its own text; all have one solution, so that a fixed answer solves them."""
    question = f"Task {number}: make 7 from the numbers 3, 4, each used exactly once, with + - * /."
    return {"id": f"t{number}", "question": question, "nums": [3, 4], "target": 7, "solution": "3 + 4"}


def solver_prompt(task: Task) -> str:
    """What prompts/solver.j2 renders to."""
    return f"{task['question']}\nShow your steps, then give the expression in <answer></answer>."


def judge_prompt(task: Task, actions: Sequence[str]) -> str:
    """What prompts/judge.j2 renders to."""
    candidates = "".join(f"{number}: {action}\n" for number, action in enumerate(actions, 1))
    return (
        f"{task['question']}\n"
        f"Proposed solutions:\n{candidates}"
        "Check them in turn: every number used once, the target reached. "
        "Then give the index of a right one in <answer></answer>."
    )


_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def read_solution(answer: str) -> str:
    """A solver's action: what it put in the tags, with the tags."""
    tagged = _ANSWER.search(answer)
    return f"<answer>{tagged[1].strip()}</answer>" if tagged else "No solution found"


def read_choice(answer: str, actions: Sequence[str]) -> str:
    """The judge's action: the candidate that it named."""
    tagged = _ANSWER.search(answer)
    number = int(tagged[1]) if tagged else 0
    return actions[number - 1] if 1 <= number <= len(actions) else ""


def reward(task: Task, action: str) -> float:
    """1.0 where the action adds up each of the task's numbers to its target."""
    numbers = [int(digits) for digits in _NUMBER.findall(action)]
    return float(sorted(numbers) == sorted(task["nums"]) and sum(numbers) == task["target"])


async def with_semaphore(run: Callable[[Task], Awaitable[float]], runs: int, in_flight: int) -> int:
    """Run tasks 0 to `runs` - 1, `in_flight` at a time; how many earned the judge a reward of 1.

    A task of asyncio's for each run, and a semaphore: what most people write.
    """
    slots = asyncio.Semaphore(in_flight)

    async def limited(number: int) -> bool:
        async with slots:
            return await run(task(number)) == 1.0

    return sum(await asyncio.gather(*(limited(number) for number in range(runs))))


async def with_workers(run: Callable[[Task], Awaitable[float]], runs: int, in_flight: int) -> int:
    """The same from `in_flight` workers that draw from one iterator: the cheapest way to bound runs."""
    numbers = iter(range(runs))

    async def work() -> int:
        return sum([await run(task(number)) == 1.0 for number in numbers])

    return sum(await asyncio.gather(*(work() for _ in range(min(runs, in_flight)))))
