"""Tests of turns with tool calls: prompts, records, and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.prompts import ChatPrefix
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import Episode, FailureName
from rolegraph.engine.records.episodes import read_episodes, write_episodes
from rolegraph.engine.run.tools import call_all
from rolegraph.engine.vocabulary import Function, Tool, ToolCall, ToolError, tools
from tests.edge import COUNTDOWN, RIGHT, ScriptedModel, episode, limited, write_spec

log: list[str] = []
"""Actions of the tools in these tests, in order."""
waits: asyncio.Event | None = None
"""Event that is set when a call that never ends has begun."""


async def _add(arguments: Mapping[str, Any]) -> Any:
    log.append(f"add {arguments['a']} {arguments['b']}")
    return arguments["a"] + arguments["b"]


async def _fail(arguments: Mapping[str, Any]) -> Any:
    match arguments.get("how"):
        case "error":
            raise ToolError("no such page")
        case "bug":
            return 1 // 0
        case "mistake":
            raise UsageError("pip install it")
        case _:
            if waits is not None:
                waits.set()
            await asyncio.Event().wait()


NUMBER = {"type": "number"}
ADD = Function(
    "add", "Adds.", {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}, _add
)
FAIL = Function("fail", "Fails.", {"type": "object", "properties": {"how": {"type": "string"}}}, _fail)


@asynccontextmanager
async def _kept(functions: Sequence[Function]) -> AsyncGenerator[Sequence[Function], None]:
    task = asyncio.current_task()
    log.append("open")
    yield functions
    assert asyncio.current_task() is task, "closed where it was opened"
    log.append("close")


@asynccontextmanager
async def _refused() -> AsyncGenerator[Sequence[Function], None]:
    log.append("refused")
    raise ToolError("the server is down")
    yield ()


@pytest.fixture(scope="module", autouse=True)
def vocabulary() -> Iterator[None]:
    @tools.register("test_add")
    def add() -> Tool:
        return Tool(open=lambda: _kept((ADD,)))

    @tools.register("test_fail")
    def fail() -> Tool:
        return Tool(open=lambda: _kept((FAIL,)))

    @tools.register("test_down")
    def down() -> Tool:
        return Tool(open=_refused)

    @tools.register("test_choose")
    def choose() -> Tool:
        return Tool(choose=lambda *_: None)

    @tools.register("test_asked")
    def asked(value: str | None = None, /) -> Tool:
        return Tool(open=lambda: _kept((ADD,)), source=value)

    yield
    for name in ("test_add", "test_fail", "test_down", "test_choose", "test_asked"):
        tools._factories.pop(name)
        tools._definitions.pop(name)


@pytest.fixture(autouse=True)
def _forget() -> None:
    log.clear()


SPEC = """\
rolegraph: 2
name: react
roles:
  agent:
    count: {count}
    prompt: "{{{{ task.question }}}}"
    tools: {tools}
    max_calls: {calls}
    parser: {{tag: answer}}
    reward: countdown
    estimator: grpo
