"""Tests of the ends of a loop with an environment: done, exited by its roles, failed, or cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.models import Request
from rolegraph.engine.records import EpisodeDone, Event, TerminationReason
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.engine.vocabulary import EnvironmentFailure, Transition
from tests.edge import ScriptedModel, episode, limited, run_one
from tests.run.worlds import PLAYER, Say, game, in_turn, known, world
from tests.run.written import Roles, asked, plan, whose

__all__ = ["known"]


def test_an_environment_that_is_over_at_once_spares_the_loop_and_what_waits_goes_on(tmp_path: Path) -> None:
    env = world(lambda number, actions: Transition({}, done=True, info={"reason": "nothing to do"}))
    roles: Roles = {"x": PLAYER, "o": PLAYER, "after": {"needs": ["x"], "prompt": "{{ x.ran }}"}}
    played = {"play": {"roles": ["x", "o"], "times": 3, "env": "scripted"}}
    done = run_one(plan(tmp_path, roles, played), ScriptedModel(whose))
    assert [t.name for t in done.trajectories] == ["after"]
    assert done.metadata["ended"] == {"play": "env"}
    assert done.metadata["environment"] == {"reason": "nothing to do"}
    assert env.closed == 1


PAIRS: Roles = {
    "x": {**PLAYER, "count": 2, "needs": {"critic": {"join": "branch", "round": "previous"}}},
    "critic": {"needs": {"x": "each"}, "prompt": "{{ x.action }}"},
}


def test_branches_may_end_for_themselves_beside_an_environment(tmp_path: Path) -> None:
    env = world(lambda number, actions: Transition({0: "b", 1: "b"}, {0: 1.0, 1: 1.0} if number else {}))
    until = {"players": ["x"], "until": 'critic.action == "critic1.1"'}
    done = run_one(game(tmp_path, PAIRS, times=3, **until), ScriptedModel(whose))
    assert env.steps == [{0: "x1.1", 1: "x2.1"}, {1: "x2.2"}, {1: "x2.3"}]
    assert [t.reward for t in done["x"]] == [3.0, 3.0], "what came later belongs to its last turn"
    assert done.metadata["ended"] == {"play": {"until": 1, "times": 1}}


def test_an_environment_that_is_over_ends_every_branch_that_is_left(tmp_path: Path) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        if number == 2:
            return Transition({}, {1: 1.0}, done=True)
        return Transition({0: "b", 1: "b"})

    env = world(say)
    until = {"players": ["x"], "until": 'critic.action == "critic1.1"'}
    done = run_one(game(tmp_path, PAIRS, times=5, **until), ScriptedModel(whose))
    assert len(env.steps) == 2, "what is over is not asked again"
    assert [len(t.steps) for t in done["x"]] == [1, 2]
    assert done.metadata["ended"] == {"play": {"until": 1, "env": 1}}


def test_an_environment_that_cannot_go_on_ends_its_episode_by_name_and_nobody_is_punished(
    tmp_path: Path,
) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        if number == 2:
            raise EnvironmentFailure("the process has ended")
        return in_turn(number, actions)

    env = world(say)
    done = run_one(game(tmp_path), ScriptedModel(whose))
    assert done.termination_reason is TerminationReason.ERROR
    assert [failure["name"] for failure in done.metadata["failures"]] == ["environment_error"] * 2
    assert asked(done, "x") == [["board 0"]] and asked(done, "o") == [["board 1"]]
    assert all(t.masked and t.reward is None for t in done.trajectories)
    assert Membership().add([done]).groups() == []
    assert env.closed == 1


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda number, actions: 1 / 0, "raised ZeroDivisionError"),
        (lambda number, actions: Transition({7: "b"}), "names player 7, expected 0 to 1"),
        (lambda number, actions: Transition({0: "b"}, {0: float("nan")}), "the reward nan"),
    ],
)
def test_whatever_is_wrong_in_an_environment_is_its_own_failure(
    say: Say, message: str, tmp_path: Path
) -> None:
    world(say)
    done = run_one(game(tmp_path), ScriptedModel(whose))
    assert [t.name for t in done.trajectories] == ["x", "o"]
    assert all(t.failure and message in t.failure.message for t in done.trajectories)


def test_cancellation_closes_the_environment_and_keeps_what_was_done(tmp_path: Path) -> None:
    env = world(in_turn, seconds=0.001)
    compiled = game(tmp_path, times=100)
    told: list[Event] = []
    halfway = asyncio.Event()

    def answer(request: Request) -> str:
        if request.id.node.round == 3:
            halfway.set()
        return whose(request)

    async def cancelled() -> None:
        running = asyncio.create_task(
            episode(compiled, limited(compiled, ScriptedModel(answer)), observe=told.append)
        )
        await halfway.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert env.closed == 1
    (last,) = [event for event in told if isinstance(event, EpisodeDone)]
    assert not last.finished and len(last.episode["x"][0].steps) >= 1


def test_an_environment_that_cannot_be_closed_costs_no_episode(tmp_path: Path) -> None:
    env = world(in_turn)

    async def close() -> None:
        raise OSError("it hangs")

    env.close = close
    assert run_one(game(tmp_path), ScriptedModel(whose)).termination_reason is TerminationReason.ENV_DONE
