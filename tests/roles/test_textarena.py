"""TextArena's games: played through, many in one process, and what happens when that process dies."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import pytest

from engine.vocabulary import (
    BadOptions,
    Environment,
    EnvironmentFailure,
    LiveEnvironment,
    Transition,
    UsageError,
)
from roles import arena
from tests.roles.vocabulary import environment

pytest.importorskip("textarena", reason="needs the extra `textarena`")

Choose = Callable[[str, random.Random], Any]
"""A move, from what its player sees."""


def listed(pattern: str) -> Choose:
    """One of the moves that the end of an observation lists."""

    def choose(seen: str, rng: random.Random) -> str:
        return rng.choice(re.findall(pattern, seen[seen.rindex("vailable") :]))

    return choose


def one_of(*moves: str) -> Choose:
    return lambda seen, rng: rng.choice(moves)


def pile(seen: str, rng: random.Random) -> str:
    """A legal move of Nim."""
    piles = {at: int(count) for at, count in re.findall(r"pile (\d): (\d+)", seen)}
    at = rng.choice([at for at, count in piles.items() if count])
    return f"{at} {rng.randint(1, piles[at])}"


def column(seen: str, rng: random.Random) -> str:
    """A legal move of Connect Four: a column whose topmost cell is free."""
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
    """A game from its start to its end, or for 400 moves."""
    rng = random.Random(seed)
    seen = [await live.reset(seed, players)]
    while not seen[-1].done and len(seen) < 400:
        ((player, text),) = seen[-1].observations.items()
        seen.append(await live.step({player: choose(text, rng)}))
    await live.close()
    return seen


async def scripted(live: LiveEnvironment, *moves: Any, players: int = 2, seed: int = 0) -> Transition:
    """What is seen after these moves, whoever makes them."""
    seen = await live.reset(seed, players)
    for move in moves:
        seen = await live.step({next(iter(seen.observations)): move})
    return seen


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[arena._Workers]:
    """Workers of the test's own."""
    pool = arena._Workers()
    monkeypatch.setattr(arena, "_workers", lambda: pool)
    yield pool
    for worker in pool._workers:
        worker._end()


def process_of(live: LiveEnvironment) -> int:
    assert isinstance(live, arena.Game)
    assert live._worker
    return live._worker._process.pid


# games


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_played_from_its_start_to_its_rewards(game: str) -> None:
    made = opened(game)
    *before, end = asyncio.run(played(made.open(), GAMES[game], seed=3, players=made.least))
    assert end.done
    assert end.observations == {}
    assert set(end.rewards) == set(range(made.least))
    assert all(math.isfinite(reward) for reward in end.rewards.values())
    assert all(isinstance(text, str) and text for seen in before for text in seen.observations.values())
    assert {player for seen in before for player in seen.observations} == set(range(made.least))
    assert not any(seen.rewards for seen in before)


def test_the_winner_earns_1_and_the_loser_loses_1() -> None:
    end = asyncio.run(scripted(opened("TicTacToe-v0").open(), "0", "1", "3", "[4]", "6"))
    assert (end.done, end.rewards) == (True, {0: 1.0, 1: -1.0})
    assert end.info == {"reason": "Player 0 has won!", "invalid": []}


def test_a_puzzle_that_is_solved_earns_1() -> None:
    moves = ("A C", "A B", "C B", "A C", "B A", "B C", "A C")
    end = asyncio.run(scripted(opened("TowerOfHanoi-v0").open(), *moves, players=1))
    assert (end.done, end.rewards) == (True, {0: 1.0})


def test_a_game_s_own_options_reach_it() -> None:
    end = asyncio.run(scripted(opened("TowerOfHanoi-v0", num_disks=1).open(), "A C", players=1))
    assert end.rewards == {0: 1.0}


@pytest.mark.parametrize("move", [None, "no idea", 99, ["4"], "", "[" * 1000])
def test_an_invalid_move_is_judged_by_the_game_which_asks_again_and_then_ends(move: object) -> None:
    live = opened("TicTacToe-v0").open()
    again = asyncio.run(scripted(live, move))
    assert "invalid move" in again.observations[0]
    end = asyncio.run(scripted(live, move, move))
    assert (end.done, end.rewards, end.info["invalid"]) == (True, {0: -1.0, 1: 1.0}, [0])


def test_a_player_that_gave_no_action_made_an_empty_move() -> None:
    async def silent() -> Transition:
        live = opened("TicTacToe-v0").open()
        await live.reset(0, 2)
        return await live.step({})

    assert "invalid move" in asyncio.run(silent()).observations[0]


@pytest.mark.parametrize(
    ("game", "least", "most"),
    [
        ("TowerOfHanoi-v0", 1, 1),
        ("TicTacToe-v0", 2, 2),
        ("ThreePlayerTicTacToe-v0", 3, 3),
        ("LiarsDice-v0", 2, 15),
    ],
)
def test_a_game_says_how_many_players_it_takes(game: str, least: int, most: int) -> None:
    made = opened(game)
    assert (made.least, made.most) == (least, most)


def test_what_nothing_is_wrapped_around_is_text_too() -> None:
    seen = asyncio.run(scripted(opened("TicTacToe-v0-raw").open()))
    assert seen.observations[0].startswith("You are Player 0 in Tic Tac Toe.")


# many at once


@pytest.mark.parametrize("game", ["KuhnPoker-v0", "FrozenLake-v0-random", "Sudoku-v0", "Briscola-v0"])
def test_the_same_seed_is_the_same_start_for_games_that_begin_while_others_are_played(game: str) -> None:
    made, noise = opened(game), opened("Blackjack-v0")

    def start(seed: int) -> Coroutine[Any, Any, Transition]:
        return made.open().reset(seed, made.least)

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
        return played(made.open(), GAMES[name], seed=seed, players=made.least)

    async def together() -> list[list[Transition]]:
        return await asyncio.gather(*(game(name, seed) for name in games for seed in (1, 2, 1)))

    alone = [asyncio.run(game(name, seed)) for name in games for seed in (1, 2, 1)]
    assert asyncio.run(together()) == alone
    assert alone[0] == alone[2] != alone[1]


