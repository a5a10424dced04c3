"""Episodes written by rLLM and read here, and the reverse."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

import rllm.types as theirs
from rllm.workflows.workflow import TerminationReason

from rolegraph.engine.models.replay import Replay
from rolegraph.engine.models.types import Request
from rolegraph.engine.records import CallId, Episode, NodeId
from rolegraph.engine.spec import Sampling
from rolegraph.integrations.rllm import compile_workflow
from tests.edge import RIGHT, ScriptedModel, by_role, run_one, solver_judge
from tests.integrations.rllm.edge import RecordedEngine, agreeable, run_all, tasks
from tests.records.test_episode import full_episode

pytestmark = pytest.mark.rllm


def as_json(data: object) -> object:
    return json.loads(json.dumps(data))


def test_rllm_reads_our_episodes_and_gives_them_back_the_same() -> None:
    played = run_one(solver_judge(), ScriptedModel(by_role({"solver": ["?", RIGHT], "judge": "?"})))
    for ours in (full_episode(), played):
        data = as_json(ours.to_dict())
        read = theirs.Episode.from_dict(data)
        assert read.termination_reason is TerminationReason(ours.termination_reason.value)
        assert as_json(read.to_dict()) == data
        assert Episode.from_dict(read.to_dict()).to_dict() == ours.to_dict()


def test_we_read_what_a_compiled_workflow_wrote_through_rllm() -> None:
    workflow = compile_workflow("solver_judge", ["roles.solver.on_failure.then=mask"])
    answers = iter(["no tags", RIGHT, "<answer>2</answer>"])
    found = run_all(workflow, RecordedEngine(lambda _: next(answers)), tasks(1), parallel=1)[0]
    ours = Episode.from_dict(as_json(found.to_dict()))
    masked, solver, judge = ours.trajectories
    assert (ours.id, ours.is_correct, ours.metrics) == ("t0:0", True, {"solver_acc": 0.5, "judge_acc": 1.0})
    assert masked.masked
    assert masked.failure is not None
    assert masked.steps[0].model_response == "no tags", (
        "what is kept from rLLM's trainer is read all the same"
    )
    assert (solver.index, judge.index, judge.is_correct) == (2, 1, True)
    assert list(solver.steps[0].logprobs) == [-0.5, -0.25]


@pytest.mark.parametrize("reason", list(TerminationReason))
def test_every_reason_of_rllm_is_known(reason: TerminationReason) -> None:
    data = theirs.Episode(id="t:0", task={"id": "t"}, termination_reason=reason).to_dict()
    assert Episode.from_dict(data).termination_reason.value == reason.value


def test_a_run_of_rllm_can_be_replayed_here() -> None:
    episodes = run_all(compile_workflow("solver_judge"), RecordedEngine(agreeable), tasks(4))
    replay = Replay.from_episodes([Episode.from_dict(e.to_dict()) for e in episodes])
    asked = episodes[2].trajectories[-1].steps[0].chat_completions[:-1]
    answer = asyncio.run(replay.complete(Request(asked, Sampling(), None, CallId("t2", 0, NodeId("judge")))))
    assert answer.text == "<answer>1</answer>"
