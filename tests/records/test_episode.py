"""Tests that episodes are written in rLLM's shape and read back unchanged."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

import pytest

from rolegraph.engine.records import (
    Checkpoint,
    Episode,
    Failure,
    FailureName,
    Step,
    TerminationReason,
    Trajectory,
)
from rolegraph.engine.records.jsonl import json_line, parse_json
from rolegraph.engine.vocabulary.foreign import finite_number
from tests.edge import RIGHT, ScriptedModel, by_role, run_one, solver_judge

EPISODE_KEYS = {
    "id",
    "task",
    "termination_reason",
    "is_correct",
    "session_id",
    "trajectories",
    "metrics",
    "info",
}
TRAJECTORY_KEYS = {"uid", "name", "task", "steps", "reward", "info"}
STEP_KEYS = {
    *("prompt_ids", "response_ids", "logprobs", "routing_matrices", "chat_completions", "observation"),
    *("thought", "action", "model_response", "model_output", "info", "reward", "done", "mc_return"),
    *("advantage", "weight_version"),
}


def full_episode() -> Episode:
    chat = [{"role": "user", "content": "q"}]
    step = Step([1, 2], [3, 4], [-0.5, -0.25], chat, "hm", {"a": 1}, "r", 0.5, True, [1.0, 2.0], 3)
    failed = Trajectory("judge", failure=Failure(FailureName.TIMEOUT, "late"), masked=True, reward=0.0)
    return Episode(
        task_id="task-1",
        rollout=4,
        task={"id": "task-1", "question": "q"},
        trajectories=(Trajectory("solver", 2, (step,), 0.5, True, "u", {"format": 1.0}), failed),
        is_correct=True,
        metrics={"acc": 0.5},
        termination_reason=TerminationReason.TIMEOUT,
        metadata={"hash": "h"},
    )


def test_the_keys_are_rllm_s() -> None:
    data = full_episode().to_dict()
    assert data.keys() == EPISODE_KEYS
    assert data["trajectories"][0].keys() == TRAJECTORY_KEYS
    assert data["trajectories"][0]["steps"][0].keys() == STEP_KEYS


def test_what_is_written_as_json_is_read_back_the_same() -> None:
    data = full_episode().to_dict()
    again = Episode.from_dict(json.loads(json.dumps(data)))
    assert again.to_dict() == data
    assert again.trajectories[1].failure == Failure(FailureName.TIMEOUT, "late")


@pytest.mark.parametrize("logprobs", [[-0.5, 0], [0, 0], [-0.0, -1e-7], []])
def test_numbers_are_written_as_they_were_read(logprobs: list[float]) -> None:
    """An integer among log-probabilities stays one, though an array of floats has none."""
    data = full_episode().to_dict()
    data["trajectories"][0]["steps"][0].update(prompt_ids=[2**31 - 1], logprobs=logprobs)
    assert json.dumps(Episode.from_dict(data).to_dict()) == json.dumps(data)


def test_numbers_of_tokens_are_held_in_arrays() -> None:
    step = Episode.from_dict(full_episode().to_dict())["solver"][0].steps[0]
    held = (step.prompt_ids, step.response_ids, step.logprobs)
    assert [one.typecode for one in held if isinstance(one, array)] == ["i", "i", "d"]


def test_an_id_is_the_task_and_the_rollout() -> None:
    assert full_episode().id == "task-1:4"


def test_an_id_that_rllm_wrote_is_read_once_where_it_comes_in() -> None:
    data = full_episode().to_dict()
    data["info"] = {"hash": "h"}
    assert Episode.from_dict(data).to_dict() == full_episode().to_dict()


@pytest.mark.rllm
def test_rllm_reads_what_we_write_and_we_read_what_rllm_writes() -> None:
    types = pytest.importorskip("rllm.types", reason="rLLM is not installed")
    ours = run_one(
        solver_judge(), ScriptedModel(by_role({"solver": [RIGHT, "?"], "judge": "<answer>1</answer>"}))
    )
    theirs = types.Episode.from_dict(ours.to_dict())
    assert [t.name for t in theirs.trajectories] == ["solver", "solver", "judge"]
    assert theirs.trajectories[0].steps[0].action == RIGHT
    assert (theirs.task_id, theirs.rollout_idx) == ("t1", "0")
    assert Episode.from_dict(theirs.to_dict()).to_dict() == ours.to_dict()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logprobs", [-0.5, math.nan]),
        ("logprobs", [-math.inf, -0.5]),
        ("logprobs", [99999, -0.5]),
        ("prompt_ids", [1, -1]),
        ("response_ids", [10**26, 2]),
    ],
)
def test_numbers_out_of_range_that_an_earlier_version_wrote_are_missing(key: str, value: list[Any]) -> None:
    data = full_episode().to_dict()
    step = data["trajectories"][0]["steps"][0]
    step |= {key: value, "info": {"usage": {"prompt_tokens": 10**30, "completion_tokens": 2}}}
    read = Episode.from_dict(parse_json(json_line(data)))["solver"][0].steps[0]
    assert not getattr(read, key)
    assert read.usage == {"completion_tokens": 2}
    assert read.model_response == "r"


def test_sums_of_the_largest_numbers_that_users_code_may_give_are_read() -> None:
    most = finite_number(1e90, "it is")
    data = full_episode()._replace(metrics={"acc": most * 10_000}).to_dict()
    assert Episode.from_dict(parse_json(json_line(data))).metrics == {"acc": most * 10_000}
    with pytest.raises(ValueError, match="it is 1e\\+91"):
        finite_number(1e91, "it is")


def test_a_metric_that_is_no_number_leaves_the_checkpoint_readable() -> None:
    saved = Checkpoint(step=1, policies={}, metrics={"kl": 0.5}, validation={})
    text = json_line({**saved.model_dump(), "metrics": {"kl": None, "step": 1.0}})
    assert Checkpoint.model_validate(parse_json(text)).metrics == {"step": 1.0}
