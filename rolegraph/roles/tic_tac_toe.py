"""Tic-tac-toe: positions, moves and observations.

A position is nine characters, row by row: X, O, or a dot for a free cell. X is player 0 and moves first.
Knows no specs or roles.
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
"""Consequence of a move that is illegal or cannot be read: the player loses, or moves again."""


def to_move(position: str) -> int:
    """Return the player to move, 0 or 1."""
    return position.count("X") - position.count("O")


def free(position: str) -> Sequence[int]:
    """List the free cells, numbered from 1."""
    return [number for number, mark in enumerate(position, 1) if mark == "."]


def winner(position: str) -> int | None:
    """Return the player with three in a row; None without a winner."""
    rows = {"".join(position[cell] for cell in line) for line in LINES}
    return next((player for player, mark in enumerate(MARKS) if mark * 3 in rows), None)


def place(position: str, cell: int) -> str:
    """Return the position after the player to move takes a cell, numbered from 1."""
    return position[: cell - 1] + MARKS[to_move(position)] + position[cell:]


def begin(seed: int, opening: int) -> tuple[str, Transition]:
    """Return the first position, after `opening` random moves by `seed`, and its Transition.

    At most 4 moves are random, so that no player has won.
    """
    rng, position = random.Random(f"tic_tac_toe {seed}"), EMPTY
    for _ in range(opening):
        position = place(position, rng.choice(free(position)))
    return position, _turn(position)


def move(illegal: Illegal, position: str, actions: Mapping[int, Any]) -> tuple[str, Transition]:
    """Return the position after the move of the player to move, and the Transition.

    Args:
        illegal: The consequence of an illegal move.
        position: The position.
        actions: The parsed answers, by player.
    """
    player = to_move(position)
    cell = read(actions.get(player))
    if cell is None or cell not in free(position):
        fault = "No cell could be read." if cell is None else f"Cell {cell} is taken."
        lost_game = _over(1 - player, f"{MARKS[player]} made an illegal move")
        return position, lost_game if illegal == "loses" else _turn(position, fault)
    position = place(position, cell)
    if winner(position) is not None:
        return position, _over(player, f"{MARKS[player]} has three in a row")
    if not free(position):
        return position, _over(None, "draw")
    return position, _turn(position)


def read(action: Any) -> int | None:
    """Return the only digit in an action, 1 to 9; None without a digit or with several."""
    digits = re.findall(r"\d", str(action))
    return int(digits[0]) if len(digits) == 1 and digits != ["0"] else None


def _turn(position: str, fault: str = "") -> Transition:
    player = to_move(position)
    cells = [str(number) if mark == "." else mark for number, mark in enumerate(position, 1)]
    rows = (" ".join(cells[row : row + 3]) for row in (0, 3, 6))
    state = f"You are {MARKS[player]}. Free cells: {', '.join(map(str, free(position)))}."
    request = "Answer with the number of the cell that you take."
    return Transition({player: "\n".join(filter(None, (fault, *rows, state, request)))})


def _over(winning: int | None, reason: str) -> Transition:
    rewards = {player: 0.0 if winning is None else 1.0 if player == winning else -1.0 for player in (0, 1)}
    return Transition({}, rewards, done=True, info={"reason": reason})
