"""Tests of `.previous`, `.history` and `.final` behind a role's name, in expressions after the episode."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import SpecError
from rolegraph.engine.models import Request
from tests.edge import RIGHT, WRONG, ScriptedModel, run_one
from tests.run.written import plan

PATTERN = [WRONG, RIGHT, WRONG, RIGHT]
"""Answers of a role in its rounds."""


def answer(request: Request) -> str:
    """Answer by the round; the second instance begins one round later in `PATTERN`."""
    node = request.id.node
    return PATTERN[node.round - 1 + node.index - 1]


def looped(tmp_path: Path, reward: str, **further: Any) -> Plan:
    """Compile a loop of three rounds: two workers, each with a checker, and a reader behind the loop."""
    roles: dict[str, dict[str, Any]] = {
        "worker": {"count": 2, "prompt": "w"},
        "checker": {"needs": {"worker": "each"}, "prompt": "c", "reward": reward},
        "reader": {"needs": ["checker"], "prompt": "r", "reward": further.pop("outside", "ok")},
    }
    return plan(tmp_path, roles, {"l": {"roles": ["worker", "checker"], "times": 3}}, **further)


@pytest.mark.parametrize(
    ("reward", "first", "second"),
    [
        ("worker.right", [0, 1, 0], [1, 0, 1]),
        ("worker.previous.right | default(0.5)", [0.5, 0, 1], [0.5, 1, 0]),
        ("count(worker.history)", [0, 1, 2], [0, 1, 2]),
        ("sum(worker.history.right) + 10 * worker.right", [0, 10, 1], [10, 1, 11]),
        ("worker.final.right", [0, 0, 0], [1, 1, 1]),
        ("worker.final.round - worker.round", [2, 1, 0], [2, 1, 0]),
        ("last(worker.history).right | default(0)", [0, 0, 1], [0, 1, 0]),
        ("count(worker.history, where=worker.history.right)", [0, 0, 1], [0, 1, 1]),
    ],
)
def test_a_reward_in_the_loop_reads_other_rounds_on_its_branch(
    tmp_path: Path, reward: str, first: list[float], second: list[float]
) -> None:
    episode = run_one(looped(tmp_path, reward), ScriptedModel(answer))
    assert [[step.reward for step in it.steps] for it in episode["checker"]] == [first, second]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("count(worker.history)", 6),
        ("sum(worker.history.right)", 3),
        ("worker.history[0].right + 2 * worker.history[1].right", 2),
        ("mean(worker.final.right)", 0.5),
        ("mean(worker.history.right and worker.final.right)", 2 / 6),
        ("mean(worker.right)", 0.5),
        ("mean(checker.final.round)", 3),  # one for each worker
    ],
)
def test_from_outside_the_loop_the_history_is_all_turns_by_round(
    tmp_path: Path, expression: str, value: float
) -> None:
    made = looped(tmp_path, "ok", outside=expression, episode={"metrics": {"m": expression}})
    episode = run_one(pickle.loads(pickle.dumps(made)), ScriptedModel(answer))
    assert episode["reader"][0].reward == pytest.approx(value)
    assert dict(episode.metrics) == {"m": pytest.approx(value)}


def test_the_final_reward_of_a_player_is_that_of_its_last_turn(tmp_path: Path) -> None:
    roles: dict[str, dict[str, Any]] = {
        "agent": {"prompt": "{{ self.observation }}", "reward": "env"},
        "judge": {"needs": ["agent"], "prompt": "j", "reward": "agent.reward - sum(agent.history.reward)"},
    }
    loop = {"roles": ["agent"], "env": {"grid": {"size": 4}}, "times": 3}
    metrics = {"final": "agent.final.reward", "all": "agent.reward"}
    episode = run_one(
        plan(tmp_path, roles, {"walk": loop}, episode={"metrics": metrics}), ScriptedModel(lambda _: "up")
    )
    (agent,), (judge,) = episode["agent"], episode["judge"]
    assert dict(episode.metrics) == {"final": agent.steps[-1].reward, "all": agent.reward}
    assert judge.reward == pytest.approx(0)


def test_an_episode_is_correct_by_a_role_s_last_turn(tmp_path: Path) -> None:
    made = looped(tmp_path, "ok", episode={"correct": "all(worker.final.right)"})
    assert not run_one(made, ScriptedModel(answer)).is_correct
    assert run_one(made, ScriptedModel(lambda _: RIGHT)).is_correct


@pytest.mark.parametrize(
    ("where", "text", "word"),
    [
        ("reward", "reader.final.right", "final"),
        ("reward", "worker.histroy.right", "histroy"),
        ("prompt", "{{ worker.history }}", "history"),
        ("when", "worker.final.ok", "final"),
    ],
)
def test_a_link_without_a_meaning_is_a_fault_at_its_word(
    tmp_path: Path, where: str, text: str, word: str
) -> None:
    checker = {"needs": {"worker": "each"}, "prompt": "c", "reward": "ok", where: text}
    roles: dict[str, dict[str, Any]] = {
        "worker": {"count": 2, "prompt": "w"},
        "checker": checker,
        "reader": {"needs": ["checker"], "prompt": "r"},
    }
    with pytest.raises(SpecError) as caught:
        plan(tmp_path, roles, {"l": {"roles": ["worker", "checker"], "times": 3}})
    assert word in [
        it.place.text[it.place.column - 1 :][: len(word)] for it in caught.value.diagnostics if it.place
    ]


def test_the_last_turns_of_several_instances_are_several(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        looped(tmp_path, "ok", episode={"metrics": {"m": "checker.final.right"}})
    assert [it.path for it in caught.value.diagnostics] == [("episode", "metrics", "m")]


@pytest.mark.parametrize("field", ["final", "history", "previous"])
def test_a_key_of_an_action_may_have_the_name_of_a_link(tmp_path: Path, field: str) -> None:
    schema = {"type": "object", "properties": {field: {"type": "integer"}}, "required": [field]}
    roles = {"a": {"prompt": "a", "parser": {"json": schema}, "reward": f"action.{field} + task.target"}}
    episode = run_one(
        plan(tmp_path, roles, {"l": {"roles": ["a"], "times": 1}}),
        ScriptedModel(lambda _: f'{{"{field}": 2}}'),
    )
    assert episode["a"][0].reward == 2 + episode.task["target"]
