"""What all systems share: tasks, stub model, texts, reward, and the bound on what is in flight.

A peer builds its prompts with `solver_prompt` and `judge_prompt`, asks `answer`, reads the text with
`read_answer` and `read_choice`, and scores it with `reward`. It adds only its own orchestration. Rolegraph
shares the tasks, the model and the reward, and renders and parses with what its spec names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

Task = Mapping[str, Any]

SOLVER_TEXT = "3 and 4 are given. Their sum is 7.\n<answer>3 + 4</answer>"
JUDGE_TEXT = "Candidate 1 uses both numbers and gives 7.\n<answer>1</answer>"

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def make_task(i: int) -> dict[str, Any]:
    """Task number `i`; all have the same answer, so that one fixed text solves them."""
    question = (
        f"Task {i}: make 7 from the numbers 3, 4, each used exactly once, with + - * / and parentheses."
    )
    return {"id": f"t{i}", "question": question, "nums": [3, 4], "target": 7, "solution": "3 + 4"}


async def answer(prompt: str, text: str, latency: float) -> str:
    """The model: a fixed text, after `latency` seconds where that is not 0."""
    if latency:
        await asyncio.sleep(latency)
    return text


def solver_prompt(task: Task) -> str:
    """What prompts/solver.j2 renders to."""
    return (
        f"{task['question']}\n"
        "Show your steps, then give the finished expression inside <answer></answer> tags."
    )


def judge_prompt(task: Task, actions: Sequence[str]) -> str:
    """What prompts/judge.j2 renders to."""
    proposed = "".join(f"{i}: {action}\n" for i, action in enumerate(actions, 1))
    return (
        f"{task['question']}\n"
        f"Proposed solutions:\n{proposed}"
        "Check each one: it must use every given number exactly once and give the target. "
        "Then give the number of a correct solution inside <answer></answer> tags."
    )


def read_answer(text: str) -> str:
    """A solver's action: the first answer, with its tags."""
    match = _ANSWER.search(text)
    return f"<answer>{match[1].strip()}</answer>" if match else "No solution found"


def read_choice(text: str, actions: Sequence[str]) -> str:
    """A judge's action: the candidate whose number is in the tags."""
    match = _ANSWER.search(text)
    number = int(match[1]) if match else 0
    return actions[number - 1] if 1 <= number <= len(actions) else ""


def reward(task: Task, action: str) -> float:
    """1.0 where the action uses the task's numbers, each once."""
    return float(sorted(map(int, _NUMBER.findall(action))) == sorted(task["nums"]))


async def drain(run_one: Callable[[Task], Awaitable[float]], runs: int, in_flight: int) -> int:
    """Run tasks 0 to `runs` - 1, at most `in_flight` at a time; how many earned their judge a reward of 1."""
    jobs = iter(range(runs))
    right = 0

    async def work() -> None:
        nonlocal right
        for i in jobs:
            earned = await run_one(make_task(i))
            right += earned == 1.0

    await asyncio.gather(*(work() for _ in range(min(in_flight, runs))))
    return right
