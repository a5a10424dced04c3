"""Environments: worlds in which the roles of a loop move.

Each factory makes an `Environment`, which opens a new game for every episode. The rules of the built-in games
have files of their own.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field, FiniteFloat

from rolegraph.engine.vocabulary import Environment, Transition, environment_of
from rolegraph.roles import grid as grid_game
from rolegraph.roles import tic_tac_toe as tic_tac_toe_game


def grid(
    *,
    size: Annotated[int, Field(ge=2, le=20)] = 5,
    walls: Annotated[float, Field(ge=0, le=0.8)] = 0.25,
    moves: Annotated[int, Field(ge=1, le=100)] = 4,
    shaping: Annotated[FiniteFloat, Field(ge=0)] = 0.0,
    penalty: Annotated[FiniteFloat, Field(ge=0)] = 0.0,
) -> Environment:
    """Walk through a grid with walls: 1 at the goal. One player, who moves by letters such as RRDD.

    size: rows and columns
    walls: the share of cells that are walls, as far as the way leaves room
    moves: the most moves at once; an illegal one ends them
    shaping: the reward for coming nearer to the goal, in sum over the whole way
    penalty: the loss for an action with an illegal move, or with none at all
    """
    rules = grid_game.GridRules(moves, shaping, penalty)

    def start(seed: int, players: int) -> tuple[grid_game.WalkState, Transition]:
        return grid_game.begin(grid_game.draw(seed, size, walls), rules)

    return environment_of(start, grid_game.move)


def tic_tac_toe(
    *, opening: Annotated[int, Field(ge=0, le=4)] = 0, illegal: tic_tac_toe_game.Illegal = "loses"
) -> Environment:
    """Play tic-tac-toe: 1 for the winner, -1 for the loser, 0 each for a draw; a move is a cell's number.

    opening: how many random moves come before the first
    illegal: whether an illegal move loses the game, or the player is asked again
    """

    def start(seed: int, players: int) -> tuple[str, Transition]:
        return tic_tac_toe_game.begin(seed, opening)

    move = partial(tic_tac_toe_game.move, illegal)
    return environment_of(start, move, min_players=2, max_players=2)
