"""Tests of `memory: {chat: NAME}`: one conversation that several roles keep, in and out of loops."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import Plan, check_file
from rolegraph.engine.models import Request
from rolegraph.engine.records import Advantage, Episode, NodeId, Trajectory
from rolegraph.engine.training.policies.batches import build_datum, step_advantages, token_sequences
from tests.edge import ScriptedModel, decided, run_one, turn_dag, write_spec
from tests.run.test_memory import SUM, Calling, Counted, contents
from tests.run.written import Roles, plan, said, show, whose

CTO: dict[str, Any] = {"memory": {"chat": "cto"}}
FIX = {"fix": {"roles": ["coder", "review"], "times": 2}}


def office() -> Roles:
    """Return a CTO who designs, reviews twice what a coder writes, and closes."""
    return {
        "design": {**CTO, "prompt": "design"},
        "coder": {"needs": ["design"], "prompt": f"code {show('design')}"},
        "review": {
            **CTO,
            "needs": ["coder"],
            "prompt": f"review {{{{ self.round }}}} {show('coder')}",
        },
        "close": {**CTO, "needs": ["review"], "prompt": "close"},
    }


def asked_of(model: ScriptedModel, *roles: str) -> dict[NodeId, list[str]]:
    return {r.id.node: contents(r) for r in model.requests if r.id.node.role in roles}


def test_roles_keep_one_conversation_before_in_and_after_a_loop(tmp_path: Path) -> None:
    model = ScriptedModel(whose)
    run_one(plan(tmp_path, office(), FIX), model)
    turns = [("design", "design1.1", 1), ("review 1 coder1.1 ", "review1.1", 1)]
    turns += [("review 2 coder1.2 ", "review1.2", 2), ("close", "close1.1", 1)]
    chat: list[str] = []
    expected: dict[NodeId, list[str]] = {}
    for prompt, answer, number in turns:
        expected[NodeId(answer[:-3], 1, number)] = [*chat, prompt]
        chat += [prompt, said(answer)]
    assert asked_of(model, "design", "review", "close") == expected
    assert [*asked_of(model, "coder").values()] == [["code design1.1 "]] * 2, "the coder remembers nothing"


def test_each_instance_has_a_conversation_and_system_is_written_once(tmp_path: Path) -> None:
    same = {"count": 2, "system": "you are {{ self.index }}", **CTO}
    roles: Roles = {"a": {**same, "prompt": "one"}, "b": {**same, "needs": ["a"], "prompt": "two"}}
    model = ScriptedModel(lambda request: "" if skips(request) else whose(request))
    run_one(plan(tmp_path, {**roles, "a": {**roles["a"], "when": "self.index == 1"}}), model)
    assert asked_of(model, "b") == {
        NodeId("b", 1, 1): ["you are 1", "one", said("a1.1"), "two"],
        NodeId("b", 2, 1): ["you are 2", "two"],
    }, "a skipped turn leaves nothing, and the next has the system message"


def skips(request: Request) -> bool:
    return request.id.node.role == "b"


def test_a_turn_waits_for_the_conversation_and_for_nothing_else_of_it(tmp_path: Path) -> None:
    """Read the DAG: the second round of one role waits for the first round of the other."""
    roles: Roles = {
        "ask": {**CTO, "prompt": "ask"},
        "reply": {**CTO, "needs": ["ask"], "prompt": "reply"},
    }
    dag = turn_dag(plan(tmp_path, roles, {"talk": {"roles": ["ask", "reply"], "times": 3}}))
    turns = [NodeId(role, 1, number) for number in (1, 2, 3) for role in ("ask", "reply")]
    assert {*dag.edges} == {*pairwise(turns)}


def test_a_conversation_goes_through_an_inner_loop_in_each_outer_round(tmp_path: Path) -> None:
    roles: Roles = {
        "ask": {**CTO, "prompt": "ask"},
        "reply": {**CTO, "needs": ["ask"], "prompt": "reply"},
        "close": {**CTO, "needs": ["reply"], "prompt": "close"},
    }
    talk = {"talk": {"roles": ["ask", "reply"], "times": 2}, "day": {"roles": ["talk", "close"], "times": 2}}
    model = ScriptedModel(whose)
    run_one(plan(tmp_path, roles, talk), model)
    nodes = [f"{node.role}.{node.round}" for node in (request.id.node for request in model.requests)]
    assert " ".join(nodes) == ("ask.1 reply.1 ask.2 reply.2 close.1 ask.3 reply.3 ask.4 reply.4 close.2")
    assert [len(request.messages) for request in model.requests] == [*range(1, 20, 2)]


def test_tokens_and_calls_of_one_role_continue_those_of_the_other(tmp_path: Path) -> None:
    own = {**CTO, "tools": ["calculator"], "max_calls": 2, "parser": "text"}
    roles: Roles = {"a": {**own, "prompt": "one"}, "b": {**own, "needs": ["a"], "prompt": "two"}}
    model = Calling()
    done = run_one(plan(tmp_path, roles), model)
    assert contents(model.requests[2]) == ["one", "", "7", "it is 7", "two"]
    before = done["a"][0].steps[-1]
    assert (*done["b"][0].steps[0].prompt_ids[:4],) == (*before.prompt_ids, *before.response_ids)[:4]
    assert SUM not in contents(model.requests[2])


def talk(folder: Path) -> tuple[Plan, Episode]:
    roles: Roles = {
        "ask": {**CTO, "prompt": "ask"},
        "reply": {**CTO, "needs": ["ask"], "prompt": "reply"},
    }
    made = plan(folder, roles, {"talk": {"roles": ["ask", "reply"], "times": 3}})
    return made, run_one(made, Counted())  # pyright: ignore[reportArgumentType]


def test_each_role_learns_its_own_turns_of_a_conversation_in_one_datum(tmp_path: Path) -> None:
    """Give every sampled token its turn's advantage, and the other role's tokens none."""
    made, done = talk(tmp_path)
    length = len(done["reply"][0].steps[-1].prompt_ids) + 2
    for name, first in (("ask", 2), ("reply", 6)):
        trajectory = weighted(done[name][0], 1.0)
        steps = step_advantages(done, trajectory, made.trained[name])
        (sequence,) = token_sequences(steps)
        datum, spans = build_datum(sequence, "importance_sampling", 1.0)
        tokens = [*trajectory.steps[-1].prompt_ids, *trajectory.steps[-1].response_ids]
        assert datum.loss_fn_inputs["target_tokens"].tolist() == tokens[1:]
        assert len(tokens) == length - (0 if name == "reply" else 4)
        own = {place for start in (first, first + 8, first + 16) for place in (start - 1, start)}
        advantages = datum.loss_fn_inputs["advantages"].tolist()
        assert {place for place, value in enumerate(advantages) if value} == own
        assert [span.start for span in spans] == [first - 1, first + 7, first + 15]


def weighted(trajectory: Trajectory, advantage: Advantage) -> Trajectory:
    return trajectory._replace(steps=tuple(s._replace(advantage=advantage) for s in trajectory.steps))


def faults(
    folder: Path, roles: dict[str, Any], loops: dict[str, Any] | None = None, **more: Any
) -> list[str]:
    learns = {"prompt": "{{ task.question }}"}
    spec = {
        "rolegraph": 2,
        "name": "x",
        "data": {"train": "countdown"},
        "roles": {name: {**learns, **role} for name, role in roles.items()},
        "loops": loops or {},
        **more,
    }
    found = check_file(write_spec(folder, yaml.safe_dump(decided(spec), sort_keys=False)), allow=["python"])
    return [d.message for d in found.diagnostics if d.severity == "error"]


@pytest.mark.parametrize(
    ("key", "mine", "theirs"),
    [
        ("count", 1, 2),
        ("sees", [], ["solution"]),
        ("policy", "main", "other"),
        ("model", None, "openai:x"),
        ("system", None, "s"),
        ("tools", [], ["calculator"]),
    ],
)
def test_roles_that_keep_one_conversation_are_of_one_kind(
    key: str, mine: object, theirs: object, tmp_path: Path
) -> None:
    calls = {"max_calls": 2} if key == "tools" else {}
    roles = {"a": {**CTO, key: mine}, "b": {**CTO, "needs": ["a"], **calls, key: theirs}}
    (fault,) = faults(tmp_path, roles, policies={"other": {}} if key == "policy" else {})
    assert fault == f"a and b keep one conversation, and do not have the same `{key}`"


def test_turns_without_an_order_and_a_conversation_of_one_turn_are_faults(tmp_path: Path) -> None:
    loop = {"talk": {"roles": ["a", "b"], "times": 2}}
    unordered = "a and b keep one conversation, and neither waits for the other"
    assert faults(tmp_path, {"a": CTO, "b": CTO}) == [unordered]
    assert faults(tmp_path, {"a": CTO, "b": {**CTO, "needs": {"a": "previous"}}}, loop) == [unordered]
    assert faults(tmp_path, {"a": CTO, "b": {**CTO, "needs": ["a"]}}, loop) == []
    alone = "a is in no loop, so it has one turn and nothing to remember"
    assert faults(tmp_path, {"a": CTO, "b": {"needs": ["a"], "memory": {"chat": "other"}}}) == [
        alone,
        alone.replace("a is", "b is"),
    ]
    assert faults(tmp_path, {"a": CTO}, {"talk": {"roles": ["a"], "times": 2}}) == []
