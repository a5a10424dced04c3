"""Random specs under rLLM's own engine: the turns are those of an episode that runs here."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

from hypothesis import assume, given
from hypothesis import strategies as st

from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import WITHHELD
from rolegraph.integrations.rllm import compile_workflow
from tests.edge import ScriptedModel, episode, limited
from tests.examples import examples
from tests.integrations.rllm.edge import RecordedEngine, run_all
from tests.workflows import CALLEE, TOKENS, Workflow, compiled, workflows

pytestmark = pytest.mark.rllm


def said(workflow: Workflow, messages: Sequence[Any], offered: Sequence[str]) -> str:
    """Return an answer that follows from the messages alone: an action, a call of a tool or a failure."""
    texts = [(message["role"], message["content"]) for message in messages]
    drawn = zlib.crc32(f"{workflow.salt} {texts}".encode())
    if drawn % 7 == 0:
        raise ModelError("now and then")
    if offered and messages[-1]["role"] != "tool" and drawn % 3:
        name = offered[drawn % len(offered)]
        arguments = {"about": f"{drawn}"} if name == CALLEE else {"expression": "3 + 4"}
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    return "xyz"[drawn % 3]


class Here(ScriptedModel):
    """Model of an episode that runs here."""

    def __init__(self, workflow: Workflow) -> None:
        super().__init__(lambda request: said(workflow, request.messages, [f.name for f in request.tools]))

    async def complete(self, request: Request) -> Completion:
        text, calls = HERMES.find((await super().complete(request)).text)
        return Completion(text, calls=calls, usage={"completion_tokens": TOKENS})


class There(RecordedEngine):
    """Rollout engine of rLLM that gives the same answers, each of as many tokens."""

    def __init__(self, workflow: Workflow) -> None:
        super().__init__(str)
        self.workflow, self.numbers = workflow, count()

    async def _get_model_response(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
        offered = [tool["function"]["name"] for tool in kwargs.get("tools") or ()]
        text = said(self.workflow, messages, offered)
        self.answer = lambda prompt: text
        output = await super()._get_model_response(messages, **kwargs)
        output.completion_ids = [next(self.numbers)] * TOKENS
        output.logprobs = [-0.5] * TOKENS
        return output


@examples(100)
@given(st.one_of(workflows(), workflows(chats=True), workflows(forks=True)))
def test_turns_under_rllm_are_those_of_an_episode_that_runs_here(workflow: Workflow) -> None:
    plan = compiled(workflow)
    here = asyncio.run(episode(plan, limited(plan, Here(workflow))))
    assume(any(trajectory.by_model for trajectory in here.trajectories))  # else rLLM repeats the episode
    (there,) = run_all(compile_workflow(plan), There(workflow), [here.task])
    asking = {role.name for role in plan.asking}
    ours = [t for t in here.trajectories if t.name in asking]
    assert [(t.name, t.metadata["index"]) for t in there.trajectories] == [(t.name, t.index) for t in ours]
    for theirs, trajectory in zip(there.trajectories, ours, strict=True):
        taken = [turn(step.to_dict()) for step in trajectory.steps]
        assert [*map(turn, theirs.metadata.get(WITHHELD, ()))] == taken, "no role of these specs is trained"


def turn(step: Mapping[str, Any]) -> Sequence[object]:
    """Return the chat, the action and the round of a step."""
    return step["chat_completions"], step["action"], step["info"].get("round")
