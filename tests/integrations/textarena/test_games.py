"""TextArena's games from start to end, and the errors before one starts."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import pickle
from typing import Any

import pytest

from rolegraph.engine.vocabulary import BadOptions, EnvironmentFailure, Transition, UsageError
from tests.integrations.textarena.arena import GAMES, opened, played, scripted

if importlib.util.find_spec("textarena") is None:
    pytest.skip("needs the extra `textarena`", allow_module_level=True)


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_played_from_its_start_to_its_rewards(game: str) -> None:
    made = opened(game)
    *before, end = asyncio.run(played(made.open(), GAMES[game], seed=3, players=made.min_players))
    assert end.done
    assert end.observations == {}
    assert set(end.rewards) == set(range(made.min_players))
    assert all(math.isfinite(reward) for reward in end.rewards.values())
    assert all(isinstance(text, str) and text for seen in before for text in seen.observations.values())
    assert {player for seen in before for player in seen.observations} == set(range(made.min_players))
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
    assert (made.min_players, made.max_players) == (least, most)


def test_what_nothing_is_wrapped_around_is_text_too() -> None:
    seen = asyncio.run(scripted(opened("TicTacToe-v0-raw").open()))
    assert seen.observations[0].startswith("You are Player 0 in Tic Tac Toe.")


# what is refused


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


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "textarena" else find(name))
    with pytest.raises(UsageError, match=r"pip install 'rolegraph\[textarena\]'"):
        opened("TicTacToe-v0")


def test_an_environment_is_sent_as_the_call_that_made_it() -> None:
    made = pickle.loads(pickle.dumps(opened("TowerOfHanoi-v0", num_disks=1)))
    end = asyncio.run(scripted(made.open(), "A C", players=1))
    assert end.rewards == {0: 1.0}
