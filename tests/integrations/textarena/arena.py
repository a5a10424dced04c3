"""Players for TextArena's games in tests."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from rolegraph.engine.vocabulary import Environment, LiveEnvironment, Transition
from tests.roles.vocabulary import environment

Choose = Callable[[str, random.Random], Any]
"""Function from a player's observation to its move."""


def listed(pattern: str) -> Choose:
    """Choose one of the moves that the end of an observation lists."""

    def choose(seen: str, rng: random.Random) -> str:
        return rng.choice(re.findall(pattern, seen[seen.rindex("vailable") :]))

    return choose


def one_of(*moves: str) -> Choose:
    return lambda seen, rng: rng.choice(moves)


def pile(seen: str, rng: random.Random) -> str:
    """Choose a legal move of Nim."""
    piles = {at: int(count) for at, count in re.findall(r"pile (\d): (\d+)", seen)}
    at = rng.choice([at for at, count in piles.items() if count])
    return f"{at} {rng.randint(1, piles[at])}"


def column(seen: str, rng: random.Random) -> str:
    """Choose a legal move of Connect Four: a column whose topmost cell is free."""
    top = seen[seen.rindex("-------------") :].splitlines()[1].split()
    return f"col {rng.choice([number for number, cell in enumerate(top) if cell == '.'])}"


GAMES: Mapping[str, Choose] = {
    "TicTacToe-v0": listed(r"\[\d\]"),
    "ThreePlayerTicTacToe-v0": listed(r"\[\d+\]"),
    "KuhnPoker-v0": listed(r"\[\w+\]"),
    "ConnectFour-v0": column,
    "Nim-v0": pile,
    "FrozenLake-v0-random": listed(r"\[\w+\]"),
    "Blackjack-v0": one_of("[hit]", "[stand]"),
    "IteratedPrisonersDilemma-v0": one_of("[cooperate]", "[defect]"),
    "ThreePlayerIPD-v0": one_of("[0 defect] [1 defect] [2 cooperate]"),
    "PigDice-v0": one_of("[roll]", "[hold]"),
    "Mastermind-v0": one_of("[1 2 3 4]", "[6 5 4 3]"),
}


def opened(game: str, **options: Any) -> Environment:
    return environment({"textarena": game, **options})


async def played(live: LiveEnvironment, choose: Choose, *, seed: int, players: int) -> list[Transition]:
    """Play a game to its end, or for 400 moves; return its transitions."""
    rng = random.Random(seed)
    seen = [await live.reset(seed, players)]
    while not seen[-1].done and len(seen) < 400:
        ((player, text),) = seen[-1].observations.items()
        seen.append(await live.step({player: choose(text, rng)}))
    await live.close()
    return seen


async def scripted(live: LiveEnvironment, *moves: Any, players: int = 2, seed: int = 0) -> Transition:
    """Play some moves, each by the player whose turn it is; return the last transition."""
    seen = await live.reset(seed, players)
    for move in moves:
        seen = await live.step({next(iter(seen.observations)): move})
    return seen
