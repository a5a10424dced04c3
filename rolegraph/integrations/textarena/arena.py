"""TextArena's games, played in worker processes.

Importing TextArena takes 57 MB, and a game about 40 kB, so a few processes hold all games. Games in one
process share the generators of `random` and `numpy.random`, so each game has its own states of them, which
are restored before each move. Event loops of several threads may share the processes.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, TypeVar

from rolegraph.engine.limits.tools import GAME_SECONDS, GAME_STOP_SECONDS
from rolegraph.engine.vocabulary import EnvironmentFailure, Transition, UsageError, did_you_mean
from rolegraph.engine.vocabulary.imports import Loaded
from rolegraph.engine.vocabulary.isolation import PATIENCE, CallLimit, Isolation
from rolegraph.roles.equality import as_text

WORKERS = max(1, min(4, (os.cpu_count() or 2) // 2))
"""Number of worker processes."""
SECONDS, GRACE = GAME_SECONDS.most, GAME_STOP_SECONDS.most

T = TypeVar("T")

PLAYERS = range(1, 17)
"""Numbers of players that `describe_game` tries."""


class GameTimeout(BaseException):
    """Raised in a game that exceeds its time limit; a BaseException, so that no `except` of the game catches
    it."""


class GameFailure(Exception):
    """Error that ends a game; its message is the reason, in a line."""


class UnknownOption(ValueError):
    """Error for an option that a game does not have."""


@dataclass(slots=True)
class WorkerGame:
    """Game in a worker process: its environment, the next player, and the states of random generators."""

    env: Any
    player: int
    python: tuple[Any, ...]
    """State of `random`."""
    numpy: Any
    """Generator of `numpy.random`."""


_numbers = count()


def players(game: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return (smallest, largest) number of players of a game.

    Args:
        game: TextArena's id of the game.
        options: The game's own options.

    Raises:
        UsageError: The game does not exist, or cannot be played here.
        ValueError: The game does not have one of the options.
    """
    try:
        return _players(game, json.dumps(options))
    except TypeError as error:
        raise ValueError(f"options are texts, numbers, lists and mappings: {error}") from None
    except (GameFailure, CallLimit, RuntimeError) as error:
        raise UsageError(f"TextArena's {game} cannot be played: {error}") from None


@cache
def _players(game: str, options: str) -> tuple[int, int]:
    return _submit(0, describe_game, game, json.loads(options)).result()


class ArenaGame:
    """Game of TextArena in one episode; one player moves at a time."""

    def __init__(self, game: str, options: Mapping[str, Any]) -> None:
        self._game, self._options = game, options
        self._number = next(_numbers)

    async def reset(self, seed: int, players: int) -> Transition:
        """Start a game in one of the workers, and close the previous game."""
        return await self._ask(reset_game, self._game, self._options, seed, players)

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        """Send the moving player's action to TextArena and return the Transition; a missing action is sent as
        empty text."""
        texts = {player: "" if action is None else as_text(action) for player, action in actions.items()}
        return await self._ask(step_game, texts)

    async def close(self) -> None:
        """Remove the game from its worker."""
        _submit(self._number, close_game, self._number)  # nothing depends on the answer

    async def _ask(self, function: Callable[..., Transition], *arguments: Any) -> Transition:
        try:
            call_future = _submit(self._number, function, self._number, *arguments)
            return await asyncio.wrap_future(call_future)
        except (GameFailure, CallLimit) as error:
            reason = str(error)
        except RuntimeError as error:
            reason = f"its process has ended: {error}"
        raise EnvironmentFailure(f"TextArena's {self._game} cannot go on: {reason}")


