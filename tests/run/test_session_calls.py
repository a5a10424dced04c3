"""Tests of `run: {function: FUNCTION, of: ROLE}`, and of `episode.id` in headers and bodies of tools."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rolegraph.engine.compile import CompileResult, Plan, check_file
from rolegraph.engine.records import Episode
from rolegraph.engine.vocabulary import Function, Tool, ToolError, tools
from rolegraph.outlook.preview import preview_task
from tests.edge import COUNTDOWN, ScriptedModel, decided, episode, limited, write_spec
from tests.models.edges import served
from tests.run.test_calls import call, script

WHOLE = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
opened: list[int] = []
"""Sums of the sessions that were opened, in order."""


@asynccontextmanager
async def _counter() -> AsyncGenerator[tuple[Function, ...]]:
    opened.append(0)
    place = len(opened) - 1

    async def add(arguments: Mapping[str, Any]) -> str:
        opened[place] += arguments["by"]
        return "added"

    async def total(arguments: Mapping[str, Any]) -> object:
        if arguments.get("broken"):
            raise ToolError("broken")
        return {"sum": opened[place], **arguments}

    yield Function("add", "", WHOLE, add), Function("total", "", {"type": "object"}, total)


@pytest.fixture(autouse=True)
def _counters() -> Iterator[None]:
    """Register the tool `counter` for a test."""

    @tools.register("counter")
    def counter() -> Tool:
        return Tool(_counter)

    opened.clear()
    yield
    for table in ("_factories", "_definitions"):
        getattr(tools, table).pop("counter", None)


AGENT: dict[str, Any] = {"tools": ["counter"], "max_calls": 3}
STATE: dict[str, Any] = {"needs": "agent", "run": {"function": "total", "of": "agent"}, "parser": "json"}


def checked(folder: Path, roles: dict[str, Any], allow: tuple[str, ...] = ()) -> CompileResult:
    asked = {"prompt": "{{ task.question }}"}
    spec = {
        "rolegraph": 2,
        "name": "x",
        "data": {"train": "countdown"},
        "roles": {name: role if "run" in role else {**asked, **role} for name, role in roles.items()},
    }
    return check_file(write_spec(folder, yaml.safe_dump(decided(spec), sort_keys=False)), allow=allow)


def faults(folder: Path, roles: dict[str, Any], allow: tuple[str, ...] = ()) -> list[str]:
    return [d.message for d in checked(folder, roles, allow).diagnostics if d.severity == "error"]


def run(plan: Plan, model: ScriptedModel) -> Episode:
    return asyncio.run(episode(plan, limited(plan, model)))


def test_a_function_is_called_in_the_session_that_a_role_had(tmp_path: Path) -> None:
    """Add twice, and read the sum, which is the reward's; the plan goes through pickle, as to a worker."""
    arguments = '{"of": {{ task.target }}, "said": {{ agent.action | tojson }}}'
    state = {**STATE, "run": {**STATE["run"], "with": arguments}, "reward": "0 + (action.sum == 7)"}
    state["right"] = "action.sum == 7"
    plan = checked(tmp_path, {"agent": {**AGENT, "reward": "state.reward"}, "state": state}).valid()
    model = script(call("add", by=3), call("add", by=4), "done")
    done = run(pickle.loads(pickle.dumps(plan)), model)
    assert done["state"][0].action == {"sum": 7, "of": COUNTDOWN["target"], "said": "done"}
    assert (done["agent"][0].reward, done.is_correct, opened) == (1.0, True, [7])


def test_a_function_that_is_called_so_is_offered_to_no_model(tmp_path: Path) -> None:
    roles = {"other": {**AGENT}, "agent": {**AGENT}, "state": STATE, "last": {**AGENT, "needs": "state"}}
    plan = checked(tmp_path, roles).valid()
    model = script(call("total"), "one")
    done = run(plan, model)
    assert {tuple(function.name for function in request.tools) for request in model.requests} == {("add",)}
    used = [used for t in done.trajectories for s in t.steps for used in s.metadata.get("calls", ())]
    assert {each["error"] for each in used} == {"there is no tool 'total'; there is add"}
    shown = asyncio.run(preview_task(plan, COUNTDOWN))
    assert {f.name for of in shown.roles for asked in of.asked for f in asked.functions} == {"add"}


def test_a_session_that_was_not_opened_is_opened(tmp_path: Path) -> None:
    agent = {**AGENT, "when": "task.target == 0"}
    done = run(checked(tmp_path, {"agent": agent, "state": STATE}).valid(), script())
    assert (done["state"][0].action, opened) == ({"sum": 0}, [0])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            {"function": "totl"},
            "the tools of agent have no function 'totl'; there is add, total; did you",
        ),
        ({"with": "{"}, "the arguments of total are not JSON"),
        ({"with": "[1]"}, "the arguments of total are not the JSON of an object: [1]"),
        ({"function": "add"}, "add does not take these arguments: "),
        ({"with": '{"broken": true}'}, "broken"),
    ],
)
def test_a_call_that_fails_is_a_tool_error(written: dict[str, Any], message: str, tmp_path: Path) -> None:
    state = {"needs": "agent", "run": {**STATE["run"], **written}}
    done = run(checked(tmp_path, {"agent": AGENT, "state": state}).valid(), script("done"))
    (failure,) = done.metadata["failures"]
    assert (failure["role"], failure["name"]) == ("state", "tool_error")
    assert failure["message"].startswith(message)


