"""Tests of `chance`: how often it is true, and which turns share a draw."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import SpecError
from rolegraph.engine.records import Task
from tests.edge import COUNTDOWN, ScriptedModel, episode, limited
from tests.run.written import plan, whose

TASKS: list[Task] = [{**COUNTDOWN, "id": f"t{number}"} for number in range(400)]
Draws = list[list[tuple[str, int, int]]]


def draws(of: Plan, *rollouts: int, tasks: list[Task] = TASKS, seed: int | None = 7) -> Draws:
    """Return for each episode the instances that ran, with their number of turns."""

    async def run() -> Draws:
        models = limited(of, ScriptedModel(whose))
        made = [await episode(of, models, task, it, seed=seed) for task in tasks for it in rollouts or (0,)]
        return [[(t.name, t.index, len(t.steps)) for t in it.trajectories] for it in made]

    return asyncio.run(run())


def drawn_by(when: str, folder: Path, **more: Any) -> Plan:
    first, second = ({"count": 2, "when": when} for _ in range(2))
    return plan(folder, {"judge": {}, "first": first, "second": second}, **more)


def test_each_turn_runs_with_its_probability_and_draws_for_itself(tmp_path: Path) -> None:
    each = [len(it) - 1 for it in draws(drawn_by("chance(0.75)", tmp_path))]
    assert 1100 < sum(each) < 1300, "of 1,600 turns"
    assert {*each} == {0, 1, 2, 3, 4}
    both = drawn_by("chance(0.5) and chance(task.target / task.target / 2)", tmp_path)
    assert 300 < sum(len(it) - 1 for it in draws(both)) < 500, "two calls are two draws"


@pytest.mark.parametrize(("always", "turns"), [("chance(1)", 5), ("not chance(0)", 5), ("chance(0)", 1)])
def test_the_ends_of_the_range_are_certain(tmp_path: Path, always: str, turns: int) -> None:
    assert {len(it) for it in draws(drawn_by(always, tmp_path), tasks=TASKS[:50])} == {turns}


def test_a_seed_repeats_its_draws(tmp_path: Path) -> None:
    turn, tasks = drawn_by("chance(0.5)", tmp_path), TASKS[:40]
    assert draws(turn, tasks=tasks) == draws(turn, tasks=tasks) != draws(turn, tasks=tasks, seed=8)
    sampled = drawn_by("chance(0.5)", tmp_path, sampling={"seed": 7})
    assert draws(sampled, tasks=tasks, seed=None) == draws(turn, tasks=tasks)


@pytest.mark.parametrize(
    ("options", "roles_differ", "rollouts_differ"),
    [
        ("per='turn'", True, True),
        ("per='episode'", True, True),
        ("per='episode', key='coin'", False, True),
        ("per='task'", True, False),
        ("per='task', key='coin'", False, False),
    ],
)
def test_what_shares_a_draw(tmp_path: Path, options: str, roles_differ: bool, rollouts_differ: bool) -> None:
    made = draws(drawn_by(f"chance(0.5, {options})", tmp_path), 0, 1, tasks=TASKS[:40])
    counts = [[sum(it[0] == role for it in turns) for role in ("first", "second")] for turns in made]
    assert any(first != second for first, second in counts) is roles_differ
    assert (made[::2] != made[1::2]) is rollouts_differ
    assert any(1 in it for it in counts) is ("turn" in options), "the instances of a role share a wider draw"


def test_a_loop_ends_and_is_left_out_by_chance(tmp_path: Path) -> None:
    loop = {"roles": ["first", "second"], "times": 4, "until": "chance(0.5)", "when": "chance(0.5)"}
    made = draws(plan(tmp_path, {"judge": {}, "first": {}, "second": {}}, {"talk": loop}))
    skipped = [it for it in made if len(it) == 1]
    assert 140 < len(skipped) < 260
    rounds = [turns for it in made for _, _, turns in it[1:2]]
    assert 0.35 < rounds.count(1) / len(rounds) < 0.65
    assert {*rounds} == {1, 2, 3, 4}
    assert all(it[1][2] == it[2][2] for it in made if len(it) > 1), "roles of a branch end together"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("prompt", "{{ chance(0.5) }}", r"chance\(…\) cannot be called in a prompt"),
        ("reward", "chance(0.5)", r"chance\(…\) cannot be called in this expression"),
        ("right", "chance(0.5)", r"chance\(…\) cannot be called in this expression"),
        ("when", "chance(75)", "a probability from 0 to 1, such as 0.25, not 75"),
        ("when", "chance(-0.5)", "a probability from 0 to 1, such as 0.25, not -0.5"),
        ("when", "chance()", "takes a probability, `per` and `key`"),
        ("when", "chance(0.5, often=2)", "takes a probability, `per` and `key`"),
        ("when", "chance(0.5, per='step')", "as `per` one of task, episode, turn, not 'step'"),
        ("when", "chance(0.5, per=task.id)", "`per` and `key` as texts in quotes"),
        ("when", "chance(0.5, key='coin')", 'a `key` beside per="episode" or per="task"'),
        ("when", "chance(0.5, per='task', key=1)", "as `key` a text"),
    ],
)
def test_a_place_and_options_that_cannot_draw(tmp_path: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan(tmp_path, {"solver": {key: value}})


def test_a_probability_that_is_none_is_counted(tmp_path: Path) -> None:
    of = plan(tmp_path, {"judge": {}, "first": {"when": "chance(task.target)"}})
    made = asyncio.run(episode(of, limited(of, ScriptedModel(whose)), {**COUNTDOWN, "target": 30}))
    assert made.metadata["uncomputed_conditions"] == 1
    assert [it.name for it in made.trajectories] == ["judge"]
