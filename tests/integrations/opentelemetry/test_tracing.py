"""Tests of episodes that are sent as spans to an OpenTelemetry collector, after a run and during one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph.engine.records import NodeId
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.integrations.opentelemetry import export_spans
from rolegraph.local.launcher import LocalService
from rolegraph.pages.view.turns import turns
from tests.cli.conftest import Command, rolegraph
from tests.edge import write_spec
from tests.integrations.opentelemetry.collector import Collector, collecting
from tests.models.edges import chat_answer, serving
from tests.pages.view.runs import write_run, write_training
from tests.trainings import STEP, key

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

__all__ = ["rolegraph"]

CLIENT, INTERNAL = 3, 1
TEXTS = {
    f"gen_ai.{name}"
    for name in ("input.messages", "output.messages", "tool.call.arguments", "tool.call.result")
}
SECRET, KEY = "the-hidden-label", "sk-of-the-environment"
SPEC = """
rolegraph: 2
name: watched
data: {train: tasks.jsonl, hidden: [secret]}
model: openai:tiny
roles:
  solver:
    prompt: "{{ task.question }}"
    tools: calculator
    max_calls: 2
    reward: {exact_match: {field: secret}}
  vote: {needs: [solver], run: majority}
  teacher: {sees: [secret], prompt: "The label is {{ task.secret }}."}
  reader: {needs: [teacher], prompt: "You were told: {{ teacher.action }}"}
  helper:
    callable: {describe: Look it up., arguments: {question: string}}
    prompt: "You were asked: {{ self.arguments.question }}"
  asker:
    sees: [secret]
    tools: [{role: helper}]
    max_calls: 2
    prompt: "Ask about {{ task.secret }}."
