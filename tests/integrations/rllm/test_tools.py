"""Turns with tool calls under rLLM: the engine's requests and the resulting trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rllm")

from rolegraph.engine.vocabulary import Tool, tools
from rolegraph.integrations.rllm import compile_workflow
from tests.edge import RIGHT, write_spec
from tests.integrations.rllm.edge import RecordedEngine, run_all, tasks
from tests.run.test_calls import ADD, _kept, call

pytestmark = pytest.mark.rllm
SPEC = """\
rolegraph: 2
name: agent
data: {train: countdown}
roles:
  agent:
    prompt: solver.j2
    tools: test_rllm_add
    max_calls: 4
    parser: {tag: answer}
    reward: countdown
    estimator: grpo
"""


@pytest.fixture(scope="module", autouse=True)
def vocabulary() -> Iterator[None]:
    @tools.register("test_rllm_add")
    def add() -> Tool:
        return Tool(open=lambda: _kept((ADD,)))

    yield
    for table in ("_factories", "_definitions"):
        getattr(tools, table).pop("test_rllm_add")


class Asking(RecordedEngine):
    """Engine that records the messages, too."""

    def __init__(self) -> None:
        super().__init__(lambda said: RIGHT if said == "7" else f"Let me see. {call('add', a=3, b=4)}")
        self.asked: list[list[dict[str, Any]]] = []

    async def _get_model_response(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
        self.asked.append(messages)
        return await super()._get_model_response(messages, **kwargs)


def test_a_turn_of_several_calls_leaves_as_so_many_steps_of_which_the_last_earns(tmp_path: Path) -> None:
    engine = Asking()
    (episode,) = run_all(compile_workflow(write_spec(tmp_path, SPEC)), engine, tasks(1))
    (trajectory,) = episode.trajectories
    assert [step.reward for step in trajectory.steps] == [0.0, 1.0]
    assert [step.done for step in trajectory.steps] == [False, True]
    assert [
        step.completion_ids if hasattr(step, "completion_ids") else step.response_ids
        for step in trajectory.steps
    ] == [
        [1, 7],
        [2, 7],
    ]
    assert trajectory.reward == 1.0
    assert [options["tools"][0]["function"]["name"] for _, options in engine.calls] == ["add", "add"]
    _, answer, result = engine.asked[1]
    assert answer["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 3, "b": 4}'}
    assert result == {"role": "tool", "content": "7"}


CALLED = """\
rolegraph: 2
name: called
data: {train: countdown}
roles:
  lead:
    prompt: solver.j2
    tools: [{role: helper}]
    max_calls: 2
    parser: {tag: answer}
    reward: countdown
    estimator: grpo
  helper:
    callable: {describe: Adds., arguments: {about: string}}
    prompt: "help with {{ self.arguments.about }}"
    reward: lead.reward
    estimator: grpo
"""


def test_a_role_that_is_called_is_a_trajectory_of_its_own(tmp_path: Path) -> None:
    def answer(said: str) -> str:
        if said == "help with sums":
            return "7"
        return RIGHT if said == "7" else call("helper", about="sums")

    engine = RecordedEngine(answer)
    (episode,) = run_all(compile_workflow(write_spec(tmp_path, CALLED)), engine, tasks(1))
    assert [(t.name, t.reward, len(t.steps)) for t in episode.trajectories] == [
        ("lead", 1.0, 2),
        ("helper", 1.0, 1),
    ]
    assert [prompt for prompt, _ in engine.calls][1:] == ["help with sums", "7"]
