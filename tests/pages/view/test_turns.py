"""Tests of an episode's turns as shown: tool calls, continued conversations, failures, and boards."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from rolegraph.engine.models import Completion, Request
from rolegraph.engine.records import Episode, NodeId, RunFolder, Step, Trajectory
from rolegraph.engine.records.episodes import write_episodes
from rolegraph.engine.vocabulary import ToolCall
from rolegraph.pages.view.turns import turns
from tests.edge import RIGHT, episode, limited
from tests.pages.view.pages import KEY, Parsed, get
from tests.pages.view.runs import workflow, write_run


class Scripted:
    """Model that answers by a function."""

    def __init__(self, answer: Callable[[Request], Completion]) -> None:
        self.answer = answer

    async def complete(self, request: Request) -> Completion:
        return self.answer(request)

    async def aclose(self) -> None: ...


def with_tools(request: Request) -> Completion:
    """Call the calculator twice, the second time with an error, and then answer."""
    done = sum(message["role"] == "tool" for message in request.messages)
    if done == 2:
        return Completion(RIGHT, thought="So it is seven.")
    call = ToolCall("calculator", {"expression": ["3 + 4", "3 +"][done]}, f"c{done}")
    return Completion("Let me see.", calls=(call,), finish_reason="tool_calls")


def agent() -> Episode:
    flow = workflow("react", "roles.agent.tools=[calculator]")
    return asyncio.run(episode(flow.plan, limited(flow.plan, Scripted(with_tools))))


def shown(folder: Path, *made: Episode) -> str:
    run = RunFolder(write_run(folder, tasks=1))
    write_episodes(run.episodes, made)
    return Parsed(get(f"/{KEY}/0/episodes/0", run.path).text).text


def test_each_call_of_a_turn_is_told_with_what_is_new_in_it() -> None:
    (turn,) = turns(agent()).values()
    assert [[said["role"] for said in call.prompt] for call in turn.calls] == [["user"], ["tool"], ["tool"]]
    assert [len(call.earlier) for call in turn.calls] == [0, 2, 4]
    asked = [[it["function"] for it in call.answer.get("tool_calls") or ()] for call in turn.calls]
    assert asked == [
        [{"name": "calculator", "arguments": '{"expression": "3 + 4"}'}],
        [{"name": "calculator", "arguments": '{"expression": "3 +"}'}],
        [],
    ]
    assert [used for call in turn.calls for used in call.used] == [
        ("calculator", ""),
        ("calculator", "'3 +' is not arithmetic"),
    ]


def test_a_page_shows_the_calls_their_results_and_the_thought(tmp_path: Path) -> None:
    text = shown(tmp_path / "run", agent())
    for words in (
        'calculator {"expression": "3 + 4"}',
        "tool calculator",
        "So it is seven.",
        "is not arithmetic",
    ):
        assert words in text


def test_a_board_keeps_its_lines(tmp_path: Path) -> None:
    flow = workflow("tic_tac_toe")
    model = Scripted(lambda request: Completion("<answer>5</answer>"))
    made = asyncio.run(episode(flow.plan, limited(flow.plan, model), seed=1))
    text = shown(tmp_path / "run", made)
    assert re.search(r"\S \S \S\n\S \S \S\n\S \S \S\n", text) and "round 1" in text and "illegal move" in text


def test_a_turn_that_failed_without_an_answer_is_told_from_its_rounds() -> None:
    said = {"role": "a", "index": 1, "name": "timeout", "message": "no answer within 1 s"}
    made = Episode(
        "t",
        0,
        {"id": "t"},
        [Trajectory("a", 1, [Step(metadata={"round": 2})])],
        metadata={"failures": [{**said, "round": 1}, {**said, "index": 2}]},
    )
    found = turns(made)
    assert {node: turn.state for node, turn in found.items()} == {
        NodeId("a", 1, 1): "failed",
        NodeId("a", 1, 2): "done",
        NodeId("a", 2, 1): "failed",
    }
