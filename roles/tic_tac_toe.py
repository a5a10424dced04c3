"""Tic-tac-toe: its positions, its moves, and what a player is told.

In go a position and a move; out come the next position and a transition. A position is nine characters, row
by row: X, O, or a dot for a free cell. X is player 0 and begins. This file knows nothing of specs and roles.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rolegraph.engine.vocabulary import Transition

EMPTY = "." * 9
MARKS = "XO"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

Illegal = Literal["loses", "repeats"]
"""What becomes of a player whose move is illegal or cannot be read: it loses, or is asked again."""


def to_move(position: str) -> int:
    """Whose turn it is, 0 or 1."""
    return position.count("X") - position.count("O")


def free(position: str) -> Sequence[int]:
    """The free cells, numbered from 1."""
    return [number for number, mark in enumerate(position, 1) if mark == "."]


def winner(position: str) -> int | None:
    """The player with three in a row."""
    rows = {"".join(position[cell] for cell in line) for line in LINES}
    return next((player for player, mark in enumerate(MARKS) if mark * 3 in rows), None)


def place(position: str, cell: int) -> str:
    """The position after the player to move takes a free cell."""
    return position[: cell - 1] + MARKS[to_move(position)] + position[cell:]


def begin(seed: int, opening: int) -> tuple[str, Transition]:
    """The first position: `opening` random moves, at most 4, with which nobody has won."""
    rng, position = random.Random(f"tic_tac_toe {seed}"), EMPTY
    for _ in range(opening):
        position = place(position, rng.choice(free(position)))
    return position, _turn(position)


def move(illegal: Illegal, position: str, actions: Mapping[int, Any]) -> tuple[str, Transition]:
    """What comes of the move of whose turn it is."""
    player = to_move(position)
    cell = read(actions.get(player))
    if cell is None or cell not in free(position):
        fault = "No cell could be read." if cell is None else f"Cell {cell} is taken."
        lost = _over(1 - player, f"{MARKS[player]} made an illegal move")
        return position, lost if illegal == "loses" else _turn(position, fault)
    position = place(position, cell)
    if winner(position) is not None:
        return position, _over(player, f"{MARKS[player]} has three in a row")
    if not free(position):
        return position, _over(None, "draw")
    return position, _turn(position)


def read(action: Any) -> int | None:
    """The only digit in an action, 1 to 9; None where there is none, or more than one."""
    digits = re.findall(r"\d", str(action))
    return int(digits[0]) if len(digits) == 1 and digits != ["0"] else None


def _turn(position: str, fault: str = "") -> Transition:
    player = to_move(position)
    cells = [str(number) if mark == "." else mark for number, mark in enumerate(position, 1)]
    rows = (" ".join(cells[row : row + 3]) for row in (0, 3, 6))
    told = (
        *rows,
        f"You are {MARKS[player]}. Free cells: {', '.join(map(str, free(position)))}.",
        "Answer with the number of the cell that you take.",
    )
    return Transition({player: "\n".join(filter(None, (fault, *told)))})


def _over(won: int | None, reason: str) -> Transition:
    rewards = {player: 0.0 if won is None else 1.0 if player == won else -1.0 for player in (0, 1)}
    return Transition({}, rewards, done=True, info={"reason": reason})
