"""Tests that a recording answers as the model did."""

from __future__ import annotations

import asyncio
import json
from array import array
from pathlib import Path

import pytest

from rolegraph.engine.errors import DataError, ModelError, UsageError
from rolegraph.engine.models import Completion, Model, Request, open_model
from rolegraph.engine.models.replay import RecordedCall, Replay
from rolegraph.engine.records import CallId, Episode, Failure, FailureName, NodeId, Step, Trajectory
from rolegraph.engine.spec import ModelRef, Sampling

SAID = {"role": "assistant", "content": "yes"}
STEP = Step(
    prompt_ids=(1, 2),
    response_ids=(3, 4),
    logprobs=(-0.5, -0.25),
    thought="hm",
    model_response="<answer>2</answer>",
    metadata={"finish_reason": "length"},
    weight_version=5,
)
EPISODES = [
    Episode(
        task_id=f"sum-{task}",
        rollout=rollout,
        task={"id": f"sum-{task}"},
        trajectories=(
            Trajectory("solver", 1, (STEP,)),
            Trajectory("solver", 2, failure=Failure(FailureName.TIMEOUT, "no answer within 3 s")),
            Trajectory("judge", 1, (Step(model_response=f"judge of {task}:{rollout}"),)),
        ),
    )
    for task in (1, 2)
    for rollout in (0, 1)
]


def ask(model: Model, task: str, rollout: int, role: str, index: int) -> Completion:
    request = Request((), Sampling(), None, CallId(task, rollout, NodeId(role, index), attempt=3))
    return asyncio.run(model.complete(request))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(json.dumps(episode.to_dict()) + "\n" for episode in EPISODES))
    return path


def test_a_file_of_episodes_answers_each_call_as_before_to_the_token(file: Path) -> None:
    model = asyncio.run(open_model(ModelRef(provider="replay", name=str(file))))
    assert ask(model, "sum-1", 0, "solver", 1) == Completion(
        text="<answer>2</answer>",
        thought="hm",
        prompt_ids=array("i", [1, 2]),
        response_ids=array("i", [3, 4]),
        logprobs=array("d", [-0.5, -0.25]),
        finish_reason="length",
        weight_version=5,
    )
    assert ask(model, "sum-2", 1, "judge", 1).text == "judge of 2:1"


def test_the_folder_of_a_run_stands_for_its_episodes(file: Path) -> None:
    model = asyncio.run(open_model(ModelRef(provider="replay", name=str(file.parent))))
    assert ask(model, "sum-2", 1, "judge", 1).text == "judge of 2:1"


def test_a_call_that_failed_fails_again_with_its_reason() -> None:
    with pytest.raises(ModelError, match=r"task 'sum-1', rollout 0, solver 2: no answer within 3 s"):
        ask(Replay.from_episodes(EPISODES), "sum-1", 0, "solver", 2)


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        (("sum-1", 0, "solver", 3), "task 'sum-1', rollout 0, solver 2"),
        (("sum-1", 4, "judge", 1), "task 'sum-1', rollout 1, judge 1"),
        (("sum-9", 0, "solver", 1), "2 other tasks, such as 'sum-1'"),
    ],
)
def test_a_call_that_was_not_recorded_is_named_with_the_nearest_that_was(
    call: tuple[str, int, str, int], nearest: str
) -> None:
    with pytest.raises(ModelError, match="Not recorded: task") as caught:
        ask(Replay.from_episodes(EPISODES), *call)
    assert nearest in str(caught.value)
    assert not caught.value.transient


def test_answers_can_be_given_as_a_mapping() -> None:
    model = Replay({CallId("t", 0, NodeId("solver")): RecordedCall(Completion("hello"))})
    assert ask(model, "t", 0, "solver", 1).text == "hello"


def test_instances_recorded_without_an_index_are_counted_as_they_come() -> None:
    steps = [(Step(model_response=text),) for text in ("first", "second", "choice")]
    names = ["solver", "solver", "judge"]
    episode = Episode(
        "t", 0, {"id": "t"}, [Trajectory(n, steps=s) for n, s in zip(names, steps, strict=True)]
    )
    model = Replay.from_episodes([episode])
    assert ask(model, "t", 0, "solver", 2).text == "second"
    assert ask(model, "t", 0, "judge", 1).text == "choice"


def asking(role: str, *lines: str) -> Request:
    messages = [{"role": "user", "content": "\n".join(lines)}]
    return Request(messages, Sampling(), None, CallId("t", 0, NodeId(role)))


def recorded(role: str, *lines: str) -> tuple[CallId, RecordedCall]:
    asked = asking(role, *lines)
    return asked.id, RecordedCall(Completion("yes"), messages=asked.messages)


def test_a_prompt_that_has_changed_is_named_by_its_role_and_its_first_other_line() -> None:
    model = Replay(dict([recorded("solver", "Make 7", "from 3 and 4"), recorded("judge", "3 + 4")]))
    same = asyncio.run(model.complete(asking("solver", "Make 7", "from 3 and 4")))
    assert same.text == "yes"
    with pytest.raises(ModelError) as caught:
        asyncio.run(model.complete(asking("solver", "Make 7", "out of 3 and 4", "")))
    assert "the prompt of solver is not the recorded one" in str(caught.value)
    assert "message 1 was …'from 3 and 4', and is …'out of 3 and 4" in str(caught.value)
    assert "--replay-any" in str(caught.value)


