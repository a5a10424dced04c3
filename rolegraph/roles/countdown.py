"""Countdown: combine given numbers, each exactly once, into a target. Tasks and their check.

The rewards equal those of rLLM's countdown reward (rllm/rewards/countdown_reward.py), with two exceptions. No
text is ever passed to `eval`: an expression is parsed, bounded, and walked over an allow-list. And values are
exact: rLLM's tolerance of 1e-5 lets `12 + 1 / 1000000` pass for 12, with a number that does nothing. Knows no
roles or prompts.
"""

from __future__ import annotations

import ast
import random
import re
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import TypedDict

from rolegraph.engine.limits.answers import COUNTDOWN_DEPTH, COUNTDOWN_TEXT
from rolegraph.engine.records import Split
from rolegraph.roles.calculator import value_of

NUMBERS = (2, 3)
"""Default sizes of tasks, in turn."""
LOW, HIGH = 1, 12
"""Default range of a task's numbers."""
OPERATORS = "+-*/"
_ATTEMPTS = 10_000
_REPEATS = 10
_OPEN, _CLOSE = "<answer>", "</answer>"
_ANSWER = re.compile(f"{_OPEN}(.*?){_CLOSE}")
_NUMBER = re.compile(r"\d+")
_ALLOWED = re.compile(r"(?:[\d+\-()\s]|\*(?!\*)|/(?!/))+")
_HIGH = ("*", "/")


class CountdownTask(TypedDict):
    """One task. No prompt may show `solution`."""

    id: str
    question: str
    nums: list[int]
    target: int
    solution: str


def generate(
    count: int,
    *,
    seed: int,
    split: Split,
    numbers: Sequence[int] = NUMBERS,
    low: int = LOW,
    high: int = HIGH,
    operators: str = OPERATORS,
) -> list[CountdownTask]:
    """Make tasks from a seed; a shorter list is the beginning of a longer one.

    Targets lie in 1 to `high`², and every step of the solution is a positive whole number. A task (its
    numbers in any order, and its target) belongs to one split only. Tasks repeat only where a small range
    runs out.

    Args:
        count: The number of tasks.
        seed: The seed.
        split: The split of the tasks; about a fifth of all tasks are for validation.
        numbers: The sizes of tasks, in turn.
        low: The smallest number of a task.
        high: The largest number of a task.
        operators: The operators of the solutions, some of + - * /.

    Raises:
        ValueError: The settings allow no task.
    """
    if not numbers or min(numbers) < 1:
        raise ValueError(f"numbers must name at least one size, each 1 or more; got {list(numbers)}")
    if not 1 <= low <= high:
        raise ValueError(f"low and high must satisfy 1 <= low <= high; got {low} and {high}")
    if not operators or set(operators) - set(OPERATORS):
        raise ValueError(f"operators must be some of + - * /; got {operators!r}")
    rng = random.Random(f"countdown {seed} {split}")
    seen_tasks: set[tuple[int, ...]] = set()

    def draw(size: int) -> tuple[list[int], int, str]:
        """Draw (numbers, target, solution) of a task.

        The task is not in `seen`, unless the range has too few others.
        """
        repeats = 0
        for _ in range(_ATTEMPTS):
            nums = [rng.randint(low, high) for _ in range(size)]
            combination = combine(nums, rng, operators)
            if combination is None:
                continue
            target, solution = combination
            if target > high**2 or split_of(nums, target) != split:
                continue
            if (target, *sorted(nums)) not in seen_tasks or repeats == _REPEATS:
                return nums, target, solution
            repeats += 1
        raise ValueError(
            f"no {split} task with {size} numbers from {low} to {high} and operators {operators} "
            f"in {_ATTEMPTS:,} tries; widen the range or allow more operators"
        )

    tasks: list[CountdownTask] = []
    for i in range(count):
        nums, target, solution = draw(numbers[i % len(numbers)])
        seen_tasks.add((target, *sorted(nums)))
        text = question(nums, target, operators)
        identity = f"countdown-{split}-{i}"
        tasks.append(CountdownTask(id=identity, question=text, nums=nums, target=target, solution=solution))
    return tasks


def question(nums: Sequence[int], target: int, operators: str = OPERATORS) -> str:
    """Return the question of a Countdown task as an English sentence."""
    listed_numbers, signs = ", ".join(map(str, nums)), " ".join(operators)
    return f"Use {listed_numbers} exactly once each, with {signs} and parentheses, to make {target}."


def split_of(nums: Sequence[int], target: int) -> Split:
    """Return the split of a task; the order of its numbers does not matter."""
    return "validation" if zlib.crc32(f"{sorted(nums)} {target}".encode()) % 5 == 0 else "train"


def combine(nums: Sequence[int], rng: random.Random, operators: str = OPERATORS) -> tuple[int, str] | None:
    """Draw an expression over all of `nums`, with as few parentheses as possible, and its value.

    Args:
        nums: The numbers.
        rng: The source of randomness.
        operators: The operators, some of + - * /.

    Returns:
        The value and the expression; None if a step would not give a positive whole number.
    """
    terms = [(n, str(n), "") for n in nums]
    while len(terms) > 1:
        (a, left, left_op), (b, right, right_op) = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
        op = rng.choice(operators)
        if (op == "-" and a <= b) or (op == "/" and a % b):
            return None
        if op in _HIGH and left_op in ("+", "-"):
            left = f"({left})"
        if right_op and (op == "/" or right_op not in _HIGH) and op != "+":
            right = f"({right})"
        value = a + b if op == "+" else a - b if op == "-" else a * b if op == "*" else a // b
        terms.append((value, f"{left}{op}{right}", op))
    return terms[0][0], terms[0][1]


def evaluate(expression: str) -> int | Fraction | None:
    """Return the exact value of whole numbers under + - * / and parentheses; None for any other text.

    Takes bounded time for any text: no names, no calls, no `**`, no `//`, and a limited length and depth.
    """
    expression = expression.strip()
    if len(expression) > COUNTDOWN_TEXT.most or not _ALLOWED.fullmatch(expression):
        return None
    try:
        return value_of(ast.parse(expression, mode="eval").body, COUNTDOWN_DEPTH.most, Fraction)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None


def is_solution(expression: str, nums: Sequence[int], target: float | Fraction) -> bool:
    """Return True if an expression uses each of `nums` exactly once and equals `target`."""
    value = evaluate(expression)
    if value is None or sorted(map(int, _NUMBER.findall(expression))) != sorted(nums):
        return False
    return value == target


def last_answer(text: str) -> str | None:
    """Return the text of the last `<answer>…</answer>`, case-sensitive and on one line, as rLLM reads it."""
    for line in reversed(text.split("\n")):
        # Up to the line's last closing tag, so that each opening tag finds one and the time stays linear.
        answers = _ANSWER.findall(line[: line.rfind(_CLOSE) + len(_CLOSE)])
        if answers:
            return str(answers[-1]).strip()
    return None


def reward(text: str, nums: Sequence[int], target: float | Fraction) -> float:
    """Return 1.0 if the last answer in a text solves the task, else 0.0, as rLLM does.

    A text without tags, which a parser may have removed, is the answer itself.

    Args:
        text: The answer.
        nums: The numbers of the task.
        target: The target of the task.
    """
    answer = last_answer(text)
    return float(is_solution(text.strip() if answer is None else answer, nums, target))
