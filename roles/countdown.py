"""Countdown: combine given numbers, each exactly once, into a target. Tasks and their check.

In go a seed and a few sizes, or an answer's text; out come tasks, or a reward of 0.0 or 1.0. The verdicts on
integer arithmetic are those of rLLM's countdown reward, except that nothing is ever handed to `eval`: an
expression is parsed, bounded, and walked over an allow-list. This file knows nothing of roles or prompts.
"""

from __future__ import annotations

import ast
import random
import re
import zlib
from collections.abc import Sequence, Set
from fractions import Fraction
from functools import lru_cache
from typing import TypedDict

from rolegraph.engine.limits.answers import COUNTDOWN_DEPTH, COUNTDOWN_TEXT
from rolegraph.engine.records import Split

TOLERANCE = 1e-5
"""How far from the target a value may lie, as in rLLM."""
NUMBERS = (2, 3)
"""Sizes that tasks take in turn, unless others are asked for."""
LOW, HIGH = 1, 12
"""The range of a task's numbers, unless another is asked for."""
OPERATORS = "+-*/"
_KEPT = 4096
"""The longest list that is remembered: a quarter of a second, and some megabytes."""
_ATTEMPTS = 10_000
_REPEATS = 10
_OPEN, _CLOSE = "<answer>", "</answer>"
_ANSWER = re.compile(f"{_OPEN}(.*?){_CLOSE}")
_NUMBER = re.compile(r"\d+")
_ALLOWED = re.compile(r"[\d+\-*/()\s]+")
_HIGH = ("*", "/")


class CountdownTask(TypedDict):
    """One task. `solution` is the answer; no prompt may show it."""

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
    """`count` tasks, the same for the same arguments; a shorter list is the beginning of a longer one.

    `numbers` are the sizes that tasks take in turn, `low` to `high` the numbers' range. Targets lie in
    1 to `high`², and every step of the solution is a positive whole number. A task (its numbers in any
    order, and its target) belongs to one split only; about a fifth of all tasks are for validation. Tasks
    repeat only where a small range runs out. Raises ValueError where the settings allow no task.
    """
    if not numbers or min(numbers) < 1:
        raise ValueError(f"numbers must name at least one size, each 1 or more; got {list(numbers)}")
    if not 1 <= low <= high:
        raise ValueError(f"low and high must satisfy 1 <= low <= high; got {low} and {high}")
    if not operators or set(operators) - set(OPERATORS):
        raise ValueError(f"operators must be some of + - * /; got {operators!r}")
    make = _remembered if count <= _KEPT else _generated
    return [_copy(task) for task in make(count, seed, split, tuple(numbers), (low, high), operators)]


def _copy(task: CountdownTask) -> CountdownTask:
    return {**task, "nums": [*task["nums"]]}


def _generated(
    count: int, seed: int, split: Split, numbers: Sequence[int], bounds: tuple[int, int], operators: str
) -> list[CountdownTask]:
    rng = random.Random(f"countdown {seed} {split}")
    seen: set[tuple[int, ...]] = set()
    tasks: list[CountdownTask] = []
    for i in range(count):
        nums, target, solution = _draw(
            rng,
            split,
            size=numbers[i % len(numbers)],
            bounds=bounds,
            operators=operators,
            seen=seen,
        )
        seen.add((target, *sorted(nums)))
        tasks.append(
            {
                "id": f"countdown-{split}-{i}",
                "question": question(nums, target, operators),
                "nums": nums,
                "target": target,
                "solution": solution,
            }
        )
    return tasks


_remembered = lru_cache(maxsize=8)(_generated)  # the same tasks are read by checks, trainings and evaluations


def _draw(
    rng: random.Random,
    split: str,
    *,
    size: int,
    bounds: tuple[int, int],
    operators: str,
    seen: Set[tuple[int, ...]],
) -> tuple[list[int], int, str]:
    repeats = 0
    for _ in range(_ATTEMPTS):
        nums = [rng.randint(*bounds) for _ in range(size)]
        combined = combine(nums, rng, operators)
        if combined is None:
            continue
        target, solution = combined
        if target > bounds[1] ** 2 or split_of(nums, target) != split:
            continue
        if (target, *sorted(nums)) not in seen or repeats == _REPEATS:
            return nums, target, solution
        repeats += 1
    raise ValueError(
        f"no {split} task with {size} numbers from {bounds[0]} to {bounds[1]} and operators {operators} "
        f"in {_ATTEMPTS:,} tries; widen the range or allow more operators"
    )


