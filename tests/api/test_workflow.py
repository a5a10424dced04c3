"""Tests of loading, opening and running a spec from Python, in scripts and notebooks, on any provider."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.models import Models
from rolegraph.engine.run import Isolation
from rolegraph.engine.spec import ModelRef
from tests.edge import COUNTDOWN, RIGHT, ScriptedModel, write_spec
from tests.models.edges import Endpoint, chat_answer, serving

OWN = """
import rolegraph as rg
from beside import LIMIT


@rg.reward("brief", labels=["solution"])
def brief(task, action, *, longest: int = LIMIT) -> float:
    return float(len(str(action)) < longest)


@rg.parser("last_line")
def last_line(text):
    lines = text.strip().splitlines()
    if not lines:
        raise ValueError("an empty answer")
    return lines[-1]
"""


def scripted(body: dict[str, Any]) -> Response:
    asked = body["messages"][-1]["content"]
    text = "<answer>1</answer>" if "Proposed solutions" in asked else f"Let me see.\n{RIGHT}"
    return chat_answer(text, usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("LIMIT = 80\n")
    file = tmp_path / "rewards.py"
    file.write_text(OWN)
    return file


def test_importing_it_imports_next_to_nothing() -> None:
    heavy = "sorted({'pydantic', 'torch', 'tinker', 'numpy', 'networkx', 'jinja2'} & set(sys.modules))"
    code = f"import rolegraph as rg, sys; print({heavy}); print(rg.load.__name__, 'tinker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nload False\n"


def test_every_name_that_the_stub_lists_is_there() -> None:
    for name in rg.__all__:
        assert getattr(rg, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = rg.lod  # pyright: ignore[reportAttributeAccessIssue]


def test_a_spec_with_faults_names_each_with_its_place(tmp_path: Path) -> None:
    write_spec(tmp_path, "rolegraph: 2\nname: x\nroles: {a: {promt: b}}")
    with pytest.raises(rg.SpecError, match=r"spec\.yaml:3:13: error: unknown key 'promt'"):
        rg.load(tmp_path / "spec.yaml")


def test_its_graph_has_a_node_for_each_turn() -> None:
    graph = rg.load("solver_judge").graph
    assert isinstance(graph, nx.DiGraph) and nx.is_directed_acyclic_graph(graph)
    assert {*graph.edges} == {("solver[0]", "judge[0]"), ("solver[1]", "judge[0]")}
    trained = {"policy": "main", "endpoint": "local"}
    assert graph.nodes["solver[1]"] == {"role": "solver", "index": 2, "round": 1, **trained}
    voted = rg.load("debate").graph
    assert voted.nodes["debater[2] round 2"] == {"role": "debater", "index": 3, "round": 2, **trained}
    assert voted.nodes["vote[0]"] == {
        "role": "vote",
        "index": 1,
        "round": 1,
        "policy": "",
        "endpoint": "",
    }
    with pytest.raises(nx.NetworkXError):
        graph.add_node("another")
    graph.copy().add_node("another")


async def play(flow: rg.Workflow, endpoint: Endpoint) -> list[rg.Episode]:
    async with flow.open(model="openai:scripted", base_url=endpoint.base_url) as run:
        return [episode async for episode in run.stream("validation", limit=2, rollouts=2)]


def test_a_workflow_runs_on_an_openai_server_in_a_loop_that_runs_already() -> None:
    with serving(scripted, models=["scripted"]) as endpoint:
        episodes = asyncio.run(play(rg.load("solver_judge"), endpoint))
    assert sorted(episode.id for episode in episodes) == [
        f"countdown-validation-{t}:{k}" for t in (0, 1) for k in (0, 1)
    ]
    for episode in episodes:
        assert [len(episode["solver"]), len(episode["judge"])] == [2, 1]
        assert episode["judge"][0].action == RIGHT
        with pytest.raises(KeyError, match="solver, judge"):
            _ = episode["validator"]


def test_one_episode_on_a_task_of_ones_own() -> None:
    async def one() -> rg.Episode:
        flow = rg.load("solver_judge")
        async with flow.open("openai:scripted", base_url=endpoint.base_url) as run:
            return await run.episode({key: COUNTDOWN[key] for key in ("question", "nums", "target")})

    with serving(scripted, models=["scripted"]) as endpoint:
        assert asyncio.run(one()).is_correct


def test_trained_weights_answer_for_the_roles_that_were_trained_and_no_others() -> None:
    async def saying_its_weights(ref: ModelRef) -> ScriptedModel:
        return ScriptedModel(lambda request: f"{ref.name} {ref.checkpoint}")

    async def responses() -> list[dict[str, str]]:
        flow = rg.load("solver_judge", "model=tinker:m", "roles.judge.estimator=null")
        async with Models(saying_its_weights) as models, Isolation() as isolation:
            run = api.OpenWorkflow(flow, models, await models.table(flow.plan.endpoints), isolation)
            trained = await run.trained("tinker://run/best")
            episodes = [await each.episode(COUNTDOWN) for each in (run, trained, run)]
        return [{t.name: t.steps[0].model_response for t in episode.trajectories} for episode in episodes]

    base = {"solver": "m None", "judge": "m None"}
    assert asyncio.run(responses()) == [base, {**base, "solver": "m tinker://run/best"}, base]


def test_a_reward_and_a_parser_of_an_imported_file_are_known(own: Path) -> None:
    words = ("roles.solver.parser=last_line", "roles.solver.reward={brief: {longest: 30}}")
    flow = rg.load("solver_judge", *words, imports=[own])
    with serving(scripted, models=["scripted"]) as endpoint:
        episodes = asyncio.run(play(flow, endpoint))
    solvers = [solver for episode in episodes for solver in episode["solver"]]
    assert [solver.action for solver in solvers] == [RIGHT] * 8
    assert [solver.reward for solver in solvers] == [1.0] * 8
    assert "solution" in flow.plan.hidden


def test_the_hash_of_a_workflow_follows_what_was_imported_for_it(own: Path) -> None:
    bare = rg.load("solver_judge").hash
    before = rg.load("solver_judge", imports=[own]).hash
    own.write_text(OWN + "\n# changed\n")
    after = rg.load("solver_judge", imports=[own]).hash
    assert len({bare, before, after}) == 3


def test_a_file_that_cannot_be_imported_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(rg.UsageError, match=r"cannot import .*gone\.py: expected a Python file"):
        rg.load("solver_judge", imports=[tmp_path / "gone.py"])
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(rg.UsageError, match="ZeroDivisionError"):
        rg.load("solver_judge", imports=[tmp_path / "broken.py"])


def test_what_blocks_says_what_to_await_where_a_loop_runs(tmp_path: Path) -> None:
    async def notebook() -> None:
        with pytest.raises(rg.UsageError, match=r"await rg\.run_async"):
            rg.run(rg.load("solver_judge"), out=tmp_path / "run")

    asyncio.run(notebook())
    assert not (tmp_path / "run").exists()


def test_a_run_is_on_disk_and_its_imports_are_noted(own: Path, tmp_path: Path) -> None:
    heard: list[api.Event] = []
    with serving(scripted, models=["scripted"]) as endpoint:
        flow = rg.load(
            "solver_judge",
            "roles.judge.reward=brief",
            model="openai:scripted",
            base_url=endpoint.base_url,
            imports=[own],
        )
        result = rg.run(flow, limit=3, out=tmp_path / "run", observe=heard.append)
    assert len(list(result.recorded())) == 3
    assert result.figures["episodes"] == 3
    assert sum(isinstance(event, api.EpisodeDone) for event in heard) == 3
    assert json.loads((tmp_path / "run" / "run.json").read_text())["imports"] == [str(own)]


def test_tasks_of_ones_own_need_an_id(tmp_path: Path) -> None:
    async def stream() -> None:
        async with rg.load("solver_judge").open("openai:scripted", base_url=endpoint.base_url) as run:
            [episode async for episode in run.stream(tasks=[{"question": "q"}])]

    with serving(scripted, models=["scripted"]) as endpoint, pytest.raises(rg.UsageError, match="has no id"):
        asyncio.run(stream())
