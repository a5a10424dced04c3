"""Grid world: random grids with walls, a start and a goal, the moves in them, and the observations.

Grids, walks and transitions are immutable plain data. Every grid has a way from start to goal: the way is
drawn first, and the walls beside it. Knows no specs or roles.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from rolegraph.engine.vocabulary import Transition

Cell = tuple[int, int]
"""Row and column, from 0 at the top left."""

STEPS: Mapping[str, Cell] = {"U": (-1, 0), "R": (0, 1), "D": (1, 0), "L": (0, -1)}
WORDS = {"UP": "U", "RIGHT": "R", "DOWN": "D", "LEFT": "L"}


class Grid(NamedTuple):
    """Square map of a grid game: walls, start and goal."""

    size: int
    walls: frozenset[Cell]
    start: Cell
    goal: Cell


class GridRules(NamedTuple):
    """Number of moves in an action, and rewards besides the 1 at the goal."""

    moves: int = 1
    """Largest number of moves in an action."""
    shaping: float = 0.0
    """Reward for coming nearer to the goal, as a sum over the whole way; moving away loses as much."""
    penalty: float = 0.0
    """Loss for an action with an illegal move, or without any move."""


class WalkState(NamedTuple):
    """Position of the walker, and the number of its moves."""

    grid: Grid
    rules: GridRules
    cell: Cell
    made: int = 0
    """Number of legal moves so far."""


def draw(seed: int, size: int, walls: float) -> Grid:
    """Draw the grid of a seed.

    Args:
        seed: The seed.
        size: The number of rows, and of columns.
        walls: The share of cells that are walls, from 0 to 1, as far as the way leaves room.
    """
    rng = random.Random(f"grid {seed}")
    cells = [(row, column) for row in range(size) for column in range(size)]
    start, goal = rng.sample(cells, 2)
    way_cells = set(_random_way(rng, size, start, goal))
    cells_beside = [cell for cell in cells if cell not in way_cells]
    count = min(round(walls * len(cells)), len(cells_beside))
    return Grid(size, frozenset(rng.sample(cells_beside, count)), start, goal)


def _random_way(rng: random.Random, size: int, start: Cell, goal: Cell) -> Sequence[Cell]:
    """Return a path from start to goal that visits no cell twice: a random walk without its loops."""
    cells = [start]
    while cells[-1] != goal:
        cell = rng.choice([*_around(cells[-1], size).values()])
        if cell in cells:
            del cells[cells.index(cell) + 1 :]
        else:
            cells.append(cell)
    return cells


def _around(cell: Cell, size: int) -> dict[str, Cell]:
    cells_reached = {letter: (cell[0] + down, cell[1] + right) for letter, (down, right) in STEPS.items()}
    return {letter: there for letter, there in cells_reached.items() if min(there) >= 0 and max(there) < size}


def legal(grid: Grid, cell: Cell) -> dict[str, Cell]:
    """Return the legal moves at a cell, each with the cell that it leads to."""
    return {letter: to for letter, to in _around(cell, grid.size).items() if to not in grid.walls}


@lru_cache(maxsize=1024)
def distances(grid: Grid) -> Mapping[Cell, int]:
    """Return the number of moves to the goal from every cell from which it can be reached."""
    moves = {grid.goal: 0}
    edge = moves
    while edge:
        edge = {
            neighbour: far + 1
            for cell, far in edge.items()
            for neighbour in legal(grid, cell).values()
            if neighbour not in moves
        }
        moves = moves | edge
    return moves


def begin(grid: Grid, rules: GridRules) -> tuple[WalkState, Transition]:
    """Start a walk; the transition's `info` has the `optimal` number of moves."""
    walk = WalkState(grid, rules, grid.start)
    return walk, Transition({0: observation(walk)}, info={"optimal": distances(grid)[grid.start]})


def move(walk: WalkState, actions: Mapping[int, Any]) -> tuple[WalkState, Transition]:
    """Return the walk after the action of player 0, and the Transition with its observation and reward."""
    letters = read(actions.get(0))
    walk_after, fault = go(walk, letters) if letters else (walk, "No move could be read.")
    return walk_after, _seen(walk, walk_after, fault)


def read(action: Any) -> str | None:
    """Return the letters of the moves in an action such as `RRDD`, `r, r` or `["R", "down"]`; None for other
    words."""
    parts = cast("list[Any]", action) if isinstance(action, list) else [action]
    words: list[str] = re.findall(r"\w+", " ".join(map(str, parts)).upper())
    letters = "".join(WORDS.get(word) or word for word in words)
    return letters if letters and set(letters) <= set(STEPS) else None


def go(walk: WalkState, letters: str) -> tuple[WalkState, str]:
    """Walk by the letters of an action, up to the goal or the first illegal move.

    Returns:
        The walk after the moves, and the fault as a sentence, empty without a fault.
    """
    for count, letter in enumerate(letters):
        if walk.cell == walk.grid.goal:
            break
        if count == walk.rules.moves:
            return walk, f"No more than {count} of your moves could be made."
        cell = legal(walk.grid, walk.cell).get(letter)
        if cell is None:
            return walk, f"Your move {letter} was illegal at {_place(walk.cell)}."
        walk = walk._replace(cell=cell, made=walk.made + 1)
    return walk, ""


def _seen(before: WalkState, after: WalkState, fault: str) -> Transition:
    grid, rules, *_ = after
    moves_left, is_done = distances(grid), after.cell == grid.goal
    nearer = (moves_left[before.cell] - moves_left[after.cell]) / moves_left[grid.start]
    reward = float(is_done) + rules.shaping * nearer - (rules.penalty if fault else 0.0)
    if is_done:
        info = {"reason": "goal", "moves": after.made, "optimal": moves_left[grid.start]}
        return Transition({}, {0: reward}, done=True, info=info)
    text = "\n".join(filter(None, (fault, observation(after))))
    return Transition({0: text}, {0: reward})


def observation(walk: WalkState) -> str:
    """Write the grid, the walker's position and the legal moves as text."""
    grid, rules, cell, _ = walk
    letters = dict.fromkeys(grid.walls, "#") | {grid.goal: "G", cell: "A"}
    rows = (
        " ".join(letters.get((row, column), ".") for column in range(grid.size)) for row in range(grid.size)
    )
    most = f"up to {rules.moves} moves, such as {'RRDD'[: rules.moves]}" if rules.moves > 1 else "one move"
    legal_moves = ", ".join(legal(grid, cell))
    position_text = f"You are A, at {_place(cell)}. The goal G is at {_place(grid.goal)}. # is a wall."
    request = f"Legal moves here: {legal_moves} (U up, R right, D down, L left). Answer with {most}."
    return "\n".join((*rows, position_text, request))


def _place(cell: Cell) -> str:
    return f"row {cell[0] + 1}, column {cell[1] + 1}"
