"""Tests of roles that other roles call as tools: instances, results, rewards, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan, compile_file, size_of
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import Episode, TerminationReason
from rolegraph.outlook.preview import preview_task
from rolegraph.pages.drawing.mermaid import mermaid
from rolegraph.pages.drawing.picture import picture_of
from rolegraph.pages.view.timeline import read_dag, timeline
from rolegraph.pages.view.turns import turns
from tests.clock import run_virtually
from tests.edge import COUNTDOWN, RIGHT, WRONG, ScriptedModel, decided, episode, limited, write_spec

SPEC: dict[str, Any] = {
    "searcher": {
        "callable": {"describe": "Answers a question.", "arguments": {"question": "string"}},
        "prompt": "Q: {{ self.arguments.question }}",
        "parser": {"regex": "(.+)"},
        "reward": "lead.reward",
        "estimator": "grpo",
    },
    "lead": {
        "prompt": "{{ task.question }}",
        "tools": [{"role": "searcher", "parallel": 2}],
        "max_calls": 3,
        "parser": {"tag": "answer"},
        "reward": "countdown",
        "estimator": "grpo",
    },
}


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Plan]:
    def make(*overrides: str, loops: object = None, **further: object) -> Plan:
        roles = {name: role for name, role in {**SPEC, **further}.items() if role is not None}
        spec = {"rolegraph": 2, "name": "called", "roles": roles, "data": {"train": "countdown"}}
        return compile_file(
            write_spec(tmp_path, json.dumps(decided(spec | {"loops": loops or {}}))), overrides
        )

    return make


def ask(*questions: Any, name: str = "searcher") -> str:
    calls = [{"name": name, "arguments": {"question": question}} for question in questions]
    return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


class Caller(ScriptedModel):
    """Scripted model that parses tool calls from its answers."""

    async def complete(self, request: Request) -> Completion:
        text, calls = HERMES.find((await super().complete(request)).text)
        return Completion(text, calls=calls, usage={"completion_tokens": 3})


def no_time(request: Request) -> float:
    return 0.0


def scripted(*leads: str, latency: Callable[[Request], float] = no_time) -> Caller:
    """Make a model whose lead gives these answers, call by call, and whose searcher answers in capitals."""

    def answer(request: Request) -> str:
        if request.id.node.role == "lead":
            return leads[request.id.call - 1]
        return str(request.messages[-1]["content"]).removeprefix("Q: ").upper()

    return Caller(answer, latency)


def run(plan: Plan, model: ScriptedModel, seed: int | None = None) -> Episode:
    return asyncio.run(episode(plan, limited(plan, model), seed=seed))


def results(model: ScriptedModel, role: str = "lead", index: int = 1) -> Sequence[str]:
    """Return the results of calls in the last prompt of a role instance."""
    last = [it for it in model.requests if it.id.node[:2] == (role, index)][-1]
    return [message["content"] for message in last.messages if message["role"] == "tool"]


def test_each_call_is_a_trajectory_numbered_by_answer_and_place(compiled: Callable[..., Plan]) -> None:
    model = scripted(ask("a"), ask("b", "c"), RIGHT)
    plan = compiled()
    done = run(plan, model, seed=1)
    assert results(model) == ["A", "B", "C"]
    assert [(t.index, t.steps[0].action) for t in done["searcher"]] == [(1, "A"), (3, "B"), (4, "C")]
    assert {t.reward for t in done["searcher"]} == {1.0}, "what its caller earned"
    (lead,) = done["lead"]
    assert [step.metadata.get("calls") for step in lead.steps] == [
        [{"name": "searcher"}],
        [{"name": "searcher"}, {"name": "searcher"}],
        None,
    ]
    offered = model.requests[0].tools[0]
    assert (offered.name, offered.description) == ("searcher", "Answers a question.")
    assert len({request.seed for request in model.requests}) == len(model.requests)
    size = size_of(plan)
    assert (size.calls, size.chain) == (3 + 4, 3 + 2)


def test_an_argument_is_checked_against_its_schema(compiled: Callable[..., Plan]) -> None:
    schema = {"type": "string", "description": "A letter.", "enum": ["a", "b"]}
    plan = compiled(f"roles.searcher.callable.arguments.question={json.dumps(schema)}")
    model = scripted(ask("a", "c", 1), RIGHT)
    run(plan, model)
    assert model.requests[0].tools[0].parameters["properties"] == {"question": schema}
    first, *others = results(model)
    assert first == "A"
    assert all("does not take these arguments at $.question" in it for it in others) and len(others) == 2


def test_a_caller_that_calls_nothing_skips_the_callee(compiled: Callable[..., Plan]) -> None:
    reader = {
        "needs": {"searcher": "each"},
        "prompt": "{{ searcher.action }}",
    }
    done = run(compiled(reader=reader), scripted(RIGHT))
    assert [t.name for t in done.trajectories] == ["lead"]
    assert done.metadata["skipped"] == {"searcher": 1.0, "reader": 1.0}


def test_a_role_that_is_called_does_not_decide_whether_an_episode_is_right(
    compiled: Callable[..., Plan],
) -> None:
    searcher = SPEC["searcher"]
    plan = compiled(searcher=None, last=searcher, lead=SPEC["lead"] | {"tools": [{"role": "last"}]})
    assert plan.deciding == ("lead",)


def test_further_calls_and_wrong_arguments_are_errors_as_results(compiled: Callable[..., Plan]) -> None:
    none = '<tool_call>{"name": "searcher", "arguments": {}}</tool_call>'
    model = scripted(ask("a", "b", "c"), ask(7) + none + ask("x", name="seacher"), RIGHT)
    done = run(compiled(), model)
    first, second, third, *wrong = results(model)
    assert (first, second) == ("A", "B")
    assert third == "Error: not called: an answer may call searcher 2 times"
    assert "7 is not of type 'string'" in wrong[0]
    assert "'question' is a required property" in wrong[1]
    assert "did you mean 'searcher'" in wrong[2]
    assert len(done["searcher"]) == 2


def test_a_failed_call_gives_the_name_of_its_failure_and_no_message(compiled: Callable[..., Plan]) -> None:
    def answer(request: Request) -> str:
        if request.id.node.role == "searcher":
            raise ModelError("the secret of the server")
        return ask("a") if request.id.call == 1 else RIGHT

    model = Caller(answer)
    done = run(compiled(), model)
    assert results(model) == ["Error: model_error"]
    assert done.is_correct
    assert [failure["role"] for failure in done.metadata["failures"]] == ["searcher"]


def test_a_call_that_ends_the_episode_stops_its_caller(compiled: Callable[..., Plan]) -> None:
    def answer(request: Request) -> str:
        if request.id.node.role == "searcher":
            raise ModelError("down")
        return ask("a")

    model = Caller(answer)
    done = run(compiled("roles.searcher.on_failure.then=fail"), model)
    assert done.termination_reason is TerminationReason.ERROR
    assert len(model.requests) == 2


def test_arguments_are_values_and_no_templates(compiled: Callable[..., Plan]) -> None:
    model = scripted(ask("{{ task.target }} {% if %}"), RIGHT)
    run(compiled(), model)
    (asked,) = [request for request in model.requests if request.id.node.role == "searcher"]
    assert asked.messages[-1]["content"] == "Q: {{ task.target }} {% if %}"


def test_the_timeout_of_a_call_is_the_callees_own(compiled: Callable[..., Plan]) -> None:
    def slow(request: Request) -> float:
        return 5.0 if request.id.node.role == "searcher" else 0.5

    def seconds(*overrides: str) -> tuple[Sequence[str], float]:
        plan = compiled("roles.lead.timeout=1", *overrides)
        model = scripted(ask("a"), RIGHT, latency=slow)
        _, taken = run_virtually(episode(plan, limited(plan, model)))
        return results(model), taken

    assert seconds() == (["A"], 6.0)
    assert seconds("roles.searcher.timeout=2") == (["Error: timeout"], 3.0)


def test_a_call_sees_what_its_caller_would_and_who_needs_it_waits(compiled: Callable[..., Plan]) -> None:
    note = {"prompt": "Note {{ self.index }}", "count": 2}
    lead = SPEC["lead"] | {"needs": {"note": "each"}}
    searcher = SPEC["searcher"] | {
        "needs": {"note": "branch"},
        "prompt": "Q: {{ self.arguments.question }} {{ note.response }} {{ self.lineage }}",
    }
    reader = {
        "needs": {"lead": "each", "searcher": "branch"},
        "prompt": "{{ searcher | map(attribute='action') | join(' ') }}",
    }

    def answer(request: Request) -> str:
        role, index, _ = request.id.node
        if role == "note":
            return f"note{index}"
        if role == "lead":
            return ask(f"from {index}") if request.id.call < 3 else RIGHT
        return str(request.messages[-1]["content"])

    model = Caller(answer)
    done = run(compiled(note=note, lead=lead, searcher=searcher, reader=reader), model)
    assert results(model, index=1) == ["Q: from 1 note1 (1, 1, 1)", "Q: from 1 note1 (1, 1, 3)"]
    assert results(model, index=2) == ["Q: from 2 note2 (2, 1, 1)", "Q: from 2 note2 (2, 1, 3)"]
    for index, reading in enumerate(done["reader"], 1):
        assert reading.steps[0].chat_completions[0]["content"] == " ".join(results(model, index=index))


@pytest.mark.parametrize("credit", ["turn", "trajectory"])
def test_a_call_earns_what_the_very_turn_that_called_it_earns(
    compiled: Callable[..., Plan], credit: str
) -> None:
    def answer(request: Request) -> str:
        role, _, round = request.id.node
        if role == "lead":
            return ask(f"{round}") if request.id.call == 1 else [WRONG, RIGHT][round % 2]
        return "found"

    plan = compiled(f"roles.lead.credit={credit}", loops={"talk": {"roles": ["lead"], "times": 3}})
    done = run(plan, Caller(answer))
    assert [(t.index, t.reward) for t in done["searcher"]] == [(1, 1.0), (5, 0.0), (9, 1.0)]


def test_a_caller_of_turns_earns_from_the_calls_of_each_turn(compiled: Callable[..., Plan]) -> None:
    searcher = SPEC["searcher"] | {"reward": "1 if 'good' in self.arguments.question else 0"}
    lead = SPEC["lead"] | {"reward": "mean(searcher.reward)", "credit": "turn"}

    def answer(request: Request) -> str:
        role, _, round = request.id.node
        if role == "lead":
            return ask("good", "bad" if round == 1 else "good") if request.id.call == 1 else RIGHT
        return "found"

    plan = compiled(searcher=searcher, lead=lead, loops={"talk": {"roles": ["lead"], "times": 2}})
    done = run(plan, Caller(answer))
    assert [step.reward for step in done["lead"][0].steps if step.done] == [0.5, 1.0]


def test_calls_of_two_callers_have_numbers_and_rewards_of_their_own(compiled: Callable[..., Plan]) -> None:
    other = SPEC["lead"] | {"reward": "0.25"}
    team = {
        "sum": {"lead": "(lead.reward if lead.ran else 0)", "other": "(other.reward if other.ran else 0)"}
    }
    searcher = SPEC["searcher"] | {"reward": team}

    def answer(request: Request) -> str:
        role, _, _ = request.id.node
        return "found" if role == "searcher" else ask(role) if request.id.call == 1 else RIGHT

    done = run(compiled(other=other, searcher=searcher), Caller(answer))
    assert [(t.index, t.reward) for t in done["searcher"]] == [(1, 1.0), (5, 0.25)]


def test_a_recorded_episode_is_replayed_with_its_calls(compiled: Callable[..., Plan]) -> None:
    plan = compiled()
    done = run(plan, scripted(ask("a", "b"), ask("c"), RIGHT))
    again = asyncio.run(episode(plan, limited(plan, Replay.from_episodes([done]))))
    assert [(t.uid, t.reward, [s.action for s in t.steps]) for t in again.trajectories] == [
        (t.uid, t.reward, [s.action for s in t.steps]) for t in done.trajectories
    ]


@pytest.mark.parametrize("sees", ["searcher", "lead"])
def test_validate_warns_of_a_label_that_a_call_or_its_result_passes_on(tmp_path: Path, sees: str) -> None:
    other = "lead" if sees == "searcher" else "searcher"
    roles = {
        name: {**role, "reward": "action == task.solution"} if name == other else {**role, "reward": "1"}
        for name, role in SPEC.items()
    }
    roles[sees] |= {"sees": "solution"}
    spec = {"rolegraph": 2, "name": "leaks", "roles": roles, "data": {"train": "countdown"}}
    checked = check_file(write_spec(tmp_path, json.dumps(decided(spec))))
    assert any(
        f"{sees} sees task.solution, and its words reach {other}" in found.message
        for found in checked.diagnostics
    )


def test_a_rating_by_the_caller_is_one_of_what_it_read(tmp_path: Path) -> None:
    roles = {**SPEC, "searcher": SPEC["searcher"] | {"reward": "number(lead.action)"}}
    roles["lead"] = SPEC["lead"] | {"parser": "number"}
    spec = {"rolegraph": 2, "name": "rated", "roles": roles, "data": {"train": "countdown"}}
    found = check_file(write_spec(tmp_path, json.dumps(decided(spec)))).diagnostics
    assert not [it for it in found if "does not read the answer" in it.message]


def test_group_keys_may_read_arguments(compiled: Callable[..., Plan]) -> None:
    searcher = SPEC["searcher"] | {"group": {"by": "self.arguments.question"}}
    done = run(compiled(searcher=searcher), scripted(ask("a", "b"), ask("a"), RIGHT))
    one, other, again = [t.steps[0].metadata["by"]["self.arguments.question"] for t in done["searcher"]]
    assert one == again != other
    assert COUNTDOWN["id"] not in (one, other)


def test_a_preview_calls_each_role_once_with_arguments_by_name(compiled: Callable[..., Plan]) -> None:
    found = asyncio.run(preview_task(compiled(), COUNTDOWN))
    searcher, lead = found.roles
    assert [it.messages[-1]["content"] for it in searcher.asked] == ["Q: [lead: question]"]
    assert searcher.facts["called by"] == "lead; at most 4 calls"
    assert lead.facts["tools"] == "searcher; at most 3 calls of the model"
    first, second = lead.asked
    assert second.messages[-1] == {"role": "tool", "name": "searcher", "content": "[searcher 1]"}
    assert [function.name for function in first.functions] == ["searcher"]


def test_a_graph_has_an_arrow_for_calls(compiled: Callable[..., Plan]) -> None:
    drawn = mermaid(picture_of(compiled().spec))
    assert 'r1 -->|"calls"| r0' in drawn
    assert "called, at most 4 times" in drawn


def test_a_time_line_shows_the_calls_that_were_made_within_their_caller(
    compiled: Callable[..., Plan],
) -> None:
    plan = compiled()
    model = scripted(ask("a", "b"), RIGHT, latency=lambda request: 1.0)
    done, _ = run_virtually(episode(plan, limited(plan, model)))
    line = timeline(read_dag(plan.spec, {}), turns(done), frozenset({"searcher"}))
    assert [lane.name for lane in line.lanes] == ["searcher 1", "searcher 2", "lead"]
    *calls, lead = [bar for lane in line.lanes for bar in lane.bars]
    assert all(lead.start < bar.start < bar.end < lead.end for bar in calls)
    assert not line.joins
    assert line.order[0].role == "lead"


@pytest.mark.parametrize("first", [1.0, 9.0])
def test_turns_seeds_and_groups_do_not_depend_on_which_call_ends_first(
    compiled: Callable[..., Plan], first: float
) -> None:
    searcher = SPEC["searcher"] | {"group": {"by": "self.arguments.question"}}
    plan = compiled(searcher=searcher, lead=SPEC["lead"] | {"count": 2})

    def took(late: Callable[[Request], float]) -> Any:
        model = scripted(ask("a", "b"), ask("b", "a"), RIGHT, latency=late)
        done, _ = run_virtually(episode(plan, limited(plan, model), seed=5))
        keys = [(t.uid, t.reward, t.steps[0].metadata.get("by")) for t in done.trajectories]
        return keys, {request.id: (request.seed, request.messages) for request in model.requests}

    def late(request: Request) -> float:
        return {1: first, 2: 3.0}.get(request.id.node.index, 1.0)

    assert took(late) == took(no_time)
