"""From two pure functions to an Environment: what every game that is only rules shares. Knows no game."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from engine.vocabulary.items import Environment, Transition

State = TypeVar("State")
Start = Callable[[int, int], tuple[State, Transition]]
"""Seed and number of players to the first state, and what is seen of it."""
Move = Callable[[State, Mapping[int, Any]], tuple[State, Transition]]
"""A state and the actions of those who move in it to the next one, and what is seen of that."""


def environment_of(start: Start[State], move: Move[State], *, least: int = 1, most: int = 1) -> Environment:
    """An Environment whose states are plain data that no function changes, so two games share nothing."""
    return Environment(partial(_Game[State], start, move), least, most)


class _Game(Generic[State]):
    """One game, which has a state from its reset on."""

    _state: State

    def __init__(self, start: Start[State], move: Move[State]) -> None:
        self._start, self._move = start, move

    async def reset(self, seed: int, players: int) -> Transition:
        self._state, transition = self._start(seed, players)
        return transition

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        self._state, transition = self._move(self._state, actions)
        return transition

    async def close(self) -> None:
        """There is nothing to let go of."""