data: {{train: countdown}}
"""


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Plan]:
    def make(*overrides: str, offered: str = "[test_add]", calls: int = 4, count: int = 1) -> Plan:
        text = SPEC.format(tools=offered, calls=calls, count=count)
        return compile_file(write_spec(tmp_path, text), overrides)

    return make


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Caller(ScriptedModel):
    """Scripted model that parses tool calls from its answers and gives each answer made-up tokens."""

    async def complete(self, request: Request) -> Completion:
        answer = await super().complete(request)
        text, calls = HERMES.find(answer.text) if request.tools else (answer.text, ())
        number = len(self.requests)
        ids = (number, 0)
        before = request.continues.ids if request.continues else ()
        return Completion(text, "", (*before, 9, number), ids, (-0.5, -0.5), calls=calls)


def script(*answers: str) -> Caller:
    """Return a model that gives one answer per call and repeats the last one."""
    return Caller(lambda request: answers[min(request.id.call, len(answers)) - 1])


def played(plan: Plan, model: ScriptedModel, *, seed: int | None = None) -> Episode:
    return asyncio.run(episode(plan, limited(plan, model), seed=seed))


def results(model: ScriptedModel) -> list[str]:
    return [m["content"] for m in model.requests[-1].messages if m["role"] == "tool"]


def test_a_model_calls_a_tool_reads_its_result_and_answers(compiled: Callable[..., Plan]) -> None:
    model = script(f"Let me see. {call('add', a=3, b=4)}", RIGHT)
    done = played(compiled(), model)
    (trajectory,) = done.trajectories
    assert (trajectory.reward, trajectory.action) == (1.0, "3 + 4")
    first, last = model.requests
    assert [tool.name for tool in first.tools] == ["add"]
    assert [message["role"] for message in last.messages] == ["user", "assistant", "tool"]
    assert last.messages[1]["content"] == "Let me see."
    assert last.messages[2] == {"role": "tool", "name": "add", "content": "7"}
    assert log == ["open", "add 3 4", "close"]


def test_each_call_is_a_step_that_goes_on_from_the_one_before(compiled: Callable[..., Plan]) -> None:
    model = script(call("add", a=1, b=2), call("add", a=3, b=4), RIGHT)
    (trajectory,) = played(compiled(), model).trajectories
    steps = trajectory.steps
    assert [step.metadata["call"] for step in steps] == [1, 2, 3]
    assert [step.done for step in steps] == [False, False, True]
    assert [step.reward for step in steps] == [0.0, 0.0, 1.0]
    assert [step.action for step in steps] == [None, None, "3 + 4"]
    assert [step.metadata.get("calls") for step in steps] == [[{"name": "add"}], [{"name": "add"}], None]
    assert model.requests[0].continues is None
    for before, step, request in zip(steps[:-1], steps[1:], model.requests[1:], strict=True):
        so_far = (*before.prompt_ids, *before.response_ids)
        assert request.continues == ChatPrefix(so_far, len(before.chat_completions))
        assert tuple(step.prompt_ids[: len(so_far)]) == so_far
        assert step.chat_completions[: len(before.chat_completions)] == before.chat_completions


def test_each_call_has_its_own_seed_and_its_own_retries(compiled: Callable[..., Plan]) -> None:
    def answer(request: Request) -> str:
        if request.id.attempt == 0:
            raise ModelError("a slip")
        return call("add", a=3, b=4) if request.id.call == 1 else RIGHT

    model = Caller(answer)
    done = played(compiled("roles.agent.on_failure.retry=1"), model, seed=5)
    assert [(r.id.call, r.id.attempt) for r in model.requests] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert len({request.seed for request in model.requests}) == 4
    assert [step.metadata["attempts"] for step in done.trajectories[0].steps] == [2, 2]


def test_the_last_call_is_parsed_as_it_stands(compiled: Callable[..., Plan]) -> None:
    model = script(call("add", a=3, b=4), f"{RIGHT} {call('add', a=1, b=1)}")
    (trajectory,) = played(compiled(calls=2), model).trajectories
    assert trajectory.reward == 1.0
    assert log == ["open", "add 3 4", "close"]
    assert trajectory.steps[-1].chat_completions[-1]["tool_calls"][0]["function"]["name"] == "add"


def test_several_calls_of_one_answer_have_their_results_in_order(compiled: Callable[..., Plan]) -> None:
    model = script(call("add", a=1, b=2) + call("add", a=3, b=4), RIGHT)
    played(compiled(), model)
    assert results(model) == ["3", "7"]


@pytest.mark.parametrize(
    ("reward", "pays"),
    [
        ("{tool_calls: {over: 2}}", 1.0),
        ("{tool_calls: {over: 3}}", 0.0),
        ("{tool_calls: {under: 4}}", 1.0),
        ("{tool_calls: {over: 1, under: 3, name: add}}", 1.0),
        ("{tool_calls: {over: 0, failed: true}}", 1.0),
        ("{tool_calls: {under: 1, failed: true, name: add}}", 1.0),
        ("{sum: {right: countdown, many: {reward: {tool_calls: {over: 2}}, weight: -0.5}}}", 0.5),
    ],
)
def test_a_reward_counts_the_calls_whose_results_came(
    reward: str, pays: float, compiled: Callable[..., Plan]
) -> None:
    """Leave the fourth call out: no model call was left to read its result."""
    both = call("add", a=1, b=2) + call("add", a=3, b=4)
    model = script(both, call("fail", how="error"), f"{RIGHT} {call('add', a=1, b=1)}")
    plan = compiled(f"roles.agent.reward={reward}", offered="[test_add, test_fail]", calls=3)
    assert played(plan, model).trajectories[0].reward == pays


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (call("ad", a=1), "Error: there is no tool 'ad'; there is add, fail; did you mean 'add'?"),
        (
            call("add", a="x", b=1),
            "Error: add does not take these arguments at $.a: 'x' is not of type 'number'",
        ),
        (call("add", a=1), "Error: add does not take these arguments: 'b' is a required property"),
        (
            '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
            "Error: the arguments of add are not the JSON of an object: '[1]'",
        ),
        (
            "<tool_call>add 1 2</tool_call>",
            "Error: this call cannot be read: 'add 1 2'; expected a tool's name, and arguments as JSON",
        ),
        (call("fail", how="error"), "Error: no such page"),
        (call("fail", how="bug"), "Error: ZeroDivisionError: integer division or modulo by zero"),
        (call("fail", how="never"), "Error: fail gave no result within 0.01 s"),
    ],
)
def test_what_goes_wrong_is_said_to_the_model(asked: str, said: str, compiled: Callable[..., Plan]) -> None:
    model = script(asked, RIGHT)
    done = played(compiled("roles.agent.timeout=0.01", offered="[test_add, test_fail]"), model)
    assert results(model) == [said]
    assert done.trajectories[0].reward == 1.0
    (noted,) = done.trajectories[0].steps[0].metadata["calls"]
    assert f"Error: {noted['error']}" == said


def test_a_mistake_of_the_person_s_ends_the_run(compiled: Callable[..., Plan]) -> None:
    with pytest.raises(UsageError, match="pip install it"):
        played(compiled(offered="[test_fail]"), script(call("fail", how="mistake")))
    assert log == ["open", "close"]


def test_a_tool_that_cannot_be_opened_is_a_named_failure_and_is_tried_again(
    compiled: Callable[..., Plan],
) -> None:
    model = script(RIGHT)
    done = played(compiled("roles.agent.on_failure.retry=1", offered="[test_down]"), model)
    (trajectory,) = done.trajectories
    assert trajectory.failure is not None
    assert trajectory.failure.name is FailureName.TOOL_ERROR
    assert trajectory.failure.message == "the server is down"
    assert (model.requests, trajectory.steps, log) == ([], [], ["refused"] * 2)


def test_a_turn_that_fails_later_keeps_the_steps_that_it_had(compiled: Callable[..., Plan]) -> None:
    def answer(request: Request) -> str:
        if request.id.call == 2:
            raise ModelError("gone")
        return call("add", a=3, b=4)

    (trajectory,) = played(compiled(), Caller(answer)).trajectories
    assert trajectory.failure is not None
    assert trajectory.reward == 0.0
    assert [(step.done, step.reward) for step in trajectory.steps] == [(True, 0.0)]


def test_a_tool_is_opened_once_for_all_instances_and_not_without_need(compiled: Callable[..., Plan]) -> None:
    played(compiled(count=3), script(call("add", a=3, b=4), RIGHT))
    assert log == ["open", "add 3 4", "add 3 4", "add 3 4", "close"]


def test_two_tools_of_one_name_are_told_apart(compiled: Callable[..., Plan]) -> None:
    model = script(call("add_2", a=3, b=4), RIGHT)
    played(compiled(offered="[test_add, test_add]"), model)
    assert [tool.name for tool in model.requests[0].tools] == ["add", "add_2"]
    assert results(model) == ["7"]


def test_a_cancelled_episode_closes_its_tools(compiled: Callable[..., Plan]) -> None:
    plan = compiled(offered="[test_fail]")
    model = script(call("fail", how="never"))

    async def run() -> None:
        global waits
        waits = asyncio.Event()
        running = asyncio.create_task(episode(plan, limited(plan, model)))
        await waits.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())
    assert log == ["open", "close"]


def test_a_recording_gives_every_call_back(compiled: Callable[..., Plan], tmp_path: Path) -> None:
    plan = compiled()
    before = played(
        plan, script(call("add", a=1, b=2) + "<tool_call>?</tool_call>", call("add", a=3, b=4), RIGHT)
    )
    write_episodes(tmp_path / "episodes.jsonl", [before])
    log.clear()
    replay = Replay.from_episodes(read_episodes(tmp_path / "episodes.jsonl"))
    again = asyncio.run(episode(plan, [LimitedModel(replay, 8)]))
    assert log == ["open", "add 1 2", "add 3 4", "close"]

    def timeless(done: Episode) -> Any:
        shape = done.to_dict()
        del shape["info"]["started_at"]
        for trajectory in shape["trajectories"]:
            for step in trajectory["steps"]:
                del step["info"]["started"], step["info"]["seconds"]
        return json.loads(json.dumps(shape))

    assert timeless(again) == timeless(before)


@pytest.mark.parametrize(
    ("offered", "calls", "said"),
    [
        ("[test_choose]", 2, "test_choose picks from a role's inputs and cannot be called by a model"),
        ('[{test_asked: "{{ task.question }}"}]', 2, "the model sets the argument of test_asked"),
        ("[]", 2, "agent has no tools, so a turn calls its model once"),
        ("[{test_add: {speed: 3}}]", 2, "has no option 'speed'"),
    ],
)
def test_what_cannot_be_a_tool_of_a_turn_is_a_fault(
    offered: str, calls: int, said: str, compiled: Callable[..., Plan]
) -> None:
    with pytest.raises(ValueError, match=said):
        compiled(offered=offered, calls=calls)


def test_a_tool_alone_stands_for_a_list_of_one(compiled: Callable[..., Plan]) -> None:
    alone, listed = (compiled(offered=offered).roles[0] for offered in ("test_add", "[test_add]"))
    assert alone.spec.tools == listed.spec.tools
    assert len(alone.tools) == len(listed.tools) == 1


def test_nobody_opens_a_tool_for_a_role_without(compiled: Callable[..., Plan]) -> None:
    plan = compiled(offered="[]", calls=1)
    done = asyncio.run(episode(plan, limited(plan, ScriptedModel(lambda _: RIGHT)), COUNTDOWN))
    assert done.trajectories[0].reward == 1.0
    assert "call" not in done.trajectories[0].steps[0].metadata
    assert log == []


def test_a_reward_may_count_the_calls(compiled: Callable[..., Plan]) -> None:
    model = script(call("add", a=1, b=2), call("ad"), RIGHT)
    plan = compiled("roles.agent.reward={tool_calls: {over: 1}}", "roles.agent.estimator=null")
    assert played(plan, model).trajectories[0].reward == 1.0
    failing = compiled(
        "roles.agent.reward={tool_calls: {over: 1, failed: true}}", "roles.agent.estimator=null"
    )
    assert played(failing, script(call("add", a=1, b=2), call("ad"), RIGHT)).trajectories[0].reward == 0.0


def test_what_a_tool_says_that_it_takes_is_checked_for_so_much_work_and_no_more() -> None:
    twice = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/l0", "$defs": {**twice, "l40": {}}}
    function = FAIL._replace(parameters=schema)
    asked = ToolCall("fail", {"how": "error"})
    (result,) = asyncio.run(call_all({"fail": function}, [asked], None))
    assert result.message["content"].endswith("(limit: schema_work)")
    loop = FAIL._replace(parameters={"unevaluatedProperties": False, "$ref": "#"})
    (result,) = asyncio.run(call_all({"fail": loop}, [asked], None))
    assert "beyond what the schema can check" in result.message["content"]
