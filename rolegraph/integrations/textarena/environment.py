"""The environment `textarena`."""

from __future__ import annotations

from functools import partial
from typing import Any

from rolegraph.engine.vocabulary import Environment, require_library
from rolegraph.integrations.textarena import arena


def textarena(game: str, /, **options: Any) -> Environment:
    """Play a game of TextArena, by its id; further options are the game's own.

    game: the id, such as TicTacToe-v0; most games have a twin that ends in -train and tells less
    """
    require_library("textarena", "textarena", "TextArena's games")
    min_players, max_players = arena.players(game, options)
    return Environment(partial(arena.ArenaGame, game, options), min_players, max_players)
