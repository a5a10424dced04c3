"""Marks of answers: whether an answer does what its turn asks for, by the facts that the prompt states.

In goes a chat and an answer; out come the kind of the turn and a mark. The prompts are read as the expert
reads them (`expert.py`, `games.py`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

from expert import CANDIDATE, Asked, asked, checked, kind_of, solution
from games import best_cells, good_takes, hand_of, is_shortest, piles_of, position_of, walk_of

from rolegraph.engine.models import Completion
from rolegraph.engine.records import Message
from rolegraph.roles import grid

_TAG = re.compile(r"<(\w+)>(.*?)</\1>", re.S)
_PRINTED = re.compile(r'print\("(.*)"\)')


def mark(chat: Sequence[Message], answer: Completion) -> tuple[str, bool | None]:
    """Mark an answer.

    Returns:
        The kind of the turn, and whether the answer is right; None where nothing could be right.
    """
    kind, ask = kind_of(chat), asked(chat, random.Random(0), "work")
    if answer.calls:
        return kind, ask.is_right(str(answer.calls[0].arguments.get("expression", "")))
    tags = _TAG.findall(answer.text)
    return kind, _MARKS[kind](ask, tags[-1][1] if tags else "", answer.text)


def _chosen(ask: Asked, action: str, _: str) -> bool | None:
    candidates = dict(CANDIDATE.findall(ask.text))
    right = {index for index, candidate in candidates.items() if ask.is_right(candidate)}
    return action in right if right else None


def _scored(ask: Asked, action: str, _: str) -> bool:
    return action.isdecimal() and (int(action) > 5) == ask.is_right(checked(ask))


def _criticised(ask: Asked, _: str, text: str) -> bool:
    return ("It is right." in text) == ask.is_right(checked(ask))


def _begun(ask: Asked, _: str, text: str) -> bool:
    first = re.match(r"Begin with (\d+[-+*/]\d+=\d+)", text)
    return first is not None and ask.solution(first[1]) is not None


def _proposed(_: Asked, __: str, text: str) -> bool:
    task = asked([{"role": "user", "content": text}], random.Random(0), "work")
    return bool(task.nums) and solution(task.nums, task.target, task.rng) is not None


def _walked(ask: Asked, action: str, _: str) -> bool:
    letters = grid.read(action)
    return letters is not None and is_shortest(walk_of(ask.text), letters)


def _taken_cell(ask: Asked, action: str, _: str) -> bool:
    return action in map(str, best_cells(position_of(ask.text)))


def _taken(ask: Asked, action: str, _: str) -> bool:
    return action in {f"[{pile} {taken}]" for pile, taken in good_takes(piles_of(ask.text))}


def _bet(ask: Asked, action: str, _: str) -> bool:
    return hand_of(ask.text)[1].get(action.strip("[]"), 0) > 0


_MARKS: Mapping[str, Callable[[Asked, str, str], bool | None]] = {
    "call": lambda ask, action, _: ask.is_right(action),
    "solve": lambda ask, action, _: ask.is_right(action),
    "code": lambda ask, _, text: any(map(ask.is_right, _PRINTED.findall(text))),
    "judge": _chosen,
    "verify": lambda ask, action, _: action == ("correct" if ask.is_right(checked(ask)) else "incorrect"),
    "score": _scored,
    "criticise": _criticised,
    "plan": _begun,
    "propose": _proposed,
    "route": lambda ask, action, _: action == ("hard" if len(ask.nums) > 2 else "easy"),
    "plan_path": _walked,
    "walk": _walked,
    "take_cell": _taken_cell,
    "take_from_pile": _taken,
    "bet": _bet,
}
"""The mark of each kind of turn, from the request, the text in the answer's last tag, and the whole text."""
