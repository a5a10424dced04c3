"""Tests of plans, and of sending them to another process with imported vocabulary."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode
from rolegraph.engine.vocabulary import Import, import_file, rewards
from tests.edge import COUNTDOWN, RIGHT, WRONG, ScriptedModel, by_role, episode, limited, write_spec

OWN_FILE = '''
from rolegraph.engine.vocabulary import Reward, Score, rewards

WORTH = 0.25


@rewards.register("brief")
def brief(*, longest: int = 80, timeout: float | None = None) -> Reward:
    """More where the action is short."""

    def score(task, action, seen):
        return Score(WORTH if len(str(action)) <= longest else 0.0, True)

    return Reward(slow if timeout else score, timeout=timeout)


def slow(task, action, seen):
    return Score(WORTH, True)
'''
SPEC = """
extends: solver_judge.yaml
name: mine
roles:
  solver: {reward: {sum: {right: {reward: countdown}, short: {reward: {brief: {longest: 30}}}}}}
  judge: {reward: {brief: {timeout: 30}}}
"""
ANSWERS = by_role({"solver": [RIGHT, WRONG], "judge": "<answer>1</answer>"})

ELSEWHERE = """
import json, pickle, sys
from pathlib import Path
plan = pickle.loads(Path(sys.argv[1]).read_bytes())
from tests.compile.test_plan import episodes
print(json.dumps(episodes(plan)))
"""


def episodes(plan: Plan) -> list[dict[str, Any]]:
    """Return the episodes of a plan on a model with constant answers, without their times."""

    async def run() -> list[Episode]:
        models = limited(plan, ScriptedModel(ANSWERS))
        return [await episode(plan, models, COUNTDOWN, rollout, seed=3) for rollout in range(3)]

    played = [finished.to_dict() for finished in asyncio.run(run())]
    for made in played:
        del made["info"]["started_at"]
    for step in (s for e in played for t in e["trajectories"] for s in t["steps"]):
        del step["info"]["started"], step["info"]["seconds"]
    return json.loads(json.dumps(played))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the plan of a spec with a reward that a file beside the spec registers."""
    # restores the registry for the next test
    for table in ("_factories", "_definitions"):
        monkeypatch.setattr(rewards, table, dict(getattr(rewards, table)))
    file = tmp_path / "my_rewards.py"
    file.write_text(OWN_FILE)
    import_file(file)
    return compile_file(write_spec(tmp_path, SPEC))


def test_a_plan_names_what_must_be_imported_and_nothing_that_is_installed(mine: Plan, tmp_path: Path) -> None:
    (wanted,) = mine.imports
    assert wanted.file == str(tmp_path / "my_rewards.py")
    assert compile_file("solver_judge").imports == ()


def test_a_plan_gives_the_same_episodes_in_another_process(mine: Plan, tmp_path: Path) -> None:
    sent = tmp_path / "plan.pkl"
    sent.write_bytes(pickle.dumps(mine))
    here = episodes(mine)
    root = str(Path(__file__).parent.parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(sent)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here
    rewarded = [t["reward"] for t in here[0]["trajectories"]]
    assert rewarded == [1.25, 0.25, 0.25]


def test_a_pickled_plan_comes_back_the_same() -> None:
    for name in ("solver_judge", "solver_judge_validator", "solver_judge_distill"):
        plan = compile_file(name)
        sent = pickle.dumps(plan)
        assert plan.graph is plan.graph
        assert pickle.dumps(plan) == sent, "the graph stays here"
        again = pickle.loads(sent)
        assert nx.utils.graphs_equal(again.graph, plan.graph)
        assert (again.hash, again.nodes, again.blocks, again.wiring) == (
            plan.hash,
            plan.nodes,
            plan.blocks,
            plan.wiring,
        )
        assert [role.prompt.source for role in again.roles] == [role.prompt.source for role in plan.roles]
        tasks = [list(data["validation"].rows(3)) for data in (again.data, plan.data)]
        assert tasks[0] == tasks[1]


def test_a_plan_needs_its_data_only_when_it_is_read(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1", "answer": "2"}\n')
    spec = """
rolegraph: 2
name: mine
data: {validation: rows.jsonl}
roles: {solver: {prompt: "{{ task.question }}", reward: exact_match}}
"""
    sent = pickle.dumps(compile_file(write_spec(tmp_path, spec)))
    rows.unlink()
    plan = pickle.loads(sent)
    assert plan.data["validation"].columns == ("id", "question", "answer")
    with pytest.raises(Exception, match=r"no file 'rows\.jsonl'"):
        list(plan.data["validation"].rows(1))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot import .*gone\.py: expected a Python file"):
        Import("gone", str(tmp_path / "gone.py")).ensure()
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(UsageError, match=r"importing .*broken\.py failed: ZeroDivisionError"):
        import_file(broken)
