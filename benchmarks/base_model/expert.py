"""Expert that answers every request of the shipped specs: what the base model is taught.

In goes the text of a prompt; out comes a response that works its answer out, one that guesses, or one with a
fault such as a model makes. The prompt is all that the expert reads: tasks, candidates and boards are parsed
from it. This file knows no tokenizer and no weights.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from games import best_cells, good_takes, hand_of, is_shortest, nearer, piles_of, position_of, takes, walk_of

from rolegraph.engine.prompts.tools import calls_of
from rolegraph.engine.records import Message
from rolegraph.roles import grid, tic_tac_toe
from rolegraph.roles.countdown import OPERATORS, combine, evaluate, generate, question, reward, split_of

Mode = Literal["work", "guess", "slip"]
"""A response with its work, one without, or one that may be wrong or malformed and is taught to nobody."""

_QUESTION = re.compile(r"Use ([\d, ]+) exactly once each, with .* to make (\d+)\.")
_EXPRESSION = r"[\d(][\d+*/() -]*[-+*/][\d+*/() -]*[\d)]"
_PROPOSAL = re.compile(rf"(?:^|: |Try |<answer>)({_EXPRESSION})(?=</answer>|$)", re.M)
_TASK = re.compile(r"^([\d, ]+) to (\d+)$", re.M)
CANDIDATE = re.compile(r"^(\d+): (.*)$", re.M)
_CHECKED = re.compile(r"^(?:Proposed solution|Chosen solution|Proposed|A draft): (.*)$", re.M)
_FIRST_STEP = re.compile(r"^Plan: .*?(\d+[-+*/]\d+=\d+)", re.M)
CHECK_ALL, SOLVE_ALL = "Check all.", "Solve all."
"""Phrases of the drills, which no spec asks for: much arithmetic in few tokens."""
_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_CALLS = 5
"""Calls of the calculator after which an answer is given unchecked; the shipped spec allows 8 turns."""
_SILENT = 0.2
"""Share of a planner's slips that hold no plan, so that walkers learn to go alone."""
_TRIES = 1000
"""Draws of an expression until a task counts as one without a solution; three numbers have 192."""


class Unsolvable(Exception):
    """Error for a task without a solution, as a proposer that guesses may write."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Request to the expert."""

    text: str
    """Last message of the chat."""
    results: Sequence[tuple[str, str]]
    """Expressions that this turn gave to the calculator, each with its result."""
    nums: Sequence[int]
    """Numbers of the countdown task; empty where the chat has none."""
    target: int
    rng: random.Random
    mode: Mode

    @property
    def work(self) -> bool:
        """True where the response works its answer out."""
        return self.mode == "work"

    def is_right(self, action: str) -> bool:
        """Tell whether a candidate, with or without its tag, solves the task."""
        return reward(action, self.nums, self.target) > 0

    def check(self, action: str) -> str:
        """Work a candidate out and compare it with the target: `3*4=12, want 17: no`."""
        worked = steps(_untagged(action))
        verdict = "yes" if self.is_right(action) else "no"
        return f"{worked}, want {self.target}: {verdict}" if worked else verdict

    def solution(self, first: str = "") -> str | None:
        """Draw a solution whose steps begin with `first`; None where none is found."""
        return solution(self.nums, self.target, self.rng, first)

    def candidate(self) -> str:
        """Draw a candidate: right in about half of the cases, else wrong in one of many ways."""
        return (self.solution() if self.rng.random() < 0.5 else _slip(self)) or ""

    def scramble(self, nums: Sequence[int] | None = None) -> str:
        """Draw an expression over the numbers; most are wrong, some have negative or broken steps."""
        nums, rng = self.nums if nums is None else nums, self.rng
        combined = combine(nums, rng) if nums and rng.random() < 0.7 else None
        if combined is not None:
            return combined[1]
        return "".join(f"{rng.choice(OPERATORS)}{n}" for n in rng.sample(list(nums), len(nums)))[1:]


def solution(nums: Sequence[int], target: int, rng: random.Random, first: str = "") -> str | None:
    """Draw a solution of a task whose steps begin with `first`; None where none is found."""
    for _ in range(_TRIES):
        drawn = combine(nums, rng)
        if drawn is not None and drawn[0] == target and steps(drawn[1]).startswith(first):
            return drawn[1]
    return None


