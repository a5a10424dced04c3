"""Process that plays TextArena's games: it reads requests as lines of JSON, and writes answers.

It is run as a file, and imports nothing of the engine. One process holds many games, which share the
generators of `random` and `numpy.random`; so each game has its own state of these, which is set before each
request. The process ends when its input does, and so with its parent.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any, TextIO

from numpy.random import MT19937, BitGenerator, mtrand

PLAYERS = range(1, 17)
"""Numbers of players that `describe` tries."""

Request = Mapping[str, Any]
Answer = dict[str, Any]


class GameTimeout(BaseException):
    """Error of a game that exceeds its time limit; no `except Exception` of a game catches it."""


@dataclass(slots=True)
class WorkerGame:
    """Game, the player that moves next, and the states of the random generators."""

    env: Any
    player: int
    python: tuple[Any, ...]
    """State of `random`."""
    numpy: BitGenerator


def answer(games: dict[int, WorkerGame], request: Request) -> Answer:
    """Answer a request.

    Args:
        games: The games of this process by number, which "reset" and "close" change.
        request: The request: `do` is "describe", "reset", "step" or "close", `seconds` the time limit.

    Returns:
        The answer, as JSON values; where the game fails, `error` says why in a line.
    """
    try:
        with _limit(request["seconds"]):
            match request["do"]:
                case "describe":
                    return _describe(request["game"], request["options"])
                case "reset":
                    return _reset(games, request)
                case "step":
                    return _step(games[request["number"]], request["actions"])
                case _:
                    games.pop(request["number"], None)
                    return {}
    except GameTimeout:
        return {"error": f"it took longer than {request['seconds']:g} s"}
    except (Exception, SystemExit) as error:  # a game may raise anything
        return {"error": _reason(error)}


def _describe(game: str, options: Mapping[str, Any]) -> Answer:
    """Return the numbers of players that a game takes, or an unknown name and the known ones."""
    registry = _library().envs.registration.ENV_REGISTRY
    if game not in registry:
        return {"unknown": game, "known": list(registry)}
    taken = _options(registry[game].entry_point)
    for name in options:
        if taken is not None and name not in taken:
            return {"unknown": name, "takes": taken}
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
    return {"players": players}


def _options(entry_point: Any) -> Sequence[str] | None:
    """Return the names of a game's options; None where it takes any option."""
    if isinstance(entry_point, str):
        module, _, name = entry_point.partition(":")
        entry_point = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(entry_point).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return list(parameters)


def _reset(games: dict[int, WorkerGame], request: Request) -> Answer:
    env, shown = _opened(request["game"], request["options"], request["seed"], request["players"])
    games[request["number"]] = WorkerGame(env, shown["player"], random.getstate(), mtrand.get_bit_generator())
    return shown


def _opened(game: str, options: Mapping[str, Any], seed: int, players: int) -> tuple[Any, Answer]:
    seed %= 2**32  # numpy takes no larger seed
    random.seed(seed)
    mtrand.set_bit_generator(MT19937(seed))
    env = _library().make(game, **options)
    env.reset(num_players=players, seed=seed)
    return env, _shown(env)


def _step(game: WorkerGame, actions: Mapping[str, str]) -> Answer:
    with _own_randomness(game):
        done, _ = game.env.step(actions.get(str(game.player), ""))
        if done:
            return _ended(*game.env.close())
        shown = _shown(game.env)
        game.player = shown["player"]
        return shown


def _shown(env: Any) -> Answer:
    player, seen = env.get_observation()
    if not isinstance(seen, str):  # a game without an observation wrapper returns its messages
        seen = "\n".join(str(message) for _, message, *_ in seen)
    return {"player": player, "observation": seen.strip("\n")}


def _ended(rewards: Mapping[int, float] | None, seats: Mapping[int, Mapping[str, Any]]) -> Answer:
    reasons = [str(seat["reason"]) for seat in seats.values() if seat.get("reason")]
    return {
        "rewards": {player: float(reward) for player, reward in (rewards or {}).items()},
        "reason": reasons[0] if reasons else "",
        "invalid": [player for player, seat in seats.items() if seat.get("invalid_move")],
    }


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
    line = (str(error).strip().splitlines() or [""])[0][:300]
    missing = re.search(r"nltk\.download\('([^']+)'\)", str(error))
    if missing:
        return f"it reads words of nltk that are not here: python -m nltk.downloader {missing[1]}"
    if "OPENROUTER_API_KEY" in str(error):
        return "it asks models of OpenRouter by itself, and no game is given a key"
    if isinstance(error, SyntaxError):
        return f"it is written for a newer Python: {line}"
    return f"{type(error).__name__}: {line}"


@contextmanager
def _own_randomness(game: WorkerGame) -> Generator[None, None, None]:
    random.setstate(game.python)
    mtrand.set_bit_generator(game.numpy)
    try:
        yield
    finally:
        game.python = random.getstate()


@contextmanager
def _limit(seconds: float) -> Generator[None, None, None]:
    """Raise GameTimeout in the block after some seconds, so that one game cannot stop the others."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: object) -> None:
    raise GameTimeout


def _own_output() -> TextIO:
    """Return a file for answers, and send the output of games to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _read(requests: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # the parent is gone, even where a game is still running


def main() -> None:
    """Answer one request after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGALRM, _too_long)
    answers, requests = _own_output(), SimpleQueue[str]()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    games: dict[int, WorkerGame] = {}
    while True:
        answers.write(json.dumps(answer(games, json.loads(requests.get()))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
