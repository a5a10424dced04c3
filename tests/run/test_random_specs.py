"""Random specs on a stub model: what happens is what the language says, turn by turn and to the second."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings

from engine.compile import size_of
from engine.errors import ModelError
from engine.models import Request
from engine.records import NodeId
from tests.clock import run_virtually
from tests.edge import ScriptedModel, episode, limited
from tests.workflows import Workflow, compiled, expected, workflows


@settings(max_examples=500)
@given(workflows())
def test_every_turn_is_taken_failed_or_skipped_once_as_the_language_says(workflow: Workflow) -> None:
    plan, meant = compiled(workflow), expected(workflow)
    asked: dict[NodeId, str] = {}
    attempts: Counter[NodeId] = Counter()

    def answer(request: Request) -> str:
        node = request.id.node
        attempts[node] += 1
        asked[node] = request.messages[0]["content"]
        action = workflow.action(node)
        if action is None:
            raise ModelError("now and then")
        return action

    model = ScriptedModel(answer, lambda request: workflow.latency(request.id.node))
    done, seconds = run_virtually(episode(plan, limited(plan, model)))

    taken = {node: turn for node, turn in meant.turns.items() if turn is not None}
    assert {node.id for node in plan.nodes} == meant.turns.keys()
    assert asked == meant.prompts, "each is asked once all that it sees is there, and is shown that"
    assert attempts == {node: workflow.attempts(node) for node in taken}
    answered = {
        NodeId(t.name, t.index, step.round): step.action for t in done.trajectories for step in t.steps
    }
    assert answered == {node: turn.action for node, turn in taken.items() if not turn.failed}
    failed = {NodeId(f["role"], f["index"], f.get("round", 1)) for f in done.metadata.get("failures", ())}
    assert failed == {node for node, turn in taken.items() if turn.failed}
    assert ("uncomputed_conditions" in done.metadata) == (meant.uncomputed > 0)
    assert seconds == max(meant.settled.values()), "no longer than the critical path"

    size = size_of(plan)
    assert len(taken) <= size.calls
    assert plan.may_skip or len(taken) == size.calls