def test_of_each_role_whose_prompt_has_changed_it_is_told_how_whoever_was_asked_first() -> None:
    model = Replay(dict([recorded("solver", "Make 7"), recorded("checker", "Check 7")]))
    with pytest.raises(ModelError, match="checker is not the recorded one: message 1 was 'user: Check 7'"):
        asyncio.run(model.complete(asking("checker", "Test 7")))
    with pytest.raises(ModelError) as caught:
        asyncio.run(model.complete(asking("solver", "Make 8")))
    assert "solver is not the recorded one, nor is the prompt of checker before it: " in str(caught.value)
    assert "'user: Make 7', and is 'user: Make 8'" in str(caught.value)


@pytest.mark.parametrize("now", [("Make 7", ""), ("Make 7" + " " * 200,), ()])
def test_every_other_prompt_is_another_prompt(now: tuple[str, ...]) -> None:
    model = Replay(dict([recorded("solver", "Make 7")]))
    with pytest.raises(ModelError, match="prompt of solver is not the recorded one: message 1 was"):
        asyncio.run(model.complete(asking("solver", *now)))


USER = {"role": "user", "content": "Make 7"}


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (
            [USER],
            [{**USER, "role": "system"}],
            "message 1 was 'user: Make 7', and is 'system: Make 7'",
        ),
        ([USER], [USER, USER], "message 2 was missing, and is 'user: Make 7'"),
        ([USER, USER], [USER], "message 2 was 'user: Make 7', and is missing"),
        (
            [USER],
            [{**USER, "content": "Make 7\n(the end)"}],
            "message 1 was 'user: Make 7', and is 'user: Make 7\\n(the end)'",
        ),
        (
            [USER, USER],
            [{**USER, "content": "Make 7\nuser:\nMake 7"}],
            "message 1 was 'user: Make 7', and is 'user: Make 7\\nuser:\\nMake 7'",
        ),
    ],
)
def test_messages_that_differ_in_who_says_them_or_where_they_end_are_told_apart(
    was: list[dict[str, str]], now: list[dict[str, str]], said: str
) -> None:
    assert said in refusal(was, now)


def test_where_one_line_goes_on_the_excerpts_show_where_the_other_ends() -> None:
    short = {**USER, "content": "Make 7 from " + "3 and " * 20 + "4"}
    long = {**USER, "content": short["content"] + ", please"}
    assert "and 4', and is …'" in refusal([short], [long])
    assert "and 4, please'; --replay" in refusal([short], [long])
    assert "and 4, please', and is …'" in refusal([long], [short])
    assert "and 4'; --replay" in refusal([long], [short])


def refusal(was: list[dict[str, str]], now: list[dict[str, str]]) -> str:
    """Return the error message when a recording of the prompt `was` is asked the prompt `now`."""
    call = CallId("t", 0, NodeId("solver"))
    model = Replay({call: RecordedCall(Completion("yes"), messages=was)})
    with pytest.raises(ModelError) as caught:
        asyncio.run(model.complete(Request(now, Sampling(), None, call)))
    return str(caught.value)


def test_another_prompt_is_answered_where_that_is_asked_for(tmp_path: Path) -> None:
    step = Step(model_response="yes", chat_completions=({"role": "user", "content": "old"}, SAID))
    episode = Episode("t", 0, {"id": "t"}, [Trajectory("solver", steps=[step])])
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps(episode.to_dict()) + "\n")
    ref = ModelRef(provider="replay", name=str(path), replay_any=True)
    model = asyncio.run(open_model(ref))
    assert asyncio.run(model.complete(asking("solver", "new"))).text == "yes"


def test_a_file_whose_last_line_was_cut_is_replayed_without_it_and_a_warning_says_so(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(Replay.from_file(file), "sum-2", 1, "judge", 1).text == "judge of 2:1"
    assert caplog.messages == []
    file.write_bytes(file.read_bytes()[:-40])
    model = Replay.from_file(file)
    assert ask(model, "sum-2", 0, "judge", 1).text == "judge of 2:0"
    with pytest.raises(ModelError, match="Not recorded"):
        ask(model, "sum-2", 1, "judge", 1)
    assert caplog.messages == [f"the last line of {file} was cut: its episode is not replayed"]


def test_a_file_that_is_missing_or_not_episodes_is_named(tmp_path: Path, file: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl: No such file"):
        Replay.from_file(tmp_path / "nowhere.jsonl")
    with file.open("a") as lines:
        lines.write('{"id": "t:0"}\n')
    with pytest.raises(DataError, match=r"episodes\.jsonl:5: not an episode: .*as `rolegraph run` writes it"):
        Replay.from_file(file)
    with pytest.raises(DataError, match=r"runs/mine/episodes\.jsonl: No such file"):
        (tmp_path / "runs" / "mine").mkdir(parents=True)
        Replay.from_file(tmp_path / "runs" / "mine")
    with pytest.raises(UsageError, match=r"replay:episodes\.jsonl"):
        asyncio.run(open_model(ModelRef(provider="replay")))
