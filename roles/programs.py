"""Rewards of programs that a model wrote, which run in the sandbox."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, cast

from pydantic import Field

from engine.records import Task
from engine.sandbox import require_monty, run_tests
from engine.vocabulary import Reward, Score, Seen

Seconds = Annotated[float, Field(gt=0)]

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def tests(*, field: str = "tests", seconds: Seconds = 5.0, timeout: Seconds = 60.0) -> Reward:
    """The share of unit tests that the action passes, a Python program; right when it passes all.

    field: the task field that holds the tests: a piece of Python that raises nothing where it passes, such as
      `assert add(2, 3) == 5`, or a list of them
    seconds: what the program may take by itself, and then each test
    timeout: what all of them may take together
    """
    require_monty()
    score = partial(_tests, field, seconds)
    return Reward(score, (field,), (field,), timeout=timeout, permissions=("python",))


def _tests(field: str, seconds: float, task: Task, action: Any, seen: Seen) -> Score:
    written = cast("list[Any]", task[field]) if isinstance(task[field], list) else [task[field]]
    if not written or not all(isinstance(test, str) for test in written):
        raise TypeError(f"task.{field} must hold tests, such as 'assert add(2, 3) == 5'; got {written!r:.80}")
    share = run_tests(program_of(str(action)), written, seconds=seconds)
    return Score(share, share >= 1.0)


def program_of(text: str) -> str:
    """The last fenced block of a text, or all of it where there is none."""
    blocks = _FENCE.findall(text)
    return blocks[-1] if blocks else text
