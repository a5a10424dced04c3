"""Scripted environment for tests, and a game in that environment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan
from rolegraph.engine.vocabulary import Environment, LiveEnvironment, Transition, environments
from tests.run.written import Roles, plan

Say = Callable[[int, Mapping[int, Any]], Transition]
"""Function from the number of a step (0 for the start) and the actions to a transition."""


class Scripted:
    """Environment that takes its transitions from a function, after a delay."""

    def __init__(self, say: Say, seconds: float = 0.0) -> None:
        self.say, self.seconds = say, seconds
        self.steps: list[Mapping[int, Any]] = []
        self.seeds: list[int] = []
        self.closed = 0

    async def _said(self, actions: Mapping[int, Any]) -> Transition:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return self.say(len(self.steps), actions)

    async def reset(self, seed: int, players: int) -> Transition:
        self.seeds.append(seed)
        return await self._said({})

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        self.steps.append(dict(actions))
        return await self._said(actions)

    async def close(self) -> None:
        self.closed += 1


WORLD: list[LiveEnvironment] = []
"""Environment that `scripted` opens next."""


def scripted() -> Environment:
    """Return the environment that the test has put into WORLD."""
    return Environment(WORLD.pop, 1, 9)


@pytest.fixture(autouse=True)
def known(registries: None) -> Iterator[None]:
    """Register the environment `scripted` for the duration of a test."""
    environments.register("scripted")(scripted)
    yield
    WORLD.clear()


def world(say: Say, seconds: float = 0.0) -> Scripted:
    WORLD[:] = [made := Scripted(say, seconds)]
    return made


def in_turn(number: int, actions: Mapping[int, Any]) -> Transition:
    """Let two players move alternately."""
    return Transition({number % 2: f"board {number}"})


PLAYER = {"prompt": "{{ self.observation }}", "reward": "env"}
TWO: Roles = {"x": PLAYER, "o": PLAYER}


def game(folder: Path, roles: Roles = TWO, times: int = 4, **loop: Any) -> Plan:
    env = {"roles": list(roles), "times": times, "env": "scripted", **loop}
    return plan(folder, roles, {"play": env})
