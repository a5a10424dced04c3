"""Grid: every grid has a way, a shortest way wins, and illegal moves are named."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.roles.grid import (
    Grid,
    GridRules,
    begin,
    distances,
    draw,
    legal,
    move,
    observation,
    read,
)
from tests.roles.vocabulary import environment

GRIDS = st.builds(draw, st.integers(0, 2**40), st.integers(2, 12), st.floats(0, 0.8))
CORRIDOR = Grid(3, frozenset({(1, 0), (1, 1)}), (0, 0), (2, 0))
"""Three rows of three cells, the middle one open at its right end only."""


def shortest(grid: Grid) -> str:
    """Return the letters of a shortest way from start to goal."""
    far, at, letters = distances(grid), grid.start, ""
    while at != grid.goal:
        letter, at = min(legal(grid, at).items(), key=lambda step: far[step[1]])
        letters += letter
    return letters


@given(GRIDS)
def test_every_grid_has_a_way_from_start_to_goal(grid: Grid) -> None:
    assert grid.start != grid.goal
    assert not {grid.start, grid.goal} & grid.walls
    assert len(shortest(grid)) == distances(grid)[grid.start] > 0


@given(GRIDS, st.integers(1, 7))
def test_a_shortest_way_wins_however_many_moves_are_made_at_once(grid: Grid, at_once: int) -> None:
    way = shortest(grid)
    walk, seen = begin(grid, GridRules(moves=at_once, penalty=1.0))
    earned = 0.0
    for first in range(0, len(way), at_once):
        assert not seen.done
        walk, seen = move(walk, {0: way[first : first + at_once]})
        earned += seen.rewards[0]
    assert seen.done
    assert seen.observations == {}
    assert earned == 1.0
    assert seen.info == {"reason": "goal", "moves": len(way), "optimal": len(way)}


@given(GRIDS, st.data())
def test_walking_at_random_stays_on_free_cells_and_shaping_counts_only_where_it_ends(
    grid: Grid, data: st.DataObject
) -> None:
    walk, seen = begin(grid, GridRules(moves=3, shaping=0.5))
    earned = 0.0
    for _ in range(10):
        walk, seen = move(walk, {0: data.draw(st.text("URDL", min_size=1, max_size=4))})
        earned += seen.rewards[0]
        assert walk.cell in distances(grid)
        if seen.done:
            break
    far = distances(grid)
    nearer = (far[grid.start] - far[walk.cell]) / far[grid.start]
    assert earned == pytest.approx(float(seen.done) + 0.5 * nearer)


@given(GRIDS)
def test_walls_are_no_more_than_were_asked_for(grid: Grid) -> None:
    assert len(grid.walls) <= round(0.8 * grid.size**2)


def test_half_of_a_large_grid_can_be_walls() -> None:
    assert len(draw(3, 10, 0.5).walls) == 50


def test_the_seed_is_the_grid() -> None:
    assert draw(5, 6, 0.3) == draw(5, 6, 0.3)
    assert len({draw(seed, 6, 0.3) for seed in range(50)}) == 50


def test_the_player_is_told_where_it_is_and_what_it_may_do() -> None:
    walk, seen = begin(CORRIDOR, GridRules(moves=4))
    assert seen.info == {"optimal": 6}
    assert seen.observations[0] == observation(walk)
    assert observation(walk) == (
        "A . .\n"
        "# # .\n"
        "G . .\n"
        "You are A, at row 1, column 1. The goal G is at row 3, column 1. # is a wall.\n"
        "Legal moves here: R (U up, R right, D down, L left). Answer with up to 4 moves, such as RRDD."
    )


def test_an_illegal_move_ends_the_action_and_is_said() -> None:
    walk, _ = begin(CORRIDOR, GridRules(moves=4, penalty=0.25))
    walk, seen = move(walk, {0: "RDRR"})
    assert walk.cell == (0, 1)
    assert seen.rewards == {0: -0.25}
    assert seen.observations[0].splitlines()[0] == "Your move D was illegal at row 1, column 2."


def test_illegal_moves_cost_nothing_unless_a_penalty_is_set() -> None:
    walk, _ = begin(CORRIDOR, GridRules())
    assert move(walk, {0: "U"})[1].rewards == {0: 0.0}


def test_more_moves_than_are_allowed_at_once_are_not_made() -> None:
    walk, _ = begin(CORRIDOR, GridRules(moves=2))
    walk, seen = move(walk, {0: "RRDD"})
    assert walk.cell == (0, 2)
    assert seen.observations[0].splitlines()[0] == "No more than 2 of your moves could be made."


def test_moves_behind_the_goal_are_no_fault() -> None:
    walk, _ = begin(CORRIDOR, GridRules(moves=9, penalty=1.0))
    assert move(walk, {0: "RRDDLLLL"})[1].rewards == {0: 1.0}


@pytest.mark.parametrize(
    ("action", "letters"),
    [
        ("RRDD", "RRDD"),
        ("r, r, d", "RRD"),
        ("right right down", "RRD"),
        ('["R", "D"]', "RD"),
        (["R", "down"], "RD"),
        ("Up -> left", "UL"),
    ],
)
def test_moves_are_read_as_letters_or_words(action: object, letters: str) -> None:
    assert read(action) == letters


@pytest.mark.parametrize("action", [None, "", "go right", "R2", 4, [], {"move": "R"}, "east"])
def test_what_is_no_move_is_said_and_leaves_the_player_where_it_is(action: object) -> None:
    assert read(action) is None
    walk, _ = begin(CORRIDOR, GridRules(penalty=0.5))
    after, seen = move(walk, {0: action})
    assert after == walk
    assert seen.rewards == {0: -0.5}
    assert seen.observations[0].startswith("No move could be read.\n")


def test_a_player_that_gave_no_action_made_no_move() -> None:
    walk, _ = begin(CORRIDOR, GridRules())
    assert move(walk, {})[0] == walk


def test_legal_moves_lead_to_free_cells_inside() -> None:
    assert legal(CORRIDOR, (0, 2)) == {"D": (1, 2), "L": (0, 1)}


def test_a_spec_sets_its_size_and_what_it_earns() -> None:
    async def first() -> tuple[str, float]:
        live = environment({"grid": {"size": 7, "walls": 0, "shaping": 1, "moves": 50}}).open()
        seen = await live.reset(seed=3, players=1)
        rewards = (await live.step({0: shortest(draw(3, 7, 0))})).rewards
        await live.close()
        return seen.observations[0], rewards[0]

    told, earned = asyncio.run(first())
    assert len(told.splitlines()) == 7 + 2
    assert "#" not in "".join(told.splitlines()[:7])
    assert earned == 2.0
