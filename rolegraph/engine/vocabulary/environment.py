"""Environments, and how two pure functions make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rolegraph.engine.errors import WorldError
from rolegraph.engine.vocabulary.registry import Item

NOTHING: Mapping[Any, Any] = {}


class Transition(NamedTuple):
    """Result of an environment's reset or step. Players are numbered from 0."""

    observations: Mapping[int, str]
    """Text for each player that moves next; empty when the game is over.

    Players that move at the same time do not see each other's moves."""
    rewards: Mapping[int, float] = NOTHING
    """Reward of this transition, by player; a missing player earned 0."""
    done: bool = False
    """True when the game is over."""
    info: Mapping[str, Any] = NOTHING
    """Further JSON values for the record, such as `reason`, why the game is over."""


class LiveEnvironment(Protocol):
    """Environment in one episode: reset at least once, and always closed."""

    async def reset(self, seed: int, players: int) -> Transition:
        """Start a game.

        Args:
            seed: Seed of all randomness: the same seed and number of players give the same start.
            players: Number of players, from `min_players` to `max_players`.

        Returns:
            The first Transition.

        Raises:
            EnvironmentFailure: The episode cannot go on.
        """
        ...

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        """Play the actions of the players whose turn it is, and return the next Transition.

        Args:
            actions: Actions that the roles' parsers returned, by player. None or a missing player means that
                the role gave no action. The environment decides the result of such a turn, and of an action
                that it cannot read.

        Raises:
            EnvironmentFailure: The episode cannot go on.
        """
        ...

    async def close(self) -> None:
        """Release the resources of the game."""
        ...


class EnvironmentFailure(WorldError):
    """Error that an environment raises to end its episode; other episodes continue."""


@dataclass(frozen=True, slots=True)
class Environment(Item):
    """World in which the roles of a loop move."""

    open: Callable[[], LiveEnvironment]
    """Function that makes the environment of one episode; two environments share no state."""
    min_players: int = 1
    max_players: int = 1


State = TypeVar("State")
Start = Callable[[int, int], tuple[State, Transition]]
"""`start(seed, players)` returns the first state and its transition."""
Move = Callable[[State, Mapping[int, Any]], tuple[State, Transition]]
"""`move(state, actions)` returns the next state and its transition."""


def environment_of(
    start: Start[State], move: Move[State], *, min_players: int = 1, max_players: int = 1
) -> Environment:
    """Return an Environment that plays a game made of two pure functions.

    Args:
        start: `start(seed, players)` returns the first state and its transition.
        move: `move(state, actions)` returns the next state and its transition. It must not change `state`.
        min_players: The smallest number of players.
        max_players: The largest number of players.
    """
    return Environment(partial(_PureGame[State], start, move), min_players, max_players)


class _PureGame(Generic[State]):
    """Environment made of two pure functions, `start` and `move`, that holds the state between them."""

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
        """Do nothing: a state holds no resources."""
