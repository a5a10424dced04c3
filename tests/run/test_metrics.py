"""Metrics of an episode: expressions over the last turns of its roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import check_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from tests.edge import RIGHT, WRONG, ScriptedModel, by_role, run_one, write_spec
from tests.run.written import plan

BAD = "no tags"


def measured(folder: Path, metrics: dict[str, str], *answers: str | None, **solver: Any) -> Episode:
    """Return an episode of a solver for each answer; None is a model that is down."""

    def answer(request: Request) -> str:
        said = answers[request.id.node.index - 1]
        if said is None:
            raise ModelError("down")
        return said

    roles = {"solver": {"count": len(answers), **solver}}
    return run_one(plan(folder, roles, episode={"metrics": metrics}), ScriptedModel(answer))


@pytest.mark.parametrize(
    ("metric", "answers", "value"),
    [
        ("mean(solver.reward)", [RIGHT, WRONG], 0.5),
        ("all(solver.right)", [RIGHT, RIGHT], 1.0),
        ("all(solver.right)", [RIGHT, WRONG], 0.0),
        ("any(solver.right)", [RIGHT, WRONG], 1.0),
        ("all(solver.right)", [RIGHT, BAD], 0.0),
        ("mean(solver.right)", [RIGHT, BAD], 0.5),
        ("all(solver.right)", [RIGHT, None], None),
        ("all(solver.right)", [WRONG, None], 0.0),
        ("any(solver.right)", [RIGHT, None], 1.0),
        ("mean(solver.reward)", [RIGHT, None], 1.0),
        ("mean(solver.reward)", [None, None], None),
        ("count(solver, where=solver.failed)", [RIGHT, BAD], 1.0),
        ("max(solver.calls) + step", [RIGHT, BAD], 1.0),
        ("mean(solver.action == task.answer)", [RIGHT, WRONG], None),
        ("solver[0].right", [RIGHT, WRONG], 1.0),
        ("0.5", [RIGHT, WRONG], 0.5),
    ],
)
def test_a_metric_is_an_expression_over_the_last_turns(
    tmp_path: Path, metric: str, answers: list[str | None], value: float | None
) -> None:
    episode = measured(tmp_path, {"m": metric}, *answers)
    assert dict(episode.metrics) == ({} if value is None else {"m": value})


def test_a_value_that_is_no_number_is_told_and_the_others_are_measured(tmp_path: Path) -> None:
    episode = measured(tmp_path, {"text": "solver.response", "m": "solver.reward"}, RIGHT)
    assert dict(episode.metrics) == {"m": 1.0}
    assert "text" in episode.metadata["uncomputed_metrics"]


def test_loops_have_rounds_and_an_environment_pays_the_sum(tmp_path: Path) -> None:
    roles: dict[str, dict[str, Any]] = {
        "agent": {"prompt": "{{ self.observation }}", "reward": "env"},
        "early": {},
        "spared": {"when": "task.target == 0"},
    }
    loops = {
        "walk": {"roles": ["agent"], "env": {"grid": {"size": 4}}, "times": 3},
        "l": {"roles": ["early"], "times": 4, "until": "early.round == 3"},
    }
    metrics = {
        "rounds": "l.rounds",
        "walked": "agent.reward",
        "spared": "not spared.ran",
        "s": "spared.reward",
    }
    made = plan(tmp_path, roles, loops, episode={"metrics": metrics})
    episode = run_one(made, ScriptedModel(lambda _: RIGHT))
    assert dict(episode.metrics) == {"rounds": 3.0, "walked": episode["agent"][0].reward, "spared": 1.0}
    assert len(episode["agent"][0].steps) > 1


def test_an_episode_that_was_stopped_measures_0_of_who_was_not_asked(tmp_path: Path) -> None:
    roles = {"first": {"on_failure": {"then": "fail"}}, "second": {"needs": ["first"], "prompt": "x"}}
    made = plan(tmp_path, roles, episode={"metrics": {"m": "second.right"}})
    assert dict(run_one(made, ScriptedModel(lambda _: BAD)).metrics) == {"m": 0.0}


@pytest.mark.parametrize(
    ("metric", "word"),
    [
        ("solver.reward", "reward"),
        ("solver", "solver"),
        ("mean(solver.rewrd)", "rewrd"),
        ("mean(sovler.reward)", "sovler"),
        ("l.round", "no 'round'"),
        ("self.index", "self"),
        ("mean(solver.reward", "m"),
    ],
)
def test_a_fault_of_a_metric_is_found_at_its_place(tmp_path: Path, metric: str, word: str) -> None:
    spec = {
        "rolegraph": 2,
        "name": "x",
        "data": {"train": "countdown"},
        "roles": {"solver": {"count": 2, "prompt": "x", "reward": "countdown", "estimator": "grpo"}},
        "loops": {"l": {"roles": ["solver"], "times": 2}},
        "episode": {"metrics": {"m": metric}},
    }
    found = check_file(write_spec(tmp_path, yaml.safe_dump(spec, sort_keys=False))).diagnostics
    faults = [it for it in found if it.severity == "error"]
    assert [it.path[:2] for it in faults] == [("episode", "metrics")]
    assert word in str(faults[0])


def test_a_metric_and_a_reward_read_the_same_step(tmp_path: Path) -> None:
    roles = {"solver": {"reward": "0 + step"}}
    made = plan(tmp_path, roles, episode={"metrics": {"m": "step"}}, train={"steps": 5})
    episode = run_one(made, ScriptedModel(lambda request: RIGHT))
    assert [episode.metrics["m"], episode["solver"][0].reward] == [4.0, 4.0]


@pytest.mark.parametrize(
    ("correct", "figure"),
    [
        ("any(solver.right)", 1.0),
        ("all(solver.right)", 0.0),
        (["any(solver.right)", "not solver[1].right"], 1.0),
        ("mean(solver.right) >= 0.5", 1.0),
        ("1 / (task.target - 7) > 0 and solver[0].ran", None),
        ("solver[0].action", None),
    ],
)
def test_an_episode_is_correct_by_an_expression_that_is_true_or_false(
    correct: object, figure: float | None, tmp_path: Path
) -> None:
    made = plan(tmp_path, {"solver": {"count": 2}}, episode={"correct": correct})
    done = run_one(made, ScriptedModel(by_role({"solver": [RIGHT, WRONG]})))
    assert done.figures.get("correct") == figure
    assert ("correct" in done.metadata.get("uncomputed_metrics", ())) is (figure is None)
