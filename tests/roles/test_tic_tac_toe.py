"""Tic-tac-toe: who wins, what an illegal move means, and that it is over in nine moves."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.vocabulary import Transition
from rolegraph.roles.tic_tac_toe import EMPTY, Illegal, begin, free, move, read, to_move, winner
from tests.roles.vocabulary import environment


def played(*cells: object, illegal: Illegal = "loses") -> tuple[str, Transition]:
    """Play moves from an empty board; return the position and the last transition."""
    position, seen = begin(seed=0, opening=0)
    for cell in cells:
        position, seen = move(illegal, position, {to_move(position): cell})
    return position, seen


@given(st.integers(0, 2**40), st.integers(0, 4), st.randoms(use_true_random=False))
def test_random_play_is_over_in_nine_moves_and_zero_sum(seed: int, opening: int, rng: object) -> None:
    choose = getattr(rng, "choice")  # noqa: B009  # hypothesis gives a Random that it can shrink
    position, seen = begin(seed, opening)
    made = opening
    while not seen.done:
        (player,) = seen.observations
        assert player == to_move(position) == made % 2
        position, seen = move("loses", position, {player: choose(free(position))})
        made += 1
    assert made <= 9
    assert sum(seen.rewards.values()) == 0
    assert set(seen.rewards) == {0, 1}
    won = winner(position)
    assert seen.rewards == {0: 0, 1: 0} if won is None else seen.rewards[won] == 1


def test_three_in_a_row_win() -> None:
    position, seen = played(1, 4, 2, 5, 3)
    assert position == "XXXOO...."
    assert seen == Transition({}, {0: 1, 1: -1}, done=True, info={"reason": "X has three in a row"})


def test_a_full_board_is_a_draw() -> None:
    _, seen = played(1, 2, 3, 5, 4, 6, 8, 7, 9)
    assert (seen.rewards, seen.done, seen.info) == ({0: 0, 1: 0}, True, {"reason": "draw"})


def test_who_moves_sees_the_board_and_the_free_cells() -> None:
    assert played(5, 1)[1].observations == {
        0: "O 2 3\n4 X 6\n7 8 9\nYou are X. Free cells: 2, 3, 4, 6, 7, 8, 9.\n"
        "Answer with the number of the cell that you take."
    }


@pytest.mark.parametrize("cell", [5, "5", None, "pass", "1 or 2", "0", 10, ""])
def test_an_illegal_move_loses(cell: object) -> None:
    _, seen = played(5, cell)
    assert (seen.rewards, seen.done) == ({0: 1, 1: -1}, True)
    assert seen.info == {"reason": "O made an illegal move"}


def test_where_a_spec_says_so_the_player_is_asked_again_and_told_why() -> None:
    position, seen = played(5, 5, illegal="repeats")
    assert seen.observations[1].splitlines()[0] == "Cell 5 is taken."
    assert seen.rewards == {}
    position, seen = move("repeats", position, {1: None})
    assert seen.observations[1].splitlines()[0] == "No cell could be read."
    position, seen = move("repeats", position, {1: "cell 1"})
    assert position == "O...X...."


@pytest.mark.parametrize(
    ("action", "cell"),
    [(4, 4), ("4", 4), ("cell 4.", 4), ("[4]", 4), ("44", None), (4.5, None), (True, None)],
)
def test_a_move_is_the_only_digit_of_an_action(action: object, cell: int | None) -> None:
    assert read(action) == cell


@given(st.integers(0, 2**40), st.integers(0, 4))
def test_an_opening_is_the_seed_s_and_leaves_the_game_open(seed: int, opening: int) -> None:
    position, seen = begin(seed, opening)
    assert (position, seen) == begin(seed, opening)
    assert len(free(position)) == 9 - opening
    assert winner(position) is None


def test_without_an_opening_the_board_is_empty() -> None:
    assert begin(7, 0)[0] == EMPTY


def test_two_games_side_by_side_share_nothing() -> None:
    async def both() -> list[Transition]:
        made = environment("tic_tac_toe")
        assert (made.min_players, made.max_players) == (2, 2)
        one, other = made.open(), made.open()
        await one.reset(seed=1, players=2)
        await one.step({0: 1})
        start = await other.reset(seed=1, players=2)
        seen = await one.step({1: 5})
        return [start, seen]

    start, seen = asyncio.run(both())
    assert start.observations[0].startswith("1 2 3\n4 5 6\n7 8 9\n")
    assert seen.observations[0].startswith("X 2 3\n4 O 6\n7 8 9\n")