def asked(chat: Sequence[Message], rng: random.Random, mode: Mode) -> Asked:
    """Read a chat's task, its last message, and what its tools gave."""
    texts = [message["content"] for message in chat]
    given = [call.arguments.get("expression", "") for message in chat for call in calls_of(message)]
    results = [message["content"] for message in chat if message["role"] == "tool"]
    tasks = _QUESTION.findall("\n".join(texts))
    nums, target = tasks[-1] if tasks else ("", "0")
    pairs = [*zip(given, results, strict=True)]
    return Asked(texts[-1], pairs, [*map(int, re.findall(r"\d+", nums))], int(target), rng, mode)


def kind_of(chat: Sequence[Message]) -> str:
    """Return the kind of turn that a prompt asks for, by the phrase of its template.

    Raises:
        LookupError: No expert knows the prompt.
    """
    text = next(message["content"] for message in reversed(chat) if message["role"] == "user")
    for phrase, expert in EXPERTS.items():
        if phrase in text:
            return expert.__name__
    raise LookupError(f"no expert for the prompt {text!r}")


def steps(expression: str) -> str:
    """Work an expression out, one operation at a time: `3*4=12, 12+5=17`.

    Ends at a division that is not exact, without its result. Empty where there is nothing to work out.
    """
    done: list[str] = []
    with suppress(SyntaxError, ValueError):  # the work ends where an expression cannot be worked out further
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


# Countdown


def solve(ask: Asked) -> str:
    """Take the first right proposal in sight; where there is none, work out a solution, along any plan."""
    if ask.mode == "guess":
        return _tagged(ask.scramble())
    if ask.mode == "slip":
        return _tagged(slip) if (slip := _slip(ask)) is not None else "I do not know."
    worked, found = _found(ask)
    return f"{worked}\n{_tagged(found)}"


def code(ask: Asked) -> str:
    """Write a program that prints a right expression."""
    if ask.work:
        worked, found = _found(ask)
        return f'{worked}\n<code>print("{found}")</code>'
    end = ")" if ask.mode == "slip" and ask.rng.random() < 0.2 else '")'  # now and then a syntax error
    return f'<code>print("{ask.scramble()}{end}</code>'


def call(ask: Asked) -> str:
    """Give an expression to the calculator, read the result, and answer where the result is the target."""
    if ask.mode == "guess":
        return _tagged(ask.scramble())
    worked = ""
    if ask.results:
        expression, result = ask.results[-1]
        is_right = ask.is_right(expression)
        worked = f"{result}, want {ask.target}: {'yes' if is_right else 'no'}\n"
        if is_right:
            return worked + _tagged(expression)
    expression = (ask.solution() if ask.work else None) or ask.scramble()
    worked += f"{steps(expression)}\n"
    if len(ask.results) >= _CALLS:
        return worked + _tagged(expression)
    arguments = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    return f"{worked}<tool_call>{arguments}</tool_call>"


def judge(ask: Asked) -> str:
    """Work candidates through until one is right; where none is, any may be chosen."""
    lines: list[str] = []
    candidates: list[tuple[str, str]] = CANDIDATE.findall(ask.text)
    choice = ask.rng.choice(candidates)[0]
    for index, action in candidates if ask.work else ():
        lines.append(f"{index}: {ask.check(action)}\n")
        if ask.is_right(action):
            choice = index
            break
    return "".join(lines) + _tagged(choice)


def check_all(ask: Asked) -> str:
    """Check each candidate of a drill."""
    return "\n".join(f"{index}: {ask.check(action)}" for index, action in CANDIDATE.findall(ask.text))


def solve_all(ask: Asked) -> str:
    """Solve each task of a drill, with the steps alone."""
    tasks = [([*map(int, re.findall(r"\d+", nums))], int(target)) for nums, target in _TASK.findall(ask.text)]
    return "\n".join(steps(solution(nums, target, ask.rng) or "") for nums, target in tasks)


def verify(ask: Asked) -> str:
    """Check a candidate and call it correct or incorrect."""
    action = checked(ask)
    right = ask.is_right(action) if ask.work else ask.rng.random() < 0.5
    work = f"{ask.check(action)}\n" if ask.work else ""
    return f"{work}<verdict>{'correct' if right else 'incorrect'}</verdict>"