"""


def said(body: dict[str, Any]) -> Response:
    """Answer as the roles of SPEC: the solver calls a tool and quotes the key, the teacher the label."""
    told = [message["content"] for message in body["messages"]]
    if any("The label is" in str(text) for text in told):
        return chat_answer(f"It is {SECRET}", usage=usage(3, 4))
    if "tools" in body and any("Ask about" in str(text) for text in told):
        if body["messages"][-1]["role"] == "tool":
            return chat_answer("thanks")
        function = {"name": "helper", "arguments": json.dumps({"question": SECRET})}
        call = {"id": "call-2", "type": "function", "function": function}
        return chat_answer(None, finish="tool_calls", message={"tool_calls": [call]})
    if "tools" in body and body["messages"][-1]["role"] != "tool":
        function = {"name": "calculator", "arguments": json.dumps({"expression": "3 + 4"})}
        call = {"id": "call-1", "type": "function", "function": function}
        return chat_answer(None, finish="tool_calls", message={"tool_calls": [call]}, usage=usage(10, 5))
    return chat_answer(f"7, by {KEY}", usage=usage(20, 6))


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("traced") / "run", tasks=6)


def watched(folder: Path, command: Command, *words: str) -> str:
    """Run SPEC on two tasks by the command; return what it wrote to standard error."""
    tasks = [{"id": f"t{n}", "question": f"What is 3 + 4 for {n}?", "secret": SECRET} for n in range(2)]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks), "utf-8")
    write_spec(folder, SPEC)
    with serving(said) as endpoint:
        url = endpoint.base_url
        done = command("run", "spec.yaml", "--base-url", url, "--out", "out", *words, OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_an_episode_is_a_trace_of_its_turns_and_calls(run: Path, collector: Collector) -> None:
    episodes = [*read_episodes(run / "episodes.jsonl")]
    assert export_spans(run, collector.url) == len(episodes)
    traces = collector.traces()
    assert len(traces) == len(episodes)
    roots = {
        (r.about["rolegraph.task.id"], r.about["rolegraph.rollout"]): r
        for r in collector.spans
        if not r.parent
    }
    for episode in episodes:
        root = roots[episode.task_id, episode.rollout]
        assert root.name == "invoke_workflow solver_judge"
        assert root.about["gen_ai.workflow.name"] == "solver_judge"
        assert root.about["rolegraph.correct"] is episode.is_correct
        agents = {
            NodeId(a.about["gen_ai.agent.name"], a.about["rolegraph.index"], a.about["rolegraph.round"]): a
            for a in collector.below(root)
        }
        assert agents.keys() == turns(episode).keys()
        for node, turn in turns(episode).items():
            agent, (chat,) = agents[node], collector.below(agents[node])
            (asked,) = turn.calls
            assert (agent.name, chat.name) == (f"invoke_agent {node.role}", "chat rolegraph-base")
            assert (agent.kind, chat.kind) == (INTERNAL, CLIENT)
            assert chat.about["gen_ai.operation.name"] == "chat"
            assert chat.about["gen_ai.request.model"] == "rolegraph-base"
            assert chat.about["gen_ai.response.finish_reasons"] == ["stop"]
            counts = [
                s.about[f"gen_ai.usage.{side}_tokens"] for s in (chat, agent) for side in ("input", "output")
            ]
            assert counts == [3, len(asked.step.response_ids)] * 2
            assert agent.about.get("error.type") == (turn.failure and turn.failure["name"])
            assert agent.error is (turn.failure is not None)
            assert agent.about["rolegraph.reward"] == asked.step.reward


def test_spans_have_the_times_of_the_calls(run: Path, collector: Collector) -> None:
    export_spans(run, collector.url)
    for episode in read_episodes(run / "episodes.jsonl"):
        began = episode.metadata["started_at"]
        assert abs(time.time() - began) < 3600
        (root,) = (
            s
            for s in collector.spans
            if (s.about.get("rolegraph.task.id"), s.about.get("rolegraph.rollout"))
            == (episode.task_id, episode.rollout)
        )
        chats = [chat for agent in collector.below(root) for chat in collector.below(agent)]
        steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
        base = int(began * 1e9)
        assert root.start == pytest.approx(base, abs=1000)
        for chat, step in zip(chats, steps, strict=True):
            start, seconds = step.metadata["started"], step.metadata["seconds"]
            assert chat.start - root.start == pytest.approx(start * 1e9, abs=1000)
            assert chat.end - chat.start == pytest.approx(seconds * 1e9, abs=1000)
            assert root.start <= chat.start <= chat.end <= root.end


def test_an_episode_that_is_sent_again_has_the_same_ids(run: Path, collector: Collector) -> None:
    export_spans(run, collector.url)
    first = [(span.trace, span.id, span.parent) for span in collector.spans]
    assert len({(trace, id) for trace, id, _ in first}) == len(first)
    collector.spans.clear()
    export_spans(run, f"{collector.url}/v1/traces")
    assert [(span.trace, span.id, span.parent) for span in collector.spans] == first


def test_a_share_is_a_part_of_the_episodes_and_always_the_same(run: Path, collector: Collector) -> None:
    n = len([*read_episodes(run / "episodes.jsonl")])
    sent = export_spans(run, collector.url, share=0.5)
    assert 0 < sent < n
    some = collector.traces().keys()
    export_spans(run, collector.url, share=0.9)
    assert some <= collector.traces().keys()
    with pytest.raises(rg.UsageError, match="above 0 and up to 1"):
        export_spans(run, collector.url, share=0)


def test_filters_are_those_of_view(run: Path, collector: Collector) -> None:
    right = [e for e in read_episodes(run / "episodes.jsonl") if e.is_correct]
    assert export_spans(run, collector.url, correct="yes") == len(right)
    with pytest.raises(rg.UsageError, match="no episode that fits"):
        export_spans(run, collector.url, task="none")


def test_spans_of_a_training_say_its_split_and_step(tmp_path: Path, collector: Collector) -> None:
    folder = write_training(tmp_path / "training", steps=2)
    export_spans(folder, collector.url)
    roots = [span for span in collector.spans if not span.parent]
    parts = {(root.about["rolegraph.split"], root.about["rolegraph.step"]) for root in roots}
    assert parts == {("train", 1), ("train", 2), ("validation", 2)}
    assert {root.about["rolegraph.run"] for root in roots} == {"training"}


def test_tools_are_spans_with_the_times_between_the_calls(
    rolegraph: Command, tmp_path: Path, collector: Collector
) -> None:
    watched(tmp_path, rolegraph)
    done = rolegraph("export", "out", "--otlp", collector.url)
    assert (done.returncode, done.stdout) == (0, "2 episodes sent\n"), done.stderr
    for agent in collector.named("invoke_agent solver"):
        first, tool, second = collector.below(agent)
        assert [first.name, tool.name, second.name] == ["chat tiny", "execute_tool calculator", "chat tiny"]
        assert first.about["gen_ai.provider.name"] == "openai"
        assert first.end <= tool.start <= tool.end <= second.start
        assert tool.about["gen_ai.tool.call.id"] == "call-1"
        assert (agent.about["gen_ai.usage.input_tokens"], agent.about["gen_ai.usage.output_tokens"]) == (
            30,
            11,
        )
    votes = collector.named("execute_tool majority")
    roots = {span.id for span in collector.spans if not span.parent}
    assert len(votes) == 2 and {vote.parent for vote in votes} == roots
    assert {vote.about["gen_ai.agent.name"] for vote in votes} == {"vote"}


def test_spans_have_no_text_unless_it_is_asked_for(
    rolegraph: Command, tmp_path: Path, collector: Collector
) -> None:
    watched(tmp_path, rolegraph)
    rolegraph("export", "out", "--otlp", collector.url, OPENAI_API_KEY=KEY)
    whole = b"".join(collector.bodies)
    assert b"What is 3 + 4" not in whole and SECRET.encode() not in whole and KEY.encode() not in whole


def test_texts_leave_out_hidden_fields_and_keys(
    rolegraph: Command, tmp_path: Path, collector: Collector
) -> None:
    watched(tmp_path, rolegraph)
    assert SECRET in (tmp_path / "out" / "episodes.jsonl").read_text("utf-8")
    rolegraph("export", "out", "--otlp", collector.url, "--otlp-content", OPENAI_API_KEY=KEY)
    whole = b"".join(collector.bodies)
    assert SECRET.encode() not in whole and KEY.encode() not in whole
    (root, *_) = (span for span in collector.spans if not span.parent)
    assert json.loads(root.about["rolegraph.task"]).keys() == {"id", "question"}
    (agent, *_) = collector.named("invoke_agent solver")
    first, tool, second = collector.below(agent)
    asked = json.loads(second.about["gen_ai.input.messages"])
    assert [message["role"] for message in asked] == ["user", "assistant", "tool"]
    assert asked[0]["parts"][0]["content"].startswith("What is 3 + 4")
    assert asked[1]["parts"] == [
        {"type": "tool_call", "id": "call-1", "name": "calculator", "arguments": '{"expression": "3 + 4"}'}
    ]
    assert asked[2]["parts"][0]["type"] == "tool_call_response"
    assert json.loads(first.about["gen_ai.input.messages"]) == asked[:1]
    assert json.loads(second.about["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "7, by [key]"}], "finish_reason": "stop"}
    ]
    assert (tool.about["gen_ai.tool.call.result"], tool.about["gen_ai.tool.call.arguments"]) == (
        "7",
        '{"expression": "3 + 4"}',
    )
    # The teacher shows the label, and the reader reads the teacher; the asker quotes the label in a call.
    for role in ("teacher", "reader", "asker", "helper"):
        calls = [call for agent in collector.named(f"invoke_agent {role}") for call in collector.below(agent)]
        assert calls and not any(call.about.keys() & TEXTS for call in calls), role


def test_a_live_run_sends_the_spans_that_an_export_would_send(
    rolegraph: Command, tmp_path: Path, collector: Collector
) -> None:
    watched(tmp_path, rolegraph, "--otlp", collector.url, "--otlp-content")
    live = sorted((span.trace, span.id, span.name, json.dumps(span.about)) for span in collector.spans)
    assert len(live) > 10 and SECRET.encode() not in b"".join(collector.bodies)
    collector.spans.clear()
    rolegraph("export", "out", "--otlp", collector.url, "--otlp-content", OPENAI_API_KEY=KEY)
    assert sorted((s.trace, s.id, s.name, json.dumps(s.about)) for s in collector.spans) == live


@pytest.mark.service
def test_a_live_training_sends_its_episodes(
    service: LocalService, rolegraph: Command, tmp_path: Path, collector: Collector
) -> None:
    words = ("train", "solver_judge", *STEP, "--base-url", service.base_url, "--out", "out", "-q")
    done = rolegraph(*words, "--otlp", collector.url, **key(service))
    assert done.returncode == 0, done.stderr
    written = [
        e for file in (tmp_path / "out" / "episodes").glob("*[0-9].jsonl") for e in read_episodes(file)
    ]
    assert len(written) == len(collector.traces()) > 4
    versions = {
        span.about["rolegraph.weight_version"] for span in collector.spans if span.name.startswith("chat")
    }
    assert versions <= {0, 1}
    assert service.api_key.encode() not in b"".join(collector.bodies)


@pytest.mark.parametrize("status", [400, 307])
def test_a_collector_that_refuses_is_an_error_of_an_export_and_a_warning_of_a_run(
    rolegraph: Command, tmp_path: Path, status: int
) -> None:
    with collecting(status) as collector:
        url = collector.url.replace("://", "://me:password@")
        warned = watched(tmp_path, rolegraph, "--otlp", url)
        refused = rolegraph("export", "out", "--otlp", url)
    assert "spans were not sent" in warned and "rolegraph export out --otlp" in warned
    assert refused.returncode == 1 and "took 0 spans" in refused.stderr
    assert "password" not in warned + refused.stderr
    assert not collector.spans


def test_headers_and_service_name_are_those_of_the_environment(
    run: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_spans(run, collector.url, task="t1")
    assert collector.resources[-1]["service.name"] == "rolegraph"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=mine")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "experiment")
    export_spans(run, collector.url, task="t1")
    assert collector.resources[-1]["service.name"] == "experiment"
    assert collector.headers[-1]["x-key"] == "mine"


def test_a_mistake_in_the_call_is_named(
    run: Path, rolegraph: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(rg.UsageError, match="'localhost:4318' is not the URL of a collector"):
        export_spans(run, "localhost:4318")
    done = rolegraph("export", str(run), "--otlp", "http://127.0.0.1:9", "--merged")
    assert done.returncode == 2 and "without options for weights" in done.stderr
    done = rolegraph("run", "solver_judge", "-m", "seed=0,1", "--otlp", "http://127.0.0.1:9")
    assert done.returncode == 2 and "go with one run" in done.stderr
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(rg.UsageError, match=r"pip install 'rolegraph\[otlp\]'"):
        export_spans(run, "http://127.0.0.1:9")
