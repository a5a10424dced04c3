"""Worker processes of TextArena's games: many games in one, and the death of a worker."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from rolegraph.engine.vocabulary import EnvironmentFailure, LiveEnvironment, Transition, UsageError, isolation
from rolegraph.engine.vocabulary.isolation import Isolation
from rolegraph.integrations.textarena import arena
from tests.integrations.textarena.arena import GAMES, opened, played, scripted

if importlib.util.find_spec("textarena") is None:
    pytest.skip("needs the extra `textarena`", allow_module_level=True)


Workers = Callable[[int], Isolation]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Provide a single worker that no other test uses."""
    monkeypatch.setattr(arena, "_workers", {})
    monkeypatch.setattr(arena, "WORKERS", 1)
    yield arena.worker_of
    for worker in arena._workers.values():
        worker.close()


def process_of(live: LiveEnvironment) -> subprocess.Popen[bytes]:
    """Return the idle process that holds a game."""
    assert isinstance(live, arena.ArenaGame)
    (worker,) = arena.worker_of(live._number % arena.WORKERS)._idle
    return worker._process


def games_left() -> int:
    return len(arena._games)


# many at once


@pytest.mark.parametrize("game", ["KuhnPoker-v0", "FrozenLake-v0-random", "Sudoku-v0", "Briscola-v0"])
def test_the_same_seed_is_the_same_start_for_games_that_begin_while_others_are_played(game: str) -> None:
    made, noise = opened(game), opened("Blackjack-v0")

    def start(seed: int) -> Coroutine[Any, Any, Transition]:
        return made.open().reset(seed, made.min_players)

    def other(seed: int) -> Coroutine[Any, Any, list[Transition]]:
        return played(noise.open(), GAMES["Blackjack-v0"], seed=seed, players=1)

    async def at_once() -> list[Any]:
        return await asyncio.gather(other(1), start(7), other(2), start(7), start(7), other(3), start(7))

    alone = asyncio.run(start(7))
    seen = asyncio.run(at_once())
    assert [seen[place] for place in (1, 3, 4, 6)] == [alone] * 4
    assert asyncio.run(start(8)) != alone


def test_a_game_goes_as_it_would_go_alone_whatever_is_played_beside_it() -> None:
    games = ("Blackjack-v0", "PigDice-v0", "KuhnPoker-v0", "FrozenLake-v0-random")

    def game(name: str, seed: int) -> Any:
        made = opened(name)
        return played(made.open(), GAMES[name], seed=seed, players=made.min_players)

    async def together() -> list[list[Transition]]:
        return await asyncio.gather(*(game(name, seed) for name in games for seed in (1, 2, 1)))

    alone = [asyncio.run(game(name, seed)) for name in games for seed in (1, 2, 1)]
    assert asyncio.run(together()) == alone
    assert alone[0] == alone[2] != alone[1]


def test_hundreds_of_games_are_in_a_few_processes(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "WORKERS", 2)
    made = opened("TicTacToe-v0")

    async def many() -> None:
        games = [made.open() for _ in range(300)]
        await asyncio.gather(*(live.reset(seed, 2) for seed, live in enumerate(games)))
        assert Counter(process_of(live).pid for live in games).most_common()[1][1] == 150
        for live in games:
            await live.close()
        for number in range(2):
            assert await workers(number).run(games_left, limit=60) == 0

    asyncio.run(many())


def test_event_loops_of_several_threads_share_the_workers(workers: Workers) -> None:
    ends: list[Transition] = []
    moves = ("0", "1", "3", "4", "6")

    def play() -> None:
        live = opened("TicTacToe-v0").open()
        ends.append(asyncio.run(scripted(live, *moves)))

    threads = [threading.Thread(target=play) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [end.rewards for end in ends] == [{0: 1.0, 1: -1.0}] * 3
    assert asyncio.run(workers(0).run(games_left, limit=60)) == 3


def test_textarena_is_imported_where_it_is_played_only() -> None:
    code = """
import asyncio, sys
from tests.roles.vocabulary import environment
asyncio.run(environment({"textarena": "Nim-v0"}).open().reset(0, 2))
print("textarena" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


# what goes wrong


def test_a_worker_that_is_killed_fails_its_games_and_the_next_ones_have_another(
    workers: Workers,
) -> None:
    made = opened("TicTacToe-v0")

    async def killed() -> None:
        lost = [made.open(), made.open()]
        for live in lost:
            await live.reset(0, 2)
        killed = process_of(lost[0])
        killed.kill()
        for live in lost:
            with pytest.raises(EnvironmentFailure, match="has ended"):
                await live.step({0: "0"})
        following = made.open()
        assert (await following.reset(0, 2)).observations
        assert process_of(following) != killed
        for live in (*lost, following):
            await live.close()

    asyncio.run(killed())


def test_a_worker_that_is_killed_while_it_does_nothing_fails_no_game(workers: Workers) -> None:
    async def twice() -> None:
        live = opened("TicTacToe-v0").open()
        await live.reset(0, 2)
        process = process_of(live)
        process.kill()
        process.wait()
        assert (await live.reset(0, 2)).observations

    asyncio.run(twice())


def test_an_endless_loop_of_one_game_ends_and_the_others_go_on(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With these moves MarketEntryGame eliminates everybody, and then looks for who is next.
    moves = "[5] [S] [3] [5] [5] [E] [E] [5] [5] [5] [3] [E]".split()

    async def both() -> Transition:
        other = opened("TicTacToe-v0").open()
        await other.reset(0, 2)
        endless = opened("MarketEntryGame-v0", communication_turns=0).open()
        seen = await endless.reset(1, 2)
        for move in moves[:-1]:
            seen = await endless.step({next(iter(seen.observations)): move})
        with monkeypatch.context() as short:
            short.setattr(arena, "SECONDS", 0.5)
            with pytest.raises(EnvironmentFailure, match="took longer than"):
                await endless.step({next(iter(seen.observations)): moves[-1]})
        assert process_of(other) == process_of(endless)
        return await other.step({0: "4"})

    assert "cell 4" in asyncio.run(both()).observations[1]


def test_a_worker_that_does_not_end_its_game_is_ended(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped() -> None:
        live = opened("TicTacToe-v0").open()
        await live.reset(0, 2)
        process_of(live).send_signal(signal.SIGSTOP)
        monkeypatch.setattr(arena, "SECONDS", 0.1)
        monkeypatch.setattr(arena, "GRACE", 0.1)
        monkeypatch.setattr(isolation, "START_SECONDS", 0.2)
        with pytest.raises(EnvironmentFailure, match=r"took longer than 0\.2 s"):
            await live.step({0: "0"})

    asyncio.run(stopped())


def test_a_worker_ends_with_its_parent_however_that_ends() -> None:
    code = """
import os, signal
from rolegraph.engine.vocabulary import isolation
from rolegraph.engine.vocabulary.isolation import Isolation
from rolegraph.integrations.textarena import arena
arena.players("Nim-v0", {})
print(arena.worker_of(0)._idle[0]._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    gone = threading.Event()
    for _ in range(600):  # it reads the end of its input, and goes
        try:
            os.kill(int(done.stdout), 0)
        except ProcessLookupError:
            return
        gone.wait(0.1)
    pytest.fail("the worker is still there")


def test_no_game_is_given_a_key(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "secret")
    with pytest.raises(UsageError, match="games get no key"):
        opened("Debate-v0")