def question(nums: Sequence[int], target: int, operators: str = OPERATORS) -> str:
    """What is asked, in words."""
    listed, signs = ", ".join(map(str, nums)), " ".join(operators)
    return f"Use {listed} exactly once each, with {signs} and parentheses, to make {target}."


def split_of(nums: Sequence[int], target: int) -> Split:
    """Where a task belongs, whatever the order of its numbers."""
    key = f"{sorted(nums)} {target}".encode()
    return "validation" if zlib.crc32(key) % 5 == 0 else "train"


def combine(nums: Sequence[int], rng: random.Random, operators: str = OPERATORS) -> tuple[int, str] | None:
    """A random expression over all of `nums` and its value, with as few parentheses as it needs.

    None where a step would not be a positive whole number.
    """
    parts = [(n, str(n), "") for n in nums]
    while len(parts) > 1:
        (a, left, left_op), (b, right, right_op) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        op = rng.choice(operators)
        if (op == "-" and a <= b) or (op == "/" and a % b):
            return None
        if op in _HIGH and left_op in ("+", "-"):
            left = f"({left})"
        if right_op and (op == "/" or right_op not in _HIGH) and op != "+":
            right = f"({right})"
        value = a + b if op == "+" else a - b if op == "-" else a * b if op == "*" else a // b
        parts.append((value, f"{left}{op}{right}", op))
    return parts[0][0], parts[0][1]


@lru_cache(maxsize=8192)
def evaluate(expression: str) -> Fraction | float | None:
    """The exact value of whole numbers under + - * / and parentheses; None for anything else.

    Never raises and never takes long: no names, no calls, no `**`, no `//`, no text beyond the bounds.
    """
    expression = expression.strip()
    if len(expression) > COUNTDOWN_TEXT.most or not _ALLOWED.fullmatch(expression):
        return None
    if "**" in expression or "//" in expression:
        return None
    try:
        return _value(ast.parse(expression, mode="eval").body, COUNTDOWN_DEPTH.most)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr, depth: int) -> int | Fraction:
    if depth == 0:
        raise ValueError("nested too deeply")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp):
        inside = _value(node.operand, depth - 1)
        if isinstance(node.op, ast.USub):
            return -inside
        if isinstance(node.op, ast.UAdd):
            return inside
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, depth - 1), _value(node.right, depth - 1)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return Fraction(left, right) if left % right else left // right
    raise ValueError(f"{type(node).__name__} is not arithmetic")


@lru_cache(maxsize=8192)
def _numbers(expression: str) -> tuple[int, ...]:
    return tuple(sorted(map(int, _NUMBER.findall(expression))))


def is_solution(expression: str, nums: Sequence[int], target: float) -> bool:
    """Whether the expression uses each of `nums` exactly once and comes to `target`."""
    # What is too long is not looked up: the cache would keep it.
    value = evaluate(expression) if len(expression) <= COUNTDOWN_TEXT.most else None
    if value is None or _numbers(expression) != tuple(sorted(nums)):
        return False
    return abs(value - target) < TOLERANCE


def last_answer(text: str) -> str | None:
    """What stands in the last `<answer>…</answer>`, case-sensitive and on one line, as rLLM reads it."""
    for line in reversed(text.split("\n")):
        # Up to the line's last closing tag, so that each opening tag finds one and the time stays linear.
        answers = _ANSWER.findall(line[: line.rfind(_CLOSE) + len(_CLOSE)])
        if answers:
            return str(answers[-1]).strip()
    return None


def reward(text: str, nums: Sequence[int], target: float) -> float:
    """1.0 where the text's last answer solves the task, else 0.0; text without tags is the answer itself.

    A parser may have taken the tags off. Where they are on, the verdict is rLLM's.
    """
    answer = last_answer(text)
    return float(is_solution(text.strip() if answer is None else answer, nums, target))