def test_hundreds_of_games_are_in_a_few_processes(workers: arena._Workers) -> None:
    made = opened("TicTacToe-v0")

    async def many() -> None:
        games = [made.open() for _ in range(300)]
        await asyncio.gather(*(live.reset(seed, 2) for seed, live in enumerate(games)))
        assert len({process_of(live) for live in games}) <= arena.WORKERS
        for live in games:
            await live.close()

    asyncio.run(many())
    assert [worker.games for worker in workers._workers] == [0] * len(workers._workers)


def test_a_worker_that_has_its_fill_is_joined_by_another(
    workers: arena._Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "GAMES", 2)
    monkeypatch.setattr(arena, "WORKERS", 2)
    made = opened("TicTacToe-v0")

    async def five() -> None:
        for seed in range(5):
            await made.open().reset(seed, 2)

    asyncio.run(five())
    assert sorted(worker.games for worker in workers._workers) == [2, 3]


def test_event_loops_of_several_threads_share_the_workers(workers: arena._Workers) -> None:
    ends: list[Transition] = []
    moves = ("0", "1", "3", "4", "6")

    def play() -> None:
        ends.append(asyncio.run(scripted(opened("TicTacToe-v0").open(), *moves)))

    threads = [threading.Thread(target=play) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [end.rewards for end in ends] == [{0: 1.0, 1: -1.0}] * 3
    assert len(workers._workers) == 1


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
    workers: arena._Workers,
) -> None:
    made = opened("TicTacToe-v0")

    async def killed() -> None:
        lost = [made.open(), made.open()]
        for live in lost:
            await live.reset(0, 2)
        os.kill(process_of(lost[0]), signal.SIGKILL)
        for live in lost:
            with pytest.raises(EnvironmentFailure, match=r"has ended \(exit code -9\)"):
                await live.step({0: "0"})
        following = made.open()
        assert (await following.reset(0, 2)).observations
        assert process_of(following) != process_of(lost[0])
        for live in (*lost, following):
            await live.close()

    asyncio.run(killed())


def test_a_worker_that_is_killed_while_it_does_nothing_fails_no_game(workers: arena._Workers) -> None:
    async def twice() -> None:
        live = opened("TicTacToe-v0").open()
        await live.reset(0, 2)
        worker = live._worker  # pyright: ignore
        os.kill(process_of(live), signal.SIGKILL)
        worker._process.wait()
        assert (await live.reset(0, 2)).observations

    asyncio.run(twice())


def test_an_endless_loop_of_one_game_ends_and_the_others_go_on(
    workers: arena._Workers, monkeypatch: pytest.MonkeyPatch
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
    workers: arena._Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped() -> None:
        live = opened("TicTacToe-v0").open()
        await live.reset(0, 2)
        os.kill(process_of(live), signal.SIGSTOP)
        monkeypatch.setattr(arena, "SECONDS", 0.1)
        monkeypatch.setattr(arena, "GRACE", 0.1)
        with pytest.raises(EnvironmentFailure, match="has ended"):
            await live.step({0: "0"})

    asyncio.run(stopped())


def test_a_worker_ends_with_its_parent_however_that_ends() -> None:
    code = """
import os, signal
from roles import arena
arena.players("Nim-v0", {})
print(arena._workers()._workers[0]._process.pid, flush=True)
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


def test_a_number_of_players_that_the_game_does_not_take_is_its_error() -> None:
    with pytest.raises(EnvironmentFailure, match=r"TextArena's TicTacToe-v0 .* has to be 2"):
        asyncio.run(opened("TicTacToe-v0").open().reset(0, 3))


def test_an_unknown_game_brings_the_nearest_ones() -> None:
    with pytest.raises(UsageError, match=r"TextArena has no game 'TicTacTo'; did you mean 'TicTacToe-v0'"):
        opened("TicTacTo")


def test_an_unknown_option_brings_the_nearest_one() -> None:
    with pytest.raises(
        BadOptions, match="TowerOfHanoi-v0 has no option 'num_disk'; did you mean 'num_disks'"
    ):
        opened("TowerOfHanoi-v0", num_disk=4)


def test_an_option_that_is_no_json_value_is_refused() -> None:
    with pytest.raises(BadOptions, match="options are texts, numbers, lists and mappings"):
        opened("TowerOfHanoi-v0", num_disks={1, 2})


def test_a_game_that_wants_a_download_says_so_in_a_line() -> None:
    nltk: Any = pytest.importorskip("nltk")
    try:
        nltk.data.find("corpora/words")
    except LookupError:
        said = r"^TextArena's Hangman-v0 cannot be played: .*python -m nltk.downloader words$"
        with pytest.raises(UsageError, match=said):
            opened("Hangman-v0")
    else:
        pytest.skip("nltk's words are here")


def test_no_game_is_given_a_key(workers: arena._Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "secret")
    with pytest.raises(UsageError, match="no game is given a key"):
        opened("Debate-v0")


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "textarena" else find(name))
    with pytest.raises(UsageError, match=r"pip install 'rolegraph\[textarena\]'"):
        opened("TicTacToe-v0")


def test_an_environment_is_sent_as_the_call_that_made_it() -> None:
    made = pickle.loads(pickle.dumps(opened("TowerOfHanoi-v0", num_disks=1)))
    end = asyncio.run(scripted(made.open(), "A C", players=1))
    assert end.rewards == {0: 1.0}
