"""TextArena's games, played in worker processes.

Importing TextArena takes 57 MB, a game of it some 40 kB: so a worker holds many games, and there are few
workers, which run `arena_worker.py`. Event loops of several threads may share them. They end with this
process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import count
from multiprocessing.connection import wait
from typing import Any

from rolegraph.engine.limits.tools import GAME_SECONDS, GAME_STOP_SECONDS
from rolegraph.engine.vocabulary import EnvironmentFailure, Transition, UsageError, did_you_mean
from rolegraph.roles.equality import as_text
from rolegraph.roles.processes import start_worker

WORKERS = max(1, min(4, (os.cpu_count() or 2) // 2))
"""Largest number of worker processes."""
GAMES = 64
"""Number of games in a worker from which on another one is started."""

SECONDS, GRACE = GAME_SECONDS.most, GAME_STOP_SECONDS.most

Answer = Mapping[str, Any]

_numbers = count()


def players(game: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return the smallest and the largest number of players of a game.

    Args:
        game: TextArena's id of the game.
        options: The game's own options.

    Raises:
        UsageError: The game does not exist, or cannot be played here.
        ValueError: The game does not take these options.
    """
    try:
        return _players(game, json.dumps(options))
    except TypeError as error:
        raise ValueError(f"options are texts, numbers, lists and mappings: {error}") from None


@cache
def _players(game: str, options: str) -> tuple[int, int]:
    worker = _workers().lend()
    try:
        answer = worker.ask({"do": "describe", "game": game, "options": json.loads(options)}).result()
    finally:
        _workers().take_back(worker)
    match answer:
        case {"known": known}:
            hint = did_you_mean(game, known)
            raise UsageError("; ".join(filter(None, (f"TextArena has no game {game!r}", hint))))
        case {"unknown": name, "takes": taken}:
            hint = did_you_mean(name, taken)
            takes = f"it takes {', '.join(taken) or 'none'}"
            raise ValueError("; ".join(filter(None, (f"{game} has no option {name!r}", hint, takes))))
        case {"error": error}:
            raise UsageError(f"TextArena's {game} cannot be played: {error}")
        case _:
            return min(answer["players"]), max(answer["players"])


class ArenaGame:
    """Game of TextArena in one episode; one player moves at a time."""

    def __init__(self, game: str, options: Mapping[str, Any]) -> None:
        self._game, self._options = game, options
        self._number = next(_numbers)
        self._worker: _GameProcess | None = None

    async def reset(self, seed: int, players: int) -> Transition:
        """Start a game in the worker with the fewest games."""
        await self.close()
        self._worker = _workers().lend()
        named = {"game": self._game, "options": self._options}
        return await self._ask({"do": "reset", **named, "seed": seed, "players": players})

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        """Pass one player's move to TextArena; a missing move is empty text."""
        texts = {player: "" if action is None else as_text(action) for player, action in actions.items()}
        return await self._ask({"do": "step", "actions": texts})

    async def close(self) -> None:
        """Remove the game from its worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.ask({"do": "close", "number": self._number})  # nothing depends on the answer
            _workers().take_back(worker)

    async def _ask(self, request: Mapping[str, Any]) -> Transition:
        if self._worker is None:
            raise RuntimeError("a game that is not reset cannot be played")
        answer = await asyncio.wrap_future(self._worker.ask({**request, "number": self._number}))
        if "error" in answer:
            raise EnvironmentFailure(f"TextArena's {self._game} cannot go on: {answer['error']}")
        if "observation" in answer:
            return Transition({answer["player"]: answer["observation"]})
        rewards = {int(player): reward for player, reward in answer["rewards"].items()}
        info = {"reason": answer["reason"], "invalid": answer["invalid"]}
        return Transition({}, rewards, done=True, info=info)


class _GameProcess:
    """Process that plays games, with a thread that sends it one request after the other."""

    def __init__(self) -> None:
        self.games = 0
        # With one hash seed, sets have the same order in all workers.
        self._process = start_worker("arena_worker.py", env={"PYTHONHASHSEED": "0"}, stdin=subprocess.PIPE)
        self._thread = ThreadPoolExecutor(1, "textarena")

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any]) -> Future[Answer]:
        """Queue a request; its future raises EnvironmentFailure where the process dies."""
        return self._thread.submit(self._answer, json.dumps({**request, "seconds": SECONDS}))

    def _answer(self, request: str) -> Answer:
        assert self._process.stdin and self._process.stdout
        line = ""
        with suppress(OSError, ValueError):  # the process has died, or was ended
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            if wait([self._process.stdout.fileno()], SECONDS + GRACE):
                line = self._process.stdout.readline()
        if not line.endswith("\n"):
            code = self._end()
            raise EnvironmentFailure(
                f"the process that played TextArena's games has ended (exit code {code})"
            )
        return json.loads(line)

    def _end(self) -> int:
        self._process.kill()
        # OSError: of requests that the process never read. ValueError: another thread is closing it.
        with suppress(OSError, ValueError):
            assert self._process.stdin
            self._process.stdin.close()
        return self._process.wait()


class _GameProcesses:
    """Workers of this process. A dead worker gets no more games."""

    def __init__(self) -> None:
        self._workers: list[_GameProcess] = []
        self._lock = threading.Lock()

    def lend(self) -> _GameProcess:
        """Return the worker with the fewest games, or a new one where all have many, for one more game."""
        with self._lock:
            self._workers = [worker for worker in self._workers if worker.alive]
            fewest = min(self._workers, key=lambda worker: worker.games, default=None)
            if fewest is None or (fewest.games >= GAMES and len(self._workers) < WORKERS):
                fewest = _GameProcess()
                self._workers.append(fewest)
            fewest.games += 1
            return fewest

    def take_back(self, worker: _GameProcess) -> None:
        """Count a game of a worker as over."""
        with self._lock:
            worker.games -= 1


def _workers() -> _GameProcesses:
    return _workers_of(os.getpid())


@cache
def _workers_of(process: int) -> _GameProcesses:
    """Return the workers of a process; a fork must not use those of its parent."""
    return _GameProcesses()
