"""Tests that no hidden field leaves by anything that may be sent of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile.leaving import LEFT_OUT, disclosure_rule, disclosure_rule_of, without_hidden
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.records import Episode, FailureName, RunFolder, RunInfo, read_episodes
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.training.advantages.ledger import credit_rows
from rolegraph.engine.vocabulary.tool import ToolCall
from tests.attack.leaks import (
    CANARY,
    CORE,
    QUESTION,
    EchoModel,
    episodes_of,
    leaks,
    outputs,
    rows_of,
    written_runs,
)
from tests.cli.conftest import Command, rolegraph
from tests.edge import write_spec
from tests.integrations.opentelemetry.collector import Collector, collecting
from tests.training.credited import drawn, learnt, ledger, plan, rollouts

pytest.importorskip("gepa", reason="needs the extra `optimize`")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otlp`")
__all__ = ["rolegraph"]

SHIPPED = sorted(file.stem for file in SPECS.glob("*.yaml"))
PERMISSIONS = ("python", "http://127.0.0.1:8001/mcp", "textarena")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def exported(run: Path, collector: Collector) -> bytes:
    """Return what a collector gets of a run, with texts."""
    from rolegraph.integrations.opentelemetry import export_spans

    assert export_spans(run, collector.url, content=True) > 0
    return b"".join(collector.bodies)


@pytest.mark.parametrize("spec", SHIPPED)
def test_no_hidden_field_of_a_shipped_spec_leaves(spec: str, tmp_path: Path, collector: Collector) -> None:
    try:
        flow = rg.load(spec, allow=PERMISSIONS)
    except rg.UsageError as error:
        pytest.skip(str(error))
    runs = written_runs(tmp_path, flow, EchoModel(), rows_of(flow))
    recorded = (runs[0] / "episodes.jsonl").read_bytes()
    made = {**outputs(tmp_path, flow, runs), "spans": exported(runs[0], collector)}
    assert leaks(recorded) == bool(flow.plan.hidden)
    assert not [name for name, content in made.items() if leaks(content)]
    assert min(map(len, made.values())) > 20
    rg.view(runs[0]).write(tmp_path / "whole.html", hidden=True)
    assert leaks((tmp_path / "whole.html").read_bytes()) == bool(flow.plan.hidden)


SPEC = """
rolegraph: 2
name: leaking
data: {train: tasks.jsonl, hidden: [gold, note]}
roles:
  plain: {prompt: "{{ task.question }}", reward: {close_to: {field: gold}}, estimator: grpo}
  right: {prompt: "{{ task.question }}", reward: {matches: "Make"}, estimator: grpo}
  raising:
    prompt: "{{ task.question }}"
    reward: {raising: {}}
    estimator: grpo
  teacher: {sees: [note], prompt: "{{ task.note }}"}
  reader: {needs: [teacher], prompt: "{{ teacher.action }}"}
  writer: {sees: [note], run: {text: "{{ task.note }}"}}
  quoting: {needs: [writer], parser: {quoting: {}}, prompt: "{{ writer.action }}"}
  caller:
    sees: [note]
    tools: [calculator]
    max_calls: 2
    prompt: "Call {{ task.note }}"
  teller: {sees: [note], prompt: "{{ task.note }}"}
  listener: {prompt: "{{ self.observation }}"}
loops:
  talk: {roles: [teller, listener], env: repeating, times: 2}
episode:
  correct: right.right
  metrics: {broken: {raising_metric: teacher}}
"""
VOCABULARY = '''
import rolegraph as rg
from rolegraph.engine.vocabulary import Transition, environment_of, environments

@rg.reward(labels=["note"])
def raising(task, action):
    raise KeyError(task["note"])

@rg.metric()
def raising_metric(trajectories):
    raise ValueError(trajectories[0].action)

@rg.parser()
def quoting(text):
    raise ValueError(f"cannot read {text}")

@environments.register("repeating")
def repeating():
    """Repeat the players' moves to each of them."""
    def start(seed, players):
        return 0, Transition({0: "Begin.", 1: "Begin."})
    def move(state, actions):
        text = f"The moves were {dict(actions)}"
        return state + 1, Transition({0: text, 1: text}, info={"moves": text})
    return environment_of(start, move, min_players=2, max_players=2)
