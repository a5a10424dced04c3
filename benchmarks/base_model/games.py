"""Boards and hands of the shipped games, read from a prompt, and their good actions.

In goes the text of a prompt; out come walks, cells, cards and piles. Both the expert, who plays, and the
marks, which judge a model's play, go by these functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from rolegraph.roles import grid, tic_tac_toe

_ROW = re.compile(r"^[.#AG](?: [.#AG])+$", re.M)
_CELLS = re.compile(r"^[XO\d] [XO\d] [XO\d]$", re.M)
_DARING: Mapping[tuple[str, str], float] = {
    ("J", "bet"): 1 / 3,
    ("Q", "bet"): 0.0,
    ("K", "bet"): 1.0,
    ("J", "call"): 0.0,
    ("Q", "call"): 1 / 3,
    ("K", "call"): 1.0,
}
"""Chance of the daring action of Kuhn poker at an equilibrium, by card and action."""


def walk_of(text: str) -> grid.WalkState:
    """Read the board of an observation."""
    rows = [row.split() for row in _ROW.findall(text)]
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row)}
    (at,), (goal,) = ([cell for cell, mark in cells.items() if mark == sought] for sought in "AG")
    walls = frozenset(cell for cell, mark in cells.items() if mark == "#")
    most = re.search(r"up to (\d+) moves", text)
    rules = grid.GridRules(int(most[1]) if most else 1)
    return grid.WalkState(grid.Grid(len(rows), walls, at, goal), rules, at)


def nearer(walk: grid.WalkState) -> list[tuple[str, grid.WalkState]]:
    """Return the moves that lead nearer to the goal, each with the walk after it."""
    far = grid.distances(walk.grid)
    return [
        (letter, walk._replace(cell=cell))
        for letter, cell in grid.legal(walk.grid, walk.cell).items()
        if far.get(cell) == far[walk.cell] - 1
    ]


def is_shortest(walk: grid.WalkState, letters: str) -> bool:
    """Tell whether each of some moves is legal and leads nearer to the goal, or ends there."""
    after, fault = grid.go(walk, letters)
    far = grid.distances(walk.grid)
    return not fault and far[after.cell] == max(0, far[walk.cell] - len(letters))


def position_of(text: str) -> str:
    """Read a board of tic-tac-toe."""
    return re.sub(r"\d", ".", "".join(_CELLS.findall(text)).replace(" ", ""))


def best_cells(position: str) -> list[int]:
    """Return the cells that lose nothing under perfect play."""
    values = {cell: -_value(tic_tac_toe.place(position, cell)) for cell in tic_tac_toe.free(position)}
    return [cell for cell, value in values.items() if value == max(values.values())]


@cache
def _value(position: str) -> int:
    """Return 1, 0 or -1: what the player to move gets under perfect play."""
    if tic_tac_toe.winner(position) is not None:
        return -1
    following = [tic_tac_toe.place(position, cell) for cell in tic_tac_toe.free(position)]
    return max((-_value(after) for after in following), default=0)


def hand_of(text: str) -> tuple[str, dict[str, float]]:
    """Read a hand of Kuhn poker: the card, and the legal actions, each with its chance at an equilibrium."""
    card: str = re.findall(r"Your card is: '(\w)'", text)[-1]
    legal = re.findall(r"\[(\w+)\]", re.findall(r"available actions are: (.*)", text)[-1])
    high, low = ("call", "fold") if "call" in legal else ("bet", "check")
    return card, {low: 1 - _DARING[card, high], high: _DARING[card, high]}


def piles_of(text: str) -> list[int]:
    """Read the piles of Nim."""
    return [int(count) for _, count in re.findall(r"pile (\d+): (\d+)", text.rpartition("Current Pile:")[2])]


def takes(piles: Iterable[int]) -> list[tuple[int, int]]:
    """Return the legal actions of Nim, as pile and number."""
    return [(pile, taken) for pile, count in enumerate(piles) for taken in range(1, count + 1)]


def good_takes(piles: list[int]) -> list[tuple[int, int]]:
    """Return the actions that leave piles whose binary sum is 0; all legal actions where none does."""
    total = 0
    for count in piles:
        total ^= count
    good = [(pile, taken) for pile, taken in takes(piles) if piles[pile] - taken == piles[pile] ^ total]
    return good or takes(piles)