def test_the_role_must_be_needed_and_have_tools(tmp_path: Path) -> None:
    plain: dict[str, Any] = {}
    alone = {**STATE, "needs": "other"}
    assert faults(tmp_path, {"agent": AGENT, "other": plain, "state": alone}) == [
        "state reads agent, which is not in its `needs`"
    ]
    assert faults(tmp_path, {"agent": plain, "state": STATE}) == [
        "state calls total of the tools of agent, which has none"
    ]
    assert faults(tmp_path, {"agent": {**AGENT, "tools": [{"function": "total", "of": "agent"}]}}) == [
        "function calls a function of another role, and no model calls it"
    ]


def test_words_that_a_session_keeps_may_carry_a_hidden_field(tmp_path: Path) -> None:
    """Let a role that sees the answer write it into its session, whose state the next role reads."""
    roles = {
        "agent": {**AGENT, "sees": ["target"], "prompt": "{{ task.target }}"},
        "state": {key: value for key, value in STATE.items() if key != "parser"},
        "solver": {
            "needs": "state",
            "prompt": "{{ state.action }}",
            "reward": "action == task.target",
            "estimator": "grpo",
        },
    }
    found = [d.message for d in checked(tmp_path, roles).diagnostics]
    assert "agent sees task.target, and its words reach solver, which is rewarded by it" in found


def asked_for(url: str, **more: Any) -> dict[str, Any]:
    body = '{"episode": "{{ episode.id }}", "n": {{ task.target }}}'
    return {"run": {"http": body, "url": url, "headers": {"X-Episode": "e-{{episode.id}}"}, **more}}


def test_an_episode_has_one_id_in_headers_and_bodies_which_no_other_run_has(tmp_path: Path) -> None:
    bodies: list[str] = []
    heads: list[str] = []

    async def answer(request: Request) -> JSONResponse:
        body = await request.json()
        bodies.append(body["episode"])
        heads.append(request.headers["x-episode"])
        return JSONResponse({"n": body["n"]})

    with served(Starlette(routes=[Route("/x", answer, methods=["POST"])])) as address:
        url = f"{address}/x"
        plan = checked(tmp_path, {"a": asked_for(url), "b": asked_for(url)}, (url,)).valid()
        done = [asyncio.run(episode(plan, [], seed=1)) for _ in range(2)]
    one, two = bodies[0], bodies[2]
    assert bodies == [one, one, two, two]
    assert one != two and re.fullmatch("[0-9a-f]{32}", one)
    assert heads == [f"e-{id}" for id in bodies]
    assert all(one not in json.dumps(each.to_dict()) for each in done), "no record has it"


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ({"prompt": "{{ episode.id }}"}, "stands in headers and bodies"),
        ({"run": {"text": "{{ episode.id }}"}}, "stands in headers and bodies"),
        ({"run": {"calculator": "{{ episode.id }}"}}, "stands in headers and bodies"),
        (asked_for("http://127.0.0.1:1/x", method="GET"), "stands in headers and bodies"),
        (asked_for("http://127.0.0.1:1/{{ episode.id }}"), "a URL has none"),
        (
            {"run": {"http": "{{ episode }}", "url": "http://127.0.0.1:1/x"}},
            "the episode has one field, its id",
        ),
        ({"run": {"http": "{{ episode.seed }}", "url": "http://127.0.0.1:1/x"}}, "has one field, its id"),
        ({**AGENT, "tools": [{"mcp": "http://127.0.0.1:1/{{ episode.id }}"}]}, "a URL has none"),
        ({"run": {"http": "1", "url": "http://127.0.0.1:1/x", "headers": {"Host": "y"}}}, "start with X-"),
        (
            {"run": {"http": "1", "url": "http://127.0.0.1:1/x", "headers": {"X-A": "{{ task.target }}"}}},
            "only {{ episode.id }} can stand there",
        ),
    ],
)
def test_the_id_stands_in_no_url_and_no_prompt(role: dict[str, Any], message: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, {"a": role}, ("http://127.0.0.1:1",))
    assert message in fault


def test_a_role_may_be_called_episode(tmp_path: Path) -> None:
    roles = {
        "episode": {},
        "next": {"needs": "episode", "prompt": "{{ episode.action }}"},
    }
    model = ScriptedModel(lambda request: "said")
    run(checked(tmp_path, roles).valid(), model)
    assert model.requests[1].messages[0]["content"] == "said"