'''


class CallingModel(EchoModel):
    """Model that repeats what it is asked; its first answer as `caller` calls a function of that name."""

    async def complete(self, request: Request) -> Completion:
        if request.id.node.role != "caller" or request.id.call > 1:
            return await super().complete(request)
        calls = (ToolCall(CORE, {"expression": CANARY}), ToolCall("calculator", {"expression": CANARY}))
        return Completion("", calls=calls, usage={"prompt_tokens": 1, "completion_tokens": 1})


def leaking(folder: Path) -> Workflow:
    (folder / "words.py").write_text(VOCABULARY)
    (folder / "tasks.jsonl").write_text(
        json.dumps({"question": QUESTION, "gold": CANARY, "note": CANARY}) + "\n"
    )
    return rg.load(write_spec(folder, SPEC), imports=[folder / "words.py"])


@pytest.mark.usefixtures("registries")
def test_no_way_of_a_hidden_field_leads_out(tmp_path: Path, collector: Collector) -> None:
    flow = leaking(tmp_path)
    runs = written_runs(tmp_path, flow, CallingModel(), rows_of(flow))
    (episode, *_) = read_episodes(runs[0] / "episodes.jsonl")
    planted = {it.name: it for it in episode.trajectories}
    for name in ("plain", "raising", "quoting"):
        failure = planted[name].failure
        assert failure is not None and CORE in failure.message, name
    assert planted["plain"].failure and planted["plain"].failure.name is FailureName.REWARD_ERROR
    for name in ("teacher", "reader", "writer", "listener"):
        assert CORE in str(planted[name].action), name
    assert CORE in str(planted["caller"].steps[0].metadata), "the name of a call"
    assert CORE in str(episode.metadata.get("uncomputed_metrics"))
    (trained, *_) = read_episodes(RunFolder(runs[2]).episodes_file("train", 1))
    assert CORE in str(trained["plain"][0].steps[0].metadata.get("demonstration"))
    made = {**outputs(tmp_path, flow, runs), "spans": exported(runs[0], collector)}
    assert not [name for name, content in made.items() if leaks(content)]
    kept = [name for name, content in made.items() if QUESTION.encode() in content]
    assert {"static page of a run", "spans", "report", "comparison", "preview", "feedback"} <= {*kept}


@pytest.mark.usefixtures("registries")
def test_the_text_filter_finds_nothing_hidden(tmp_path: Path, collector: Collector) -> None:
    flow = leaking(tmp_path)
    run, *_ = written_runs(tmp_path, flow, CallingModel(), rows_of(flow))
    view, page = rg.view(run), tmp_path / "page.html"
    assert view.write(page, hidden=False, text=CORE) == (0, 0)
    assert view.write(page, hidden=True, text=CORE) == (2, 0)
    assert view.write(page, hidden=False, text="Make 7 from 3") == (2, 0)
    with pytest.raises(rg.UsageError, match="no chat that fits; the chats of caller, listener, "):
        rg.export_chats(run, tmp_path / "none.jsonl", text=CORE)


def test_chats_that_may_quote_a_hidden_field_are_written_on_request(
    tmp_path: Path, rolegraph: Command
) -> None:
    flow = rg.load("judge_with_reference")
    written_runs(tmp_path, flow, EchoModel(), rows_of(flow))
    roles = dict[str, set[str]]()
    for name, words in (("open", ()), ("whole", ("--hidden",))):
        done = rolegraph("export", "run", "--sft", f"{name}.jsonl", *words)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        roles[name] = {json.loads(line)["role"] for line in lines}
    assert roles == {"open": {"solver"}, "whole": {"solver", "judge"}}
    assert leaks((tmp_path / "whole.jsonl").read_bytes())
    refused = rolegraph("export", "run", "--hidden")
    assert refused.returncode == 2 and "--hidden needs --sft" in refused.stderr


@pytest.mark.parametrize("spec", [None, "rolegraph: 2\nname: [\n"])
def test_without_a_spec_no_text_of_a_role_leaves(tmp_path: Path, spec: str | None) -> None:
    flow = rg.load("judge_with_reference")
    run, *_ = written_runs(tmp_path, flow, EchoModel(), rows_of(flow))
    (run / "spec.yaml").unlink()
    if spec is not None:
        (run / "spec.yaml").write_text(spec)
    rg.view(run).write(tmp_path / "page.html", hidden=False)
    page = (tmp_path / "page.html").read_text()
    assert not leaks(page.encode()) and LEFT_OUT in page


def test_a_preview_obeys_the_rule_of_the_run_that_answers(tmp_path: Path) -> None:
    flow = rg.load("judge_with_reference")
    run, *_ = written_runs(tmp_path, flow, EchoModel(), rows_of(flow))
    text = """
rolegraph: 2
name: other
data: {train: countdown, validation: countdown}
roles:
  judge: {prompt: "{{ task.question }}"}
  after: {needs: [judge], prompt: "It said {{ judge.action }}"}
"""
    preview = rg.preview(rg.load(write_spec(tmp_path, text)), recorded=run)
    preview.save(tmp_path / "preview.html")
    page = (tmp_path / "preview.html").read_text()
    assert not leaks(page.encode()) and "It said [judge]" in page


def test_what_stays_of_an_episode_are_its_figures(tmp_path: Path) -> None:
    flow = rg.load("judge_with_reference")
    (episode, *_) = episodes_of(flow, EchoModel(), rows_of(flow))
    copy = without_hidden(episode, disclosure_rule(flow.plan.spec, flow.plan.hidden.__contains__))
    assert (copy.id, copy.is_correct, copy.metrics) == (episode.id, episode.is_correct, episode.metrics)
    assert [[*it.steps] for it in copy["solver"]] == [[*it.steps] for it in episode["solver"]]
    for before, after in zip(episode["judge"], copy["judge"], strict=True):
        assert (after.uid, after.reward, after.is_correct) == (before.uid, before.reward, before.is_correct)
        assert [it.response_tokens for it in after.steps] == [it.response_tokens for it in before.steps]
        assert (after.action, after.steps[0].chat_completions, after.steps[0].response_ids) == (
            LEFT_OUT,
            (),
            (),
        )
    assert without_hidden(copy, disclosure_rule(None, lambda field: True)).task == {}


def test_the_step_and_the_schedules_of_an_episode_leave() -> None:
    episode = Episode(
        "1", 0, {"id": "1"}, (), metadata={"step": 3, "scheduled": {"roles.solver.weight": 0.5}}
    )
    assert without_hidden(episode, disclosure_rule(None, lambda field: True)).metadata == episode.metadata


@pytest.mark.parametrize(
    ("by", "leaves"),
    [
        ("task.solution", False),
        ("task['solution'] ~ self.index", False),
        (r"task['\x73olution']", False),
        ("task.question", True),
        ("self.index % 2", True),
    ],
)
def test_no_digest_of_a_hidden_field_leaves(tmp_path: Path, by: str, leaves: bool) -> None:
    keyed = {"by": by, "over": "batch"}
    for group in (keyed, [keyed, {"by": "task"}]):
        spec = plan(tmp_path, {"a": {"group": group}})
        assert "solution" in spec.hidden
        episodes, _ = learnt(spec, rollouts(spec, drawn))
        digests = {d for e in episodes for d in (e["a"][0].steps[0].metadata.get("by") or {}).values()}
        copies = [without_hidden(it, disclosure_rule_of(spec)) for it in episodes]
        sent = json.dumps([it.to_dict() for it in copies])
        assert digests and all((str(digest) in sent) is leaves for digest in digests)
        run = RunFolder(tmp_path / f"run-{len(str(group))}")
        run.begin(RunInfo(kind="train", name="mine", roles={}, hidden=("solution",)), spec.resolved)
        step = ledger(spec, rollouts(spec, drawn))
        run.write_credit(1, credit_rows(step, 1))
        run.write_episodes("train", 1, step.filled_episodes())
        for hidden in (False, True):
            rg.view(run.path).write(tmp_path / "page.html", hidden=hidden)
            page = (tmp_path / "page.html").read_text("utf-8")
            assert ("same key" in page) is (hidden or leaves)