def _submit(number: int, function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Call a function in the worker process of game `number`, with a time limit, and return the future of its
    result."""
    pool = worker_of(number % WORKERS)
    return pool.submit(_perform, function, SECONDS, *arguments, limit=SECONDS + GRACE).future


_workers: dict[tuple[int, int], Isolation] = {}
"""Worker processes by (number, id of the process that started them), because a forked process must not use
its parent's workers."""


def worker_of(number: int) -> Isolation:
    """Return worker process `number` of the current process, started at its first use."""
    worker = Isolation(workers=1, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # starts when called
    return _workers.setdefault((number, os.getpid()), worker)  # atomic, unlike `cache`


# In a worker process

_games: dict[int, WorkerGame] = {}
"""Games in this worker process, by number."""


def perform(function: Callable[..., T], seconds: float, *arguments: Any) -> T:
    """Call a function in a worker with a time limit, so that one game cannot block the others.

    Args:
        function: The function.
        seconds: Limit of processor time; the limit by the clock is `PATIENCE` times as long.
        *arguments: The function's arguments.

    Raises:
        GameFailure: The game fails, or takes longer.
    """
    signal.signal(signal.SIGPROF, _too_long)
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
    try:
        return function(*arguments)
    except (GameFailure, UnknownOption, UsageError):
        raise
    except GameTimeout:
        raise GameFailure(f"it took longer than {seconds:g} s") from None
    except (Exception, SystemExit) as error:  # a game may raise anything
        raise GameFailure(_reason(error)) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: object) -> None:
    raise GameTimeout


def describe_game(game: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return (smallest, largest) number of players of a game.

    Raises:
        UsageError: The game does not exist.
        UnknownOption: The game does not have one of the options.
    """
    registry = _library().envs.registration.ENV_REGISTRY
    if game not in registry:
        hint = did_you_mean(game, [*registry])
        raise UsageError("; ".join(filter(None, (f"TextArena has no game {game!r}", hint))))
    entry_point = registry[game].entry_point
    if isinstance(entry_point, str):
        module, _, name = entry_point.partition(":")
        entry_point = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(entry_point).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in options:
        if name not in parameters and not takes_any:
            choices = f"it takes {', '.join(parameters) or 'none'}"
            hints = (f"{game} has no option {name!r}", did_you_mean(name, parameters), choices)
            raise UnknownOption("; ".join(filter(None, hints)))
    players: list[int] = []
    problems: list[Exception] = []
    for number in PLAYERS:
        try:
            _opened(game, options, 0, number)
            players.append(number)
        except Exception as error:
            problems.append(error)
    if not players:  # a game asserts its number of players
        raise next((error for error in problems if not isinstance(error, AssertionError)), problems[0])
    return min(players), max(players)


def reset_game(number: int, game: str, options: Mapping[str, Any], seed: int, players: int) -> Transition:
    """Start a game in this worker, with the given number as its key."""
    _games[number], transition = _opened(game, options, seed, players)
    return transition


def _opened(game: str, options: Mapping[str, Any], seed: int, players: int) -> tuple[WorkerGame, Transition]:
    from numpy.random import MT19937, mtrand  # here, because the parent imports this file

    seed %= 2**32  # numpy takes no larger seed
    random.seed(seed)
    mtrand.set_bit_generator(MT19937(seed))
    env = _library().make(game, **options)
    env.reset(num_players=players, seed=seed)
    player, transition = _seen(env)
    return WorkerGame(env, player, random.getstate(), mtrand.get_bit_generator()), transition


def step_game(number: int, actions: Mapping[int, str]) -> Transition:
    """Play the move of the player whose turn it is in game `number`; a missing move is played as empty
    text."""
    from numpy.random import mtrand

    if number not in _games:
        raise GameFailure("it has not begun, or its process has ended")
    game = _games[number]
    random.setstate(game.python)
    mtrand.set_bit_generator(game.numpy)
    try:
        is_done, _ = game.env.step(actions.get(game.player, ""))
        if is_done:
            return _ended(*game.env.close())
        game.player, transition = _seen(game.env)
        return transition
    finally:
        game.python = random.getstate()


def close_game(number: int) -> None:
    """Remove game `number` from this worker."""
    _games.pop(number, None)


def _seen(env: Any) -> tuple[int, Transition]:
    """Return (player that moves next, Transition with its observation) from TextArena's environment."""
    player, observation = env.get_observation()
    if not isinstance(observation, str):  # a game without an observation wrapper returns its messages
        observation = "\n".join(str(message) for _, message, *_ in observation)
    return player, Transition({player: observation.strip("\n")})


def _ended(rewards: Mapping[int, float] | None, seats: Mapping[int, Mapping[str, Any]]) -> Transition:
    reasons = [str(seat["reason"]) for seat in seats.values() if seat.get("reason")]
    invalid = [player for player, seat in seats.items() if seat.get("invalid_move")]
    rewards_of = {player: float(reward) for player, reward in (rewards or {}).items()}
    return Transition({}, rewards_of, done=True, info={"reason": (*reasons, "")[0], "invalid": invalid})


@cache
def _library() -> Any:
    library = importlib.import_module("textarena")
    # Downloads are switched off: a run must not use the network without the person's permission.
    word_lists = importlib.import_module("textarena.envs.utils.word_lists")
    word_lists.nltk.download = _no_download
    return library


def _no_download(*_: object, **__: object) -> bool:
    return False


def _reason(error: BaseException) -> str:
    first_line = (str(error).strip().splitlines() or [""])[0][:300]
    missing_download = re.search(r"nltk\.download\('([^']+)'\)", str(error))
    if missing_download:
        return f"it reads words of nltk that are not here: python -m nltk.downloader {missing_download[1]}"
    if "OPENROUTER_API_KEY" in str(error):
        return "it calls models of OpenRouter, for which games get no key"
    if isinstance(error, SyntaxError):
        return f"it is written for a newer Python: {first_line}"
    return f"{type(error).__name__}: {first_line}"


_perform = Loaded(perform, "textarena")
