"""Environments made of two functions, one game for each episode."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from rolegraph.engine.errors import WorldError
from rolegraph.engine.vocabulary import (
    BadOptions,
    Environment,
    EnvironmentFailure,
    ItemCall,
    LiveEnvironment,
    Transition,
    UnknownName,
    environment_of,
    environments,
)


def start(seed: int, players: int) -> tuple[int, Transition]:
    """Start a game in which all players name a number at once."""
    return seed, Transition(dict.fromkeys(range(players), f"{seed}"))


def add(total: int, actions: Mapping[int, Any]) -> tuple[int, Transition]:
    total += sum(actions.values())
    if total >= 10:
        return total, Transition({}, dict.fromkeys(actions, 1.0), done=True, info={"reason": "ten"})
    return total, Transition(dict.fromkeys(actions, f"{total}"))


ADDING = environment_of(start, add, min_players=1, max_players=3)


async def reset_twice(live: LiveEnvironment) -> list[Transition]:
    seen = [await live.reset(1, 2), await live.step({0: 2, 1: 3}), await live.reset(1, 2)]
    seen += [await live.step({0: 2, 1: 3}), await live.step({0: 2, 1: 3})]
    await live.close()
    return seen


def test_two_functions_make_a_game_in_which_several_move_at_once() -> None:
    first, second, again, *_, end = asyncio.run(reset_twice(ADDING.open()))
    assert first == Transition({0: "1", 1: "1"}, {}, done=False, info={})
    assert second.observations == {0: "6", 1: "6"}
    assert again == first
    assert end == Transition({}, {0: 1.0, 1: 1.0}, done=True, info={"reason": "ten"})


def test_every_episode_has_a_game_of_its_own() -> None:
    async def two() -> tuple[Transition, Transition]:
        one, other = ADDING.open(), ADDING.open()
        await one.reset(0, 1)
        await other.reset(5, 1)
        return await one.step({0: 1}), await other.step({0: 1})

    one, other = asyncio.run(two())
    assert (one.observations, other.observations) == ({0: "1"}, {0: "6"})


def test_an_environment_can_be_pickled_with_its_number_of_players() -> None:
    sent = pickle.loads(pickle.dumps(ADDING))
    assert (sent.min_players, sent.max_players) == (1, 3)
    assert asyncio.run(reset_twice(sent.open())) == asyncio.run(reset_twice(ADDING.open()))


def test_a_spec_s_environment_is_sent_as_its_call() -> None:
    built = environments.build(ItemCall.parse({"grid": {"size": 4}}))
    sent = pickle.loads(pickle.dumps(built))
    assert sent.origin == built.origin

    async def first(made: Environment) -> Transition:
        return await made.open().reset(9, 1)

    assert asyncio.run(first(sent)) == asyncio.run(first(built))


def test_a_misspelt_name_and_a_wrong_option_are_told_as_of_any_item() -> None:
    with pytest.raises(UnknownName) as unknown:
        environments.build(ItemCall.parse("gird"))
    assert unknown.value.hint == "did you mean 'grid'?"
    with pytest.raises(BadOptions):
        environments.build(ItemCall.parse({"grid": {"size": 1}}))


def test_an_episode_that_cannot_go_on_is_the_world_s_failure() -> None:
    assert issubclass(EnvironmentFailure, WorldError)
