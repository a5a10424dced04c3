"""Synthetic turns of the shipped prompts: what the base model is taught.

In goes a seed; out comes an endless stream of (role, prompt, response), rendered from the real templates on
countdown tasks of the train split. A response works the arithmetic out before it answers or, in a share of
the turns, guesses: that share is what reinforcement learning can take away. This file knows no tokenizer and
no model.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal

from rolegraph.engine.prompts.checks import TemplateScope
from rolegraph.engine.prompts.templates import Template, compile_template
from rolegraph.engine.shipped import PROMPTS
from rolegraph.engine.vocabulary import View
from rolegraph.roles.countdown import CountdownTask, combine, generate, reward

Role = Literal["solver", "judge", "validator"]

SHARES: Mapping[Role, float] = {"solver": 0.4, "judge": 0.35, "validator": 0.25}
"""How many of the turns each role gets."""
COUNTS = (*(2,) * 16, 3, 3, 4, 4, 5, 6, 7, 8)
"""How many candidates a judge sees, drawn from these."""
NOTHING = "No solution found"
"""The action of a solver that gave no answer, as in the shipped specs."""
_CHUNK = 512
_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: the prompt as its role is asked it, and a response to learn."""

    role: Role
    prompt: str
    response: str


def turns(seed: int, *, judge: float = SHARES["judge"], guess: float = 0.0) -> Iterator[Turn]:
    """An endless stream, the same for the same arguments.

    `judge` is the share of the judge's turns, `guess` that of the turns of each role which skip the work.
    """
    rng = random.Random(f"turns {seed}")
    roles = list(SHARES)
    others = (1 - judge) / (1 - SHARES["judge"])
    weights = [judge if role == "judge" else share * others for role, share in SHARES.items()]
    while True:
        for task in generate(_CHUNK, seed=rng.getrandbits(32), split="train"):
            role = rng.choices(roles, weights)[0]
            yield _TURNS[role](task, rng, guess > 0 and rng.random() < guess)


def ask_solver(task: CountdownTask) -> str:
    """The solver's prompt."""
    return _template("solver").render({"task": task})


def ask_judge(task: CountdownTask, actions: Sequence[str]) -> str:
    """The judge's prompt; `actions` are the solvers', in order."""
    views = [View(index, action) for index, action in enumerate(actions, 1)]
    return _template("judge", ("solver", len(views))).render({"task": task, "solver": views})


def ask_validator(task: CountdownTask, action: str) -> str:
    """The validator's prompt; `action` is the judge's choice."""
    return _template("validator", ("judge", 1)).render({"task": task, "judge": View(1, action)})


def steps(expression: str) -> str:
    """The expression worked out, one operation at a time: `3*4=12, 12+5=17`.

    Ends at a division that is not exact, without its result. Empty where there is nothing to work out.
    """
    done: list[str] = []
    with suppress(SyntaxError, ValueError):  # What cannot be worked out further simply ends there.
        _work(ast.parse(expression.strip(), mode="eval").body, done)
    return ", ".join(done)


def _work(node: ast.expr, done: list[str]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if not isinstance(node, ast.BinOp):
        raise ValueError("not arithmetic")
    left, right = _work(node.left, done), _work(node.right, done)
    sign = _SIGNS.get(type(node.op), "")
    if sign == "/" and (right == 0 or left % right):
        done.append(f"{left}/{right}")
        raise ValueError("not exact")
    values = {"+": left + right, "-": left - right, "*": left * right, "/": left // (right or 1)}
    if sign not in values:
        raise ValueError("not arithmetic")
    value = values[sign]
    done.append(f"{left}{sign}{right}={value}")
    return value


def _solver(task: CountdownTask, rng: random.Random, guess: bool) -> Turn:
    if guess:
        return Turn("solver", ask_solver(task), _tagged(_scramble(task["nums"], rng)))
    response = f"{steps(task['solution'])}\n{_tagged(task['solution'])}"
    return Turn("solver", ask_solver(task), response)


def _judge(task: CountdownTask, rng: random.Random, guess: bool) -> Turn:
    """Candidates are worked through until one is right; where none is, any may be chosen."""
    count = rng.choice(COUNTS)
    right = rng.choice((0.3, 0.5, 0.7)) if count == 2 else 1.5 / count
    actions = [_candidate(task, rng, right) for _ in range(count)]
    lines: list[str] = []
    choice = rng.randint(1, count)
    for index, action in enumerate(() if guess else actions, 1):
        lines.append(f"{index}: {_check(action, task)}\n")
        if _is_right(action, task):
            choice = index
            break
    return Turn("judge", ask_judge(task, actions), "".join(lines) + f"<answer>{choice}</answer>")


def _validator(task: CountdownTask, rng: random.Random, guess: bool) -> Turn:
    action = _candidate(task, rng, 0.5)
    right = rng.random() < 0.5 if guess else _is_right(action, task)
    work = "" if guess else f"{_check(action, task)}\n"
    verdict = "correct" if right else "incorrect"
    return Turn("validator", ask_validator(task, action), f"{work}<verdict>{verdict}</verdict>")


_TURNS = {"solver": _solver, "judge": _judge, "validator": _validator}


def _candidate(task: CountdownTask, rng: random.Random, right: float) -> str:
    """A solver's action as a judge sees it: right with the given chance, else wrong in one of many ways."""
    if rng.random() < right:
        return _tagged(task["solution"])
    kind = rng.random()
    nums = list(task["nums"])
    if kind < 0.12:
        return rng.choice((NOTHING, NOTHING, NOTHING, _tagged(""), ""))
    if kind < 0.17:
        return _tagged(rng.choice((str(task["target"]), f"{task['solution']}={task['target']}", "1+1")))
    if kind < 0.25 and task["target"] > 1:  # The right value from other numbers.
        part = rng.randint(1, task["target"] - 1)
        return _tagged(rng.choice((f"{part}+{task['target'] - part}", f"{task['solution']}+{part}-{part}")))
    if kind < 0.38:  # Wrong numbers, now and then with the right value.
        position = rng.randrange(len(nums))
        nums[position : position + 1] = rng.choice(([], [rng.randint(1, 12)], [nums[position], nums[0]]))
    return _tagged(_scramble(nums, rng))


def _scramble(nums: Sequence[int], rng: random.Random) -> str:
    """Any expression over the numbers; most are wrong, some have negative or broken steps."""
    combined = combine(nums, rng) if rng.random() < 0.7 else None
    if combined is not None:
        return combined[1]
    mixed = rng.sample(list(nums), len(nums))
    return "".join(f"{rng.choice('+-*/')}{n}" for n in mixed)[1:]


def _check(action: str, task: CountdownTask) -> str:
    """A candidate worked out and held against the target: `3*4=12, want 17: no`."""
    work = steps(action.removeprefix("<answer>").removesuffix("</answer>"))
    verdict = "yes" if _is_right(action, task) else "no"
    return f"{work}, want {task['target']}: {verdict}" if work else verdict


def _is_right(action: str, task: CountdownTask) -> bool:
    return reward(action, task["nums"], task["target"]) > 0


def _tagged(expression: str) -> str:
    return f"<answer>{expression}</answer>"


@cache
def _template(name: Role, needs: tuple[str, int] | None = None) -> Template:
    source = (PROMPTS / f"{name}.j2").read_text(encoding="utf-8")
    template, faults = compile_template(source, TemplateScope(dict((needs,)) if needs else {}))
    if template is None:
        raise ValueError(f"prompts/{name}.j2: {faults[0].message}")
    return template
