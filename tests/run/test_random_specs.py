"""Tests of random specs on a stub model: each turn and its time match the definition of the language."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rolegraph.engine.compile import size_of
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import CallId, Episode, NodeId
from tests.clock import run_virtually
from tests.edge import ScriptedModel, episode, limited
from tests.examples import examples
from tests.meaning import expected
from tests.workflows import CALLEE, TOKENS, Workflow, compiled, workflows

SUM = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 4"}}</tool_call>'


def tool_calls(workflow: Workflow, id: CallId) -> str:
    """Return an answer that calls the tools of a turn's role."""
    asks = workflow.asks(id.node, id.call)
    calls = [{"name": CALLEE, "arguments": {"about": about}} for about in asks]
    uses_tools = "calculator" in workflow.roles[id.node.role]["tools"]
    return (SUM if uses_tools else "") + "".join(
        f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls
    )


class Caller(ScriptedModel):
    """Scripted model that parses tool calls in the base model's syntax."""

    async def complete(self, request: Request) -> Completion:
        text, calls = HERMES.find((await super().complete(request)).text)
        return Completion(text, calls=calls, usage={"completion_tokens": TOKENS})


@examples(500)
@given(workflows())
def test_every_turn_is_taken_failed_or_skipped_once_as_the_language_says(workflow: Workflow) -> None:
    compare(workflow)


@examples(150)
@given(workflows(chats=True))
def test_roles_keep_one_conversation_as_the_language_says(workflow: Workflow) -> None:
    compare(workflow)


@examples(200)
@given(workflows(forks=True))
def test_conversations_fork_and_begin_anew_as_the_language_says(workflow: Workflow) -> None:
    compare(workflow)


def compare(workflow: Workflow) -> None:
    """Run a workflow, and compare its turns, messages and time with the definition of the language."""
    plan, meant = compiled(workflow), expected(workflow)
    asked: dict[NodeId, list[str]] = {}
    attempts: Counter[NodeId] = Counter()

    def answer(request: Request) -> str:
        node = request.id.node
        attempts[node] += 1
        if request.id.call == 1:
            asked[node] = [message["content"] for message in request.messages]
        action = workflow.action(node)
        if action is None:
            raise ModelError("now and then")
        return action if request.id.call > workflow.uses(node) else tool_calls(workflow, request.id)

    model = Caller(answer, lambda request: workflow.latency(request.id.node))
    done, seconds = run_virtually(episode(plan, limited(plan, model)))

    taken = {node: turn for node, turn in meant.turns.items() if turn is not None}
    assert {node.id for node in plan.nodes} == meant.turns.keys()
    assert asked == meant.prompts, "each is asked once all that it sees is there, and is shown that"
    assert attempts == {node: workflow.attempts(node) for node in taken if node in meant.prompts}
    steps = [(NodeId(t.name, t.index, step.round), step) for t in done.trajectories for step in t.steps]
    answered = {node: step.action for node, step in steps if step.done}
    assert answered == {
        node: turn.action for node, turn in taken.items() if not turn.failed or workflow.runs(node.role)
    }, "why a vote failed is what it came to"
    failed = {NodeId(f["role"], f["index"], f.get("round", 1)) for f in done.metadata.get("failures", ())}
    assert failed == {node for node, turn in taken.items() if turn.failed}
    assert ("uncomputed_conditions" in done.metadata) == (meant.uncomputed > 0)
    assert seconds == meant.seconds, "no longer than the critical path"

    size, calls = size_of(plan), Counter({node: workflow.uses(node) + 1 for node in asked})
    assert calls.total() <= size.calls
    bound = sum(workflow.roles[node.role].get("max_calls", 1) for node in asked)
    assert plan.may_skip or bound == size.calls


@examples(200)
@given(workflows(), st.integers(1, 1000))
def test_turns_and_seeds_are_the_same_in_whatever_order_calls_are_answered(
    workflow: Workflow, salt: int
) -> None:
    plan, hurried = compiled(workflow), replace(workflow, salt=salt)

    def run(timing: Workflow) -> tuple[Episode, dict[CallId, tuple[object, object]]]:
        def answer(request: Request) -> str:
            action = workflow.action(request.id.node)
            if action is None:
                raise ModelError("now and then")
            uses = workflow.uses(request.id.node)
            return action if request.id.call > uses else tool_calls(workflow, request.id)

        model = Caller(answer, lambda request: timing.latency((request.id, timing.salt)))
        done, _ = run_virtually(episode(plan, limited(plan, model), seed=3))
        return done, {request.id: (request.seed, request.messages) for request in model.requests}

    (one, asked), (other, asked_too) = run(workflow), run(hurried)
    assert asked == asked_too
    assert [(t.uid, [step.action for step in t.steps]) for t in one.trajectories] == [
        (t.uid, [step.action for step in t.steps]) for t in other.trajectories
    ]


@examples(300)
@given(workflows(), st.data())
def test_a_reward_reads_the_turns_of_other_roles_that_the_language_says(
    workflow: Workflow, data: st.DataObject
) -> None:
    names = [name for name in workflow.roles if name != CALLEE]
    reader = data.draw(st.sampled_from(names))
    others = [name for name in names if name != reader]
    assume(others)
    one, other = data.draw(st.sampled_from(others)), data.draw(st.sampled_from(others))
    counted = f"10000 * count({one}) + 100 * sum({one}.index) + count({one}, where={one}.ok)"
    workflow.roles[reader]["reward"] = f"{counted} + 0.01 * sum({one}.index * count({other}))"
    plan, meant = compiled(workflow), expected(workflow)

    def answer(request: Request) -> str:
        action = workflow.action(request.id.node)
        if action is None:
            raise ModelError("now and then")
        return (
            action if request.id.call > workflow.uses(request.id.node) else tool_calls(workflow, request.id)
        )

    done, _ = run_virtually(episode(plan, limited(plan, Caller(answer))))
    earned: dict[NodeId, float] = {}
    for node, read in meant.beside.items():
        turn = meant.turns[node]
        if node.role == reader and turn is not None and not turn.failed:
            found, near = read[one], [it.id.index for it in read[other]]
            beside = [sum(n in meant.branch(it.id, other) for n in near) for it in found]
            indexed = [it.id.index for it in found]
            ok = sum(not it.failed for it in found)
            paired = sum(
                index * (1 if one == other else count) for index, count in zip(indexed, beside, strict=True)
            )
            earned[node] = 10_000 * len(found) + 100 * sum(indexed) + ok + 0.01 * paired
    taken = [
        (NodeId(t.name, t.index, step.round), step)
        for t in done.trajectories
        if t.name == reader
        for step in t.steps
        if step.done or workflow.runs(reader)
    ]
    assert {node: step.reward for node, step in taken if node in earned} == pytest.approx(earned)
