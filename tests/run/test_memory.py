"""Tests of `memory: chat`: one conversation per instance, to which each turn adds prompt and answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import ContextFull, ModelError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.prompts import ChatPrefix
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import FailureName
from tests.edge import ScriptedModel, run_one
from tests.run.written import Roles, plan, said, whose

TALKS: Roles = {"a": {"count": 2, "prompt": "round {{ self.round }}", "memory": "chat"}}
LOOP = {"talk": {"roles": ["a"], "times": 3}}


def talking(folder: Path, **more: object) -> Plan:
    return plan(folder, {"a": {**TALKS["a"], **more}}, LOOP)


def contents(request: Request) -> list[str]:
    return [message["content"] for message in request.messages]


def of(model: ScriptedModel, index: int) -> list[Request]:
    return [request for request in model.requests if request.id.node.index == index]


def test_an_instance_goes_on_with_its_own_conversation(tmp_path: Path) -> None:
    model = ScriptedModel(whose, latency=lambda _: 0.001)
    done = run_one(talking(tmp_path, system="for {{ self.index }}"), model)
    first, second, third = of(model, 2)
    assert contents(first) == ["for 2", "round 1"]
    assert contents(second) == ["for 2", "round 1", said("a2.1"), "round 2"]
    assert contents(third) == [*contents(second), said("a2.2"), "round 3"]
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "user"]
    assert [len(step.chat_completions) for step in done["a"][1].steps] == [3, 5, 7]
    assert model.most_under_way == 2, "instances talk side by side, and each turn waits for the one before"


def test_a_failed_and_a_skipped_turn_leave_nothing(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        if request.id.node.round == 1:
            raise ModelError("down")
        return "no tag" if request.id.attempt == 0 and request.id.node.index == 1 else whose(request)

    model = ScriptedModel(answer)
    loop = {"talk": {"roles": ["a"], "times": 4}}
    again = {"system": "s", "on_failure": {"retry": 1}, "when": "self.round != 3"}
    run_one(plan(tmp_path, {"a": {**TALKS["a"], **again}}, loop), model)
    last = of(model, 1)[-1]
    assert contents(last) == ["s", "round 2", said("a1.2"), "round 4"], "of a turn its last attempt is kept"


class Counted:
    """Model that answers with token ids."""

    def __init__(self, context: int = 1000) -> None:
        self.context, self.continued = context, list[ChatPrefix | None]()

    async def complete(self, request: Request) -> Completion:
        self.continued.append(request.continues)
        ids: Sequence[int] = (*request.continues.ids, 1, 2) if request.continues else (1, 2)
        if len(ids) > self.context:
            raise ContextFull(f"it has {len(ids)} tokens")
        return Completion(said("x"), thought="hm", prompt_ids=ids, response_ids=(7, 8), logprobs=(-1.0, -1.0))

    async def aclose(self) -> None: ...


def test_a_conversation_goes_on_token_for_token_and_with_its_reasoning(tmp_path: Path) -> None:
    model = Counted()
    one = plan(tmp_path, {"a": {**TALKS["a"], "count": 1}}, LOOP)
    (talk,) = run_one(one, model).trajectories  # pyright: ignore[reportArgumentType]
    assert model.continued == [None, ChatPrefix((1, 2, 7, 8), 2), ChatPrefix((1, 2, 7, 8, 1, 2, 7, 8), 4)]
    assert talk.steps[1].chat_completions[1] == {
        "role": "assistant",
        "content": said("x"),
        "reasoning": "hm",
    }
    assert (*talk.steps[2].prompt_ids[:8],) == (*talk.steps[1].prompt_ids, *talk.steps[1].response_ids)


def test_a_conversation_that_outgrows_the_context_is_a_failure_of_its_name(tmp_path: Path) -> None:
    done = run_one(plan(tmp_path, {"a": {**TALKS["a"], "count": 1}}, LOOP), Counted(context=6))  # pyright: ignore[reportArgumentType]
    assert [len(t.steps) for t in done.trajectories] == [2]
    (failure,) = done.metadata["failures"]
    assert (failure["name"], failure["round"]) == (FailureName.CONTEXT_FULL.value, 3)


def test_a_turn_that_calls_a_tool_leaves_its_calls_and_their_results(tmp_path: Path) -> None:
    """Call the calculator once in each turn; the next turn continues with exactly the same tokens."""
    agent = {"count": 1, "tools": ["calculator"], "max_calls": 3, "parser": "text"}
    model = Calling()
    (talk,) = run_one(talking(tmp_path, **agent), model).trajectories
    assert [(step.round, step.metadata["call"]) for step in talk.steps] == [
        (round, call) for round in (1, 2, 3) for call in (1, 2)
    ]
    assert [step.action for step in talk.steps] == [None, "it is 7"] * 3
    turn = ["user", "assistant", "tool", "assistant"]
    assert [message["role"] for message in talk.steps[-1].chat_completions] == turn * 3
    results = [m["content"] for m in talk.steps[-1].chat_completions if m["role"] == "tool"]
    assert results == ["7"] * 3
    for before, step, request in zip(talk.steps, talk.steps[1:], model.requests[1:], strict=False):
        so_far = (*before.prompt_ids, *before.response_ids)
        assert request.continues == ChatPrefix(so_far, len(before.chat_completions))
        assert tuple(step.prompt_ids[: len(so_far)]) == so_far


class Calling(ScriptedModel):
    """Scripted model that calls the calculator first in each turn, and answers with token ids."""

    def __init__(self) -> None:
        super().__init__(lambda request: SUM if request.id.call == 1 else "it is 7")

    async def complete(self, request: Request) -> Completion:
        text, calls = HERMES.find((await super().complete(request)).text)
        before = request.continues.ids if request.continues else ()
        number = len(self.requests)
        return Completion(text, "", (*before, 9, number), (number, 0), (-0.5, -0.5), calls=calls)


SUM = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 4"}}</tool_call>'