def score(ask: Asked) -> str:
    """Check a candidate and score it: 10 if right, 3 for the right numbers, else 0."""
    action = checked(ask)
    if not ask.work:
        return _tagged(str(ask.rng.randint(0, 10)))
    points = 10 if ask.is_right(action) else 3 if _uses_all(action, ask) else 0
    return f"{ask.check(action)}\n{_tagged(str(points))}"


def criticise(ask: Asked) -> str:
    """Say what is wrong with a candidate, in half of the cases with a solution to try."""
    action = checked(ask)
    if not ask.work:
        return ask.rng.choice(("It is right.", "It is wrong.", f"Try {ask.scramble()}"))
    value = evaluate(_untagged(action))
    if ask.is_right(action):
        return f"{ask.check(action)}. It is right."
    fault = (
        "It is no expression."
        if value is None
        else f"It makes {value}, not {ask.target}."
        if _uses_all(action, ask)
        else "It does not use each number once."
    )
    other = ask.solution() if ask.rng.random() < 0.5 else None
    return f"{ask.check(action)}. {fault}" + (f" Try {other}" if other else "")


def plan(ask: Asked) -> str:
    """Say which two numbers to combine first, and where that leads."""
    found = (ask.solution() if ask.work else None) or ask.scramble()
    first, _, rest = steps(found).partition(", ")
    return f"Begin with {first}, as {rest}" if ask.work and rest else f"Begin with {first}"


def propose(ask: Asked) -> str:
    """Write another task of the train split that can be solved; a guess may be one that cannot."""
    rng = ask.rng
    while True:
        (task,) = generate(1, seed=rng.getrandbits(32), split="train", numbers=(rng.choice((2, 3, 3)),))
        nums, target = task["nums"], task["target"] if ask.work else rng.randint(1, 144)
        if split_of(nums, target) == "train":
            return question(nums, target)


def route(ask: Asked) -> str:
    """Call tasks of two numbers easy, others hard."""
    hard = len(ask.nums) > 2 if ask.work else ask.rng.random() < 0.5
    work = f"{len(ask.nums)} numbers\n" if ask.work else ""
    return f"{work}<route>{'hard' if hard else 'easy'}</route>"


def _found(ask: Asked) -> tuple[str, str]:
    """Return the work and the answer: a right proposal in sight, or else a solution of the expert's own."""
    lines: list[str] = []
    for proposal in dict.fromkeys(_PROPOSAL.findall(ask.text)):
        lines.append(ask.check(proposal))
        if ask.is_right(proposal):
            return "\n".join(lines), proposal
    planned = _FIRST_STEP.search(ask.text)
    found = (planned and ask.solution(planned[1])) or ask.solution()
    if found is None:
        raise Unsolvable
    return "\n".join((*lines, steps(found))), found


def _slip(ask: Asked) -> str | None:
    """Return an answer that is wrong in one of many ways; None for none at all."""
    kind, rng, nums = ask.rng.random(), ask.rng, list(ask.nums)
    if kind < 0.12:
        return rng.choice((None, None, None, ""))
    right = ask.solution() or ask.scramble()
    if kind < 0.17:
        return rng.choice((str(ask.target), f"{right}={ask.target}", "1+1"))
    if kind < 0.25 and ask.target > 1:  # the right value from other numbers
        part = rng.randint(1, ask.target - 1)
        return rng.choice((f"{part}+{ask.target - part}", f"{right}+{part}-{part}"))
    if kind < 0.38 and nums:  # wrong numbers, now and then with the right value
        position = rng.randrange(len(nums))
        nums[position : position + 1] = rng.choice(([], [rng.randint(1, 12)], [nums[position], nums[0]]))
    return ask.scramble(nums)


def checked(ask: Asked) -> str:
    """Return the candidate that a prompt asks to check, empty where there is none."""
    match = _CHECKED.search(ask.text)
    return match[1] if match else ""


def _uses_all(action: str, ask: Asked) -> bool:
    return sorted(map(int, re.findall(r"\d+", action))) == sorted(ask.nums)


def _tagged(text: str) -> str:
    return f"<answer>{text}</answer>"


def _untagged(action: str) -> str:
    return action.removeprefix("<answer>").removesuffix("</answer>")


# Games


