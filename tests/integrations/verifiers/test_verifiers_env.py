"""Ejected environments under verifiers itself: rewards, traces and failures."""
# verifiers is an extra, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

import rolegraph as rg
from rolegraph import api
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.models.edges import chat_answer, serving

vf = pytest.importorskip("verifiers.v1", reason="needs the extra `verifiers`")
pytestmark = pytest.mark.verifiers

ONE_CALL = "model.concurrency=1"
"""Override by which calls are made one after another, so that the answers come in the same order."""
MODEL = "openai:tiny"


@pytest.fixture
def packed(
    rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Return a function that ejects a spec, and returns the environment's config."""
    known = set(sys.modules)

    def eject(spec: str, *words: str, **config: Any) -> Any:
        done = rolegraph("eject", spec, *words, "--verifiers", "package")
        assert done.returncode == 0, done.stderr
        monkeypatch.syspath_prepend(str(tmp_path / "package"))
        from verifiers.v1.utils.loaders import resolve_env_config

        name = Path(spec).stem
        return resolve_env_config({"taskset": {"id": name.replace("_", "-")}, **config})

    yield eject
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def stub(tasks: Sequence[api.Task]) -> Callable[[dict[str, Any]], Response]:
    """Return an endpoint that answers right, wrong or without a tag, by the prompt and its number."""
    solutions = {str(task["question"]): str(task["solution"]) for task in tasks}
    seen = Counter[str]()

    def answer(body: dict[str, Any]) -> Response:
        text = json.dumps(body["messages"])
        number = seen[text]
        seen[text] += 1
        draw = hashlib.blake2b(f"{text} {number}".encode(), digest_size=1).digest()[0] % 4
        right = next((known for question, known in solutions.items() if question in text), "0")
        said = [f"<answer>{right}</answer>", "<answer>1 + 1</answer>", "I cannot say", "<answer>2</answer>"]
        return chat_answer(said[draw])

    return answer


@asynccontextmanager
async def opened(config: Any, url: str, model: str = "tiny") -> AsyncGenerator[Callable[[int, int], Any]]:
    """Open the environment, and yield a function that runs the episodes of its first tasks."""
    from verifiers.v1.utils.loaders import load_environment

    context = vf.ModelContext(model=model, client=vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY"))
    environment = load_environment(config)

    async def episodes(tasks: int, rollouts: int = 1) -> list[Any]:
        slots = [s for task in islice(environment.taskset, tasks) for s in environment.slots(task, rollouts)]
        return [await environment.run_slot(slot, context) for slot in slots]

    async with environment.serving():
        yield episodes


def under_verifiers(config: Any, url: str, tasks: int, rollouts: int = 1, model: str = "tiny") -> list[Any]:
    async def run() -> list[Any]:
        async with opened(config, url, model) as episodes:
            return await episodes(tasks, rollouts)

    return asyncio.run(run())


def ours(spec: str | Path, url: str, tasks: int, *words: str, model: str = MODEL) -> list[rg.Episode]:
    async def run() -> list[rg.Episode]:
        async with rg.load(spec, *words).open(model, base_url=url) as flow:
            return [e async for e in flow.stream("train", limit=tasks, concurrency=1)]

    return asyncio.run(run())


def rewards_of(episode: Any) -> dict[tuple[str, int], float]:
    return {(t.agent.name, t.info["rolegraph"]["index"]): t.reward for t in episode.traces}


def test_the_rewards_of_100_episodes_are_those_of_rolegraph(packed: Callable[..., Any]) -> None:
    config = packed("solver_judge", ONE_CALL)
    tasks = rg.load("solver_judge").tasks("train", 100)
    with serving(stub(tasks)) as endpoint:
        theirs = under_verifiers(config, endpoint.base_url, 100)
    with serving(stub(tasks)) as endpoint:
        own = ours("solver_judge", endpoint.base_url, 100, ONE_CALL)
    assert [e.task.data.name for e in theirs] == [e.task_id for e in own]
    assert all(e.ok for e in theirs)
    expected = [{(t.name, t.index): t.reward for t in e.trajectories} for e in own]
    assert [rewards_of(e) for e in theirs] == expected
    # The stub is right, wrong and unreadable, so that the comparison means something.
    assert {0.0, 1.0} <= {reward for e in expected for reward in e.values()}


@pytest.mark.service
def test_the_rewards_on_a_served_model_are_those_of_rolegraph(
    packed: Callable[..., Any], service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verifiers sends no seeds, so the model answers at temperature 0."""
    for variable in ("NO_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(variable, service.api_key)
    words, url, name = (ONE_CALL, "sampling.temperature=0"), f"{service.base_url}/v1", service.model_name
    theirs = under_verifiers(packed("solver_judge", *words), url, 100, model=name)
    own = ours("solver_judge", url, 100, *words, model=f"openai:{name}")
    expected = [{(t.name, t.index): t.reward for t in e.trajectories} for e in own]
    assert [rewards_of(e) for e in theirs] == expected
    assert {0.0, 1.0} <= {reward for e in expected for reward in e.values()}


def test_calls_of_an_episode_are_made_at_once_where_the_run_allows_it(packed: Callable[..., Any]) -> None:
    config = packed("solver_judge", max_concurrent_agents=None)
    under_way = most = 0

    async def answer(body: dict[str, Any]) -> Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        # A second solver that waits for the first would never be counted.
        for _ in range(200):
            if most > 1:
                break
            await asyncio.sleep(0.01)
        under_way -= 1
        return chat_answer("<answer>1</answer>")

    with serving(answer) as endpoint:
        (episode,) = under_verifiers(config, endpoint.base_url, 1)
    assert most == 2
    assert Counter(trace.agent.name for trace in episode.traces) == {"solver": 2, "judge": 1}


def test_a_call_that_fails_fails_its_instance_alone(packed: Callable[..., Any]) -> None:
    config = packed("solver_judge", ONE_CALL)
    calls = Counter[str]()

    def answer(body: dict[str, Any]) -> Response:
        calls["all"] += 1
        if calls["all"] == 1:
            return JSONResponse({"error": {"message": "no such model"}}, status_code=404)
        return chat_answer("<answer>1</answer>")

    with serving(answer) as endpoint:
        (episode,) = under_verifiers(config, endpoint.base_url, 1)
    ok = {(t.agent.name, t.info["rolegraph"]["index"]): t.ok for t in episode.traces}
    assert sorted(ok.values()) == [False, True, True]
    (failed,) = (trace for trace in episode.traces if not trace.ok)
    assert failed.info["rolegraph"]["failure"]["name"] == "model_error"
    assert not episode.ok


def test_roles_that_are_not_trained_and_masked_trajectories_are_no_training_data(
    packed: Callable[..., Any],
) -> None:
    config = packed(
        "solver_judge",
        "roles.judge.estimator=null",
        "roles.solver.on_failure.then=mask",
        "roles.solver.parser={tag: answer}",
        ONE_CALL,
    )
    texts = iter(["no tag", "<answer>1</answer>", "<answer>1</answer>"])
    with serving(lambda body: chat_answer(next(texts))) as endpoint:
        (episode,) = under_verifiers(config, endpoint.base_url, 1)
    trainable = {(t.agent.name, t.info["rolegraph"]["masked"]): t.agent.trainable for t in episode.traces}
    assert trainable == {("solver", True): False, ("solver", False): True, ("judge", False): False}


def test_a_chat_with_a_tool_is_one_trace(packed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "question": "6 times 7?", "solution": "42"}\n')
    (tmp_path / "reckon.yaml").write_text(
        """
rolegraph: 2
name: reckon
data: {train: rows.jsonl, hidden: [solution]}
roles:
  reckoner:
    prompt: "{{ task.question }}"
    estimator: grpo
    tools: [calculator]
    max_calls: 3
    parser: {tag: answer}
    reward: {exact_match: {field: solution}}
"""
    )
    config = packed("reckon.yaml")
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "calculator", "arguments": '{"expression": "6 * 7"}'},
    }

    def answer(body: dict[str, Any]) -> Response:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return chat_answer(f"<answer>{last['content']}</answer>")
        return chat_answer(None, finish="tool_calls", message={"tool_calls": [call]})

    with serving(answer) as endpoint:
        (episode,) = under_verifiers(config, endpoint.base_url, 1)
    (trace,) = episode.traces
    assert trace.reward == 1.0
    assert [message.role for message in trace.branches[0].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert len(trace.branches) == 1
