"""TextArena's games, seen from the process that asks for them: workers, and a game in one of them.

Importing TextArena takes 57 MB, a game of it some 40 kB: so a worker holds many games, and there are few
workers. What happens in one is in `arena_worker.py`. Event loops of several threads may share the workers,
which end with this process.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from rolegraph.engine.limits.tools import GAME_SECONDS, GAME_STOP_SECONDS
from rolegraph.engine.vocabulary import EnvironmentFailure, Transition, UsageError
from rolegraph.roles.processes import without_keys

WORKERS = max(1, min(4, (os.cpu_count() or 2) // 2))
"""The most processes."""
GAMES = 64
"""What each of them holds before there is another one."""

SECONDS, GRACE = GAME_SECONDS.most, GAME_STOP_SECONDS.most

Answer = Mapping[str, Any]

_FILE = Path(__file__).with_name("arena_worker.py")
_numbers = count()


def players(game: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most players of a game.

    Raises UsageError for a game that there is not, or that cannot be played here, and ValueError for options
    that it does not take.
    """
    try:
        return _players(game, json.dumps(options))
    except TypeError as error:  # no text of it, and so none in JSON
        raise ValueError(f"options are texts, numbers, lists and mappings: {error}") from None


@cache
def _players(game: str, options: str) -> tuple[int, int]:
    worker = _workers().lend()
    try:
        said = worker.ask({"do": "describe", "game": game, "options": json.loads(options)}).result()
    finally:
        _workers().take_back(worker)
    match said:
        case {"known": known}:
            raise UsageError(f"TextArena has no game {game!r}{_nearest(game, known)}")
        case {"unknown": name, "takes": taken}:
            raise ValueError(
                f"{game} has no option {name!r}{_nearest(name, taken)}; it takes {', '.join(taken) or 'none'}"
            )
        case {"error": error}:
            raise UsageError(f"TextArena's {game} cannot be played: {error}")
        case _:
            return min(said["players"]), max(said["players"])


def _nearest(name: str, known: Sequence[str]) -> str:
    """The names that a misspelt one may mean, as a hint."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


class ArenaGame:
    """A game of TextArena in one episode. One player moves at a time."""

    def __init__(self, game: str, options: Mapping[str, Any]) -> None:
        self._game, self._options = game, options
        self._number = next(_numbers)
        self._worker: _Worker | None = None

    async def reset(self, seed: int, players: int) -> Transition:
        """Begin a game in the worker that has the fewest."""
        await self.close()
        self._worker = _workers().lend()
        named = {"game": self._game, "options": self._options}
        return await self._ask({"do": "reset", **named, "seed": seed, "players": players})

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        """One player's move, as TextArena judges it; a move that there is not is an empty one."""
        said = {str(player): _text(action) for player, action in actions.items()}
        return await self._ask({"do": "step", "actions": said})

    async def close(self) -> None:
        """Let the worker forget the game."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.ask({"do": "close", "number": self._number})  # nobody waits for what comes of it
            _workers().take_back(worker)

    async def _ask(self, request: Mapping[str, Any]) -> Transition:
        if self._worker is None:
            raise RuntimeError("a game that is not reset cannot be played")
        said = await asyncio.wrap_future(self._worker.ask({**request, "number": self._number}))
        if "error" in said:
            raise EnvironmentFailure(f"TextArena's {self._game} cannot go on: {said['error']}")
        return _transition(said)


def _text(action: Any) -> str:
    if action is None:
        return ""
    return action if isinstance(action, str) else json.dumps(action, default=str)


def _transition(said: Answer) -> Transition:
    if "observation" in said:
        return Transition({said["player"]: said["observation"]})
    rewards = {int(player): reward for player, reward in said["rewards"].items()}
    info = {"reason": said["reason"], "invalid": said["invalid"]}
    return Transition({}, rewards, done=True, info=info)


class _Worker:
    """A process that plays games, and the thread in which what it is asked waits its turn."""

    def __init__(self) -> None:
        self.games = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_FILE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**without_keys(), "PYTHONHASHSEED": "0"},  # sets have one order in all of them
        )
        self._turns = ThreadPoolExecutor(1, "textarena")

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any]) -> Future[Answer]:
        """Its answer, after those to all that was asked before; EnvironmentFailure where it has died."""
        return self._turns.submit(self._answer, json.dumps({**request, "seconds": SECONDS}))

    def _answer(self, request: str) -> Answer:
        line = self._said(request)
        if not line.endswith("\n"):
            code = self._end()
            raise EnvironmentFailure(
                f"the process that played TextArena's games has ended (exit code {code})"
            )
        return json.loads(line)

    def _said(self, request: str) -> str:
        """The line that comes back; less than one where the process has died, or hangs beyond all limits."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has gone, or was ended
            return ""
        answered = wait([self._process.stdout.fileno()], SECONDS + GRACE)
        return self._process.stdout.readline() if answered else ""

    def _end(self) -> int:
        self._process.kill()
        with suppress(OSError):  # of what it never read
            assert self._process.stdin
            self._process.stdin.close()
        return self._process.wait()


class _Workers:
    """The workers of a process. One that has died takes no more games."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def lend(self) -> _Worker:
        """A worker for one more game: that with the fewest, or a new one where all have many."""
        with self._lock:
            self._workers = [worker for worker in self._workers if worker.alive]
            fewest = min(self._workers, key=lambda worker: worker.games, default=None)
            if fewest is None or (fewest.games >= GAMES and len(self._workers) < WORKERS):
                fewest = _Worker()
                self._workers.append(fewest)
            fewest.games += 1
            return fewest

    def take_back(self, worker: _Worker) -> None:
        """A game of it is over."""
        with self._lock:
            worker.games -= 1


def _workers() -> _Workers:
    """Those of this process: what a fork inherits is not its own."""
    return _workers_of(os.getpid())


@cache
def _workers_of(process: int) -> _Workers:
    return _Workers()
