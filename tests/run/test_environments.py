"""Tests of roles that act in an environment: order of turns, observations, rewards, and duration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan, size_of
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.records import Episode, FailureName, NodeId
from rolegraph.engine.vocabulary import Transition
from tests.clock import longest, run_virtually
from tests.edge import ScriptedModel, episode, limited, run_one, turn_dag
from tests.run.worlds import PLAYER, Say, game, in_turn, known, world
from tests.run.written import Roles, asked, plan, said, whose

__all__ = ["known"]


def test_those_whose_turn_it_is_not_are_skipped(tmp_path: Path) -> None:
    env = world(in_turn)
    done = run_one(game(tmp_path), ScriptedModel(whose))
    assert asked(done, "x") == [["board 0", "board 2"]]
    assert asked(done, "o") == [["board 1", "board 3"]]
    assert env.steps == [{0: "x1.1"}, {1: "o1.2"}, {0: "x1.3"}, {1: "o1.4"}]
    assert env.closed == 1
    assert done.metadata["ended"] == {"play": "times"}
    assert "failures" not in done.metadata


def test_who_moves_at_once_is_asked_at_once_and_sees_no_others_move(tmp_path: Path) -> None:
    def together(number: int, actions: Mapping[int, Any]) -> Transition:
        return Transition({player: f"{player} after {number}" for player in range(3)})

    env = world(together)
    roles: Roles = {"x": {**PLAYER, "count": 2}, "o": {**PLAYER, "needs": {"x": "previous"}}}
    roles["o"]["prompt"] += "{% for t in x %} {{ t.action }}{% endfor %}"
    model = ScriptedModel(whose, latency=lambda _: 0.01)
    done = run_one(game(tmp_path, roles, times=2, players=["o", "x"]), model)
    assert model.most_under_way == 3
    assert asked(done, "o") == [["0 after 0", "0 after 1 x1.1 x2.1"]]
    assert asked(done, "x")[1] == ["2 after 0", "2 after 1"]
    assert env.steps[0] == {0: "o1.1", 1: "x1.1", 2: "x2.1"}


def test_a_reward_between_two_turns_belongs_to_the_first_and_a_trajectory_earns_the_sum(
    tmp_path: Path,
) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        earned = {0: 10.0**number, 1: -(10.0**number)}
        return Transition({} if number == 5 else {number % 2: "b"}, earned if number else {}, number == 5)

    world(say)
    done = run_one(game(tmp_path, times=9), ScriptedModel(whose))
    (x,), (o,) = done["x"], done["o"]
    assert [step.reward for step in x.steps] == [110.0, 11000.0, 100000.0]
    assert [step.reward for step in o.steps] == [-(10.0 + 100 + 1000), -110000.0], (
        "what came before the first turn belongs to it"
    )
    assert x.reward == 111110.0 and o.reward == -111110.0
    assert done.metadata["ended"] == {"play": "env"}
    assert done.metadata["rounds"] == {"play": 5}


def test_the_last_round_is_answered_too_and_an_end_as_a_whole_loses_no_reward(tmp_path: Path) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        return Transition({0: "b"}, {0: 1.0} if number else {})

    env = world(say)
    solo: Roles = {"x": PLAYER, "judge": {"needs": ["x"], "prompt": "{{ x.action }} {{ self.observation }}"}}
    done = run_one(game(tmp_path, solo, times=3, players=["x"]), ScriptedModel(whose))
    assert (done["x"][0].reward, len(env.steps)) == (3.0, 3)
    env = world(say)
    until = {"players": ["x"], "until": 'judge.action == "judge1.2"'}
    done = run_one(game(tmp_path, solo, times=9, **until), ScriptedModel(whose))
    assert (done["x"][0].reward, len(env.steps)) == (2.0, 2)
    assert done.metadata["ended"] == {"play": "until"}


def test_who_is_in_the_round_that_ended_it_has_its_turn_however_late_that_comes(tmp_path: Path) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        return Transition({0: "b"}, {}, number == 2)

    roles: Roles = {
        "x": PLAYER,
        "slow": {"prompt": "slow"},
        "judge": {"needs": ["x", "slow"], "prompt": "{{ x.action }} {{ slow.action }}"},
    }
    for late in ("slow", "x"):
        world(say)
        model = ScriptedModel(whose, latency=lambda request, late=late: request.id.node.role == late)
        played = game(tmp_path, roles, times=9, players=["x"])
        done, _ = run_virtually(episode(played, limited(played, model)))
        assert asked(done, "judge") == [["x1.1 slow1.1", "x1.2 slow1.2"]]
        assert done.metadata["rounds"] == {"play": 2}


def test_other_roles_advise_and_see_what_the_movers_see(tmp_path: Path) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        return Transition({0: f"left {number}", 1: f"right {number}"})

    env = world(say)
    roles: Roles = {
        "advisor": {"prompt": "{{ self.observation }}"},
        "walker": {**PLAYER, "count": 2, "needs": ["advisor"]},
    }
    roles["walker"]["prompt"] += " {{ advisor.action }}"
    done = run_one(game(tmp_path, roles, times=2, players=["walker"]), ScriptedModel(whose))
    assert asked(done, "advisor") == [["left 0\n\nright 0", "left 1\n\nright 1"]]
    assert asked(done, "walker")[1] == ["right 0 advisor1.1", "right 1 advisor1.2"]
    assert env.steps[1] == {0: "walker1.2", 1: "walker2.2"}


def test_a_condition_is_not_asked_where_it_is_not_its_move(tmp_path: Path) -> None:
    world(lambda number, actions: Transition({0: "b"}))
    never = "x | map(attribute='action') | join > 3"
    roles: Roles = {"x": PLAYER, "o": {**PLAYER, "needs": {"x": "previous"}, "when": never}}
    done = run_one(game(tmp_path, roles), ScriptedModel(whose))
    assert "uncomputed_conditions" not in done.metadata


def test_a_condition_may_read_the_observation_and_nobodys_move_changes_nothing(tmp_path: Path) -> None:
    env = world(in_turn)
    roles: Roles = {"x": {**PLAYER, "when": "self.round == 3"}, "o": PLAYER}
    done = run_one(game(tmp_path, roles), ScriptedModel(whose))
    assert asked(done, "x") == [["board 0"]], "it was asked again before the same board"
    assert env.steps == [{0: "x1.3"}, {1: "o1.4"}]
    env = world(in_turn)
    roles["x"]["when"] = 'self.observation == "board 0"'
    assert asked(run_one(game(tmp_path, roles), ScriptedModel(whose)), "x") == [["board 0"]]


def test_a_move_that_cannot_be_read_and_one_that_never_came_are_the_environments_to_judge(
    tmp_path: Path,
) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        return Transition({number % 2: "b"}, {number % 2 ^ 1: -1.0} if number else {})

    def answer(request: Request) -> str:
        if request.id.node.role == "o":
            raise ModelError("down")
        return "no tag"

    env = world(say)
    roles: Roles = {"x": {**PLAYER, "parser": {"tag": "answer", "default": "pass"}}, "o": PLAYER}
    done = run_one(game(tmp_path, roles, times=2), ScriptedModel(answer))
    assert env.steps == [{0: "pass"}, {1: ""}]
    assert [t.reward for t in done.trajectories] == [-1.0, -1.0]
    assert [t.failure and t.failure.name for t in done.trajectories] == [
        FailureName.MALFORMED_OUTPUT,
        FailureName.MODEL_ERROR,
    ]


def test_a_masked_turn_is_in_no_sum(tmp_path: Path) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        return Transition({0: "b"}, {0: 1.0} if number else {})

    world(say)
    solo: Roles = {"x": {**PLAYER, "on_failure": {"then": "mask"}}}
    model = ScriptedModel(lambda r: "no tag" if r.id.node.round == 1 else said("a"))
    (x,) = run_one(game(tmp_path, solo, times=3), model).trajectories
    assert (x.reward, [step.masked for step in x.steps]) == (2.0, [True, False, False])


def test_what_the_environment_gives_may_be_one_term_of_many(tmp_path: Path) -> None:
    def say(number: int, actions: Mapping[int, Any]) -> Transition:
        return Transition({0: "b"}, {0: 1.0} if number else {})

    world(say)
    terms = {"won": "env", "short": {"reward": {"length": {"under": 9}}, "weight": 0.5}}
    (x,) = run_one(
        game(tmp_path, {"x": {**PLAYER, "reward": {"sum": terms}}}, times=2), ScriptedModel(whose)
    ).trajectories
    assert (x.reward, x.terms) == (3.0, {"won": 2.0, "short": 2.0})


SEED: Say = lambda number, actions: Transition({0: "b"})  # noqa: E731


def seeds(compiled: Plan, tasks: Sequence[Mapping[str, Any]], rollouts: int = 3) -> list[list[int]]:
    found: list[list[int]] = []
    for task in tasks:
        found.append([])
        for rollout in range(rollouts):
            env = world(SEED)
            model = limited(compiled, ScriptedModel(whose))
            asyncio.run(episode(compiled, model, task, rollout, seed=rollout))
            found[-1] += env.seeds
    return found


def test_all_rollouts_of_a_task_start_from_the_same_state(tmp_path: Path) -> None:
    compiled = game(tmp_path, {"x": PLAYER}, times=1)
    one, other, named = seeds(compiled, [{"id": "a"}, {"id": "b"}, {"id": "c", "seed": 7}])
    assert len({*one}) == len({*other}) == 1
    assert one != other
    assert named == [7, 7, 7], "a task may name its seed"


def test_an_episode_takes_as_long_as_its_critical_path(tmp_path: Path) -> None:
    """Check steps that run beside advisors without dependents, and beside roles after the loop."""
    world(lambda number, actions: Transition({0: "b"}), seconds=2.0)
    roles: Roles = {
        "planner": {"prompt": "{{ self.observation }}"},
        "x": {**PLAYER, "needs": ["planner"]},
        "critic": {"needs": ["x"], "prompt": "{{ x.action }}"},
        "after": {"needs": ["x"], "prompt": "{{ x.action }}"},
    }
    roles["x"]["prompt"] += "{{ planner.action }}"
    play = {"roles": ["planner", "x", "critic"], "times": 3, "env": "scripted", "players": ["x"]}
    compiled = plan(tmp_path, roles, {"play": play})
    takes = {"planner": 3.0, "x": 1.0, "critic": 7.0, "after": 0.5}
    model = limited(compiled, ScriptedModel(whose, lambda request: takes[request.id.node.role]))
    _, seconds = run_virtually(episode(compiled, model))

    work, after = {"env 1": 2.0}, dict[str, list[str]]()
    for number in (1, 2, 3):
        for role, needs in (("planner", "env"), ("x", "planner"), ("critic", "x")):
            work[f"{role} {number}"] = takes[role]
            after[f"{role} {number}"] = [f"{needs} {number}"]
        work[f"env {number + 1}"] = 2.0
        after[f"env {number + 1}"] = [f"x {number}"]
    work["after"], after["after"] = 0.5, ["x 3"]
    assert seconds == pytest.approx(longest(work, after))


def test_the_graph_shows_that_a_round_waits_for_every_players_turn_before(tmp_path: Path) -> None:
    dag = turn_dag(game(tmp_path, times=2))
    assert {*dag.predecessors(NodeId("o", 1, 2))} == {NodeId("x"), NodeId("o")}


def test_an_episode_is_no_larger_than_its_bound(tmp_path: Path) -> None:
    roles: Roles = {"advisor": {"prompt": "a"}, "x": {**PLAYER, "needs": ["advisor"]}}
    roles["x"]["prompt"] += "{{ advisor.action }}"
    assert size_of(game(tmp_path, roles, times=5, players=["x"])) == (10, 10)


def test_a_replay_plays_the_same_game_again(tmp_path: Path) -> None:
    first, compiled = world(in_turn), game(tmp_path)
    done = run_one(compiled, ScriptedModel(whose))
    again = world(in_turn)
    replayed = run_one(compiled, Replay.from_episodes([Episode.from_dict(done.to_dict())]))  # pyright: ignore
    assert again.steps == first.steps
    assert asked(replayed, "x") == asked(done, "x")
