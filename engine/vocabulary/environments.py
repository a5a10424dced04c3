"""What an environment is, and how two pure functions make one: what every game that is only rules shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rolegraph.engine.errors import WorldError
from rolegraph.engine.vocabulary.registry import Item

NO_REWARDS: Mapping[int, float] = {}
NO_INFO: Mapping[str, Any] = {}


class Transition(NamedTuple):
    """What an environment shows at its start, or after a move. Players are numbered from 0."""

    observations: Mapping[int, str]
    """Who moves now, and what each of them sees. Those who move at once see no other's move. Empty when it is
    over."""
    rewards: Mapping[int, float] = NO_REWARDS
    """What the transition earned; a player that is left out earned nothing."""
    done: bool = False
    info: Mapping[str, Any] = NO_INFO
    """What else is worth a record, as JSON values: why it is over (`reason`), say."""


class LiveEnvironment(Protocol):
    """An environment in one episode. It is reset once, or more often, and closed whatever happens."""

    async def reset(self, seed: int, players: int) -> Transition:
        """The start: the same for the same seed and number of players, whatever else is going on."""
        ...

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        """What comes of the actions of those who moved.

        An action is what a role's parser made of its answer. One that cannot be read, and that of a player
        who gave none (None, or left out), is for the environment to judge.
        """
        ...

    async def close(self) -> None:
        """Let go of whatever it holds."""
        ...


class EnvironmentFailure(WorldError):
    """An environment raises this where its episode cannot go on; others can."""


@dataclass(frozen=True, slots=True)
class Environment(Item):
    """A world that the roles of a loop move in."""

    open: Callable[[], LiveEnvironment]
    """A fresh one for an episode: two of them share nothing that either could notice."""
    min_players: int = 1
    """The fewest players that it takes."""
    max_players: int = 1
    """The most of them."""


State = TypeVar("State")
Start = Callable[[int, int], tuple[State, Transition]]
"""Seed and number of players to the first state, and what is seen of it."""
Move = Callable[[State, Mapping[int, Any]], tuple[State, Transition]]
"""A state and the actions of those who move in it to the next one, and what is seen of that."""


def environment_of(
    start: Start[State], move: Move[State], *, min_players: int = 1, max_players: int = 1
) -> Environment:
    """An Environment whose states are plain data that no function changes, so two games share nothing."""
    return Environment(partial(_Game[State], start, move), min_players, max_players)


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