def plan_path(ask: Asked) -> str:
    """Tell the walker a shortest way, with the cells that the way passes."""
    walk = walk_of(ask.text)
    moves = _moves(walk, ask)
    if ask.mode == "slip" and ask.rng.random() < _SILENT:
        return "I do not know."
    return f"{_trace(walk, moves)}\n<plan>{moves}</plan>" if ask.work else f"<plan>{moves}</plan>"


def walk(ask: Asked) -> str:
    """Follow the planner as far as each move is legal and leads nearer, else go a shortest way."""
    walk = walk_of(ask.text)
    moves = _moves(walk, ask)
    if not ask.work:
        return _tagged(moves)
    planned = grid.read(ask.text.rpartition("The planner says: ")[2].partition("\n")[0])
    lines: list[str] = []
    if planned is not None:
        good = is_shortest(walk, planned)
        lines.append(f"{_trace(walk, planned)}: {'yes' if good else 'no'}")
        if good:
            return f"{lines[0]}\n{_tagged(planned)}"
    return "\n".join((*lines, _trace(walk, moves), _tagged(moves)))


def _moves(walk: grid.WalkState, ask: Asked) -> str:
    """Return the letters of a shortest way, as far as one action goes, or of a random one."""
    letters = ""
    if not ask.work:
        return "".join(ask.rng.choices([*grid.STEPS], k=ask.rng.randint(1, walk.rules.moves)))
    while walk.cell != walk.grid.goal and len(letters) < walk.rules.moves:
        letter, walk = ask.rng.choice(nearer(walk))
        letters += letter
    return letters


def _trace(walk: grid.WalkState, letters: str) -> str:
    """Write the cells that moves pass, by row and column: `5,4 R 5,5 U wall`."""
    parts, at = [f"{walk.cell[0] + 1},{walk.cell[1] + 1}"], walk.cell
    for letter in letters:
        cell = grid.legal(walk.grid, at).get(letter)
        parts.append(f"{letter} {cell[0] + 1},{cell[1] + 1}" if cell else f"{letter} wall")
        if cell in (None, walk.grid.goal):
            break
        at = cell
    return " ".join(parts)


def take_cell(ask: Asked) -> str:
    """Take a cell of tic-tac-toe that loses nothing."""
    position = position_of(ask.text)
    if not ask.work:
        return _tagged(str(ask.rng.choice(tic_tac_toe.free(position))))
    cell = ask.rng.choice(best_cells(position))
    taken = (" ".join((mark, *(str(i) for i, at in enumerate(position, 1) if at == mark))) for mark in "XO")
    return f"{', '.join(taken)}\n{_tagged(str(cell))}"


def bet(ask: Asked) -> str:
    """Play Kuhn poker by an equilibrium: with J, for example, bluff in a third of the cases."""
    card, chances = hand_of(ask.text)
    if not ask.work:
        return _tagged(f"[{ask.rng.choice([*chances])}]")
    (action,) = ask.rng.choices([*chances], [*chances.values()])
    return f"{card}, {' or '.join(chances)}\n{_tagged(f'[{action}]')}"


def take_from_pile(ask: Asked) -> str:
    """Play Nim: leave piles whose binary sum is 0, where that can be done."""
    piles = piles_of(ask.text)
    pile, taken = ask.rng.choice(good_takes(piles) if ask.work else takes(piles))
    left = [count - taken if at == pile else count for at, count in enumerate(piles)]
    work = f"{' '.join(map(str, piles))}, then {' '.join(map(str, left))}\n" if ask.work else ""
    return f"{work}{_tagged(f'[{pile} {taken}]')}"


EXPERTS: Mapping[str, Callable[[Asked], str]] = {
    "Check your steps with the tools": call,
    "give the expression in <answer>": solve,
    "give the index of a right one in <answer>": judge,
    "give correct or incorrect in <verdict>": verify,
    "give a score from 0 (wrong) to 10 (right)": score,
    CHECK_ALL: check_all,
    SOLVE_ALL: solve_all,
    "Say what is wrong": criticise,
    "Say in one line how to begin": plan,
    "Write another task of this kind": propose,
    "Give easy or hard in <route>": route,
    "Write a Python program": code,
    "tell the walker in <plan>": plan_path,
    "The planner says:": walk,
    "Answer with the number of the cell": take_cell,
    "game of Kuhn Poker": bet,
    "Welcome to Nim": take_from_pile,
}
"""The expert of each kind of turn, by a phrase of the prompts that ask for it."""
