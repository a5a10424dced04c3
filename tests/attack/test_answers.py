"""Tests of hostile answers of a model or its server: huge texts, unpaired surrogates, invalid numbers."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, Response

import rolegraph as rg
from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.limits.answers import (
    ANSWER_TEXT,
    COMPLETION_BYTES,
    COMPLETION_PARTS,
    EPISODE_SIZE,
    FAILURE_TEXT,
)
from rolegraph.engine.models import Completion, Request, open_model
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.vocabulary import ItemCall, ParseFailure, Score, ToolCall, parsers
from tests.cli.conftest import Command, rolegraph
from tests.edge import ScriptedModel, episode, limited, run_one
from tests.models.edges import CALL, chat_answer, serving

__all__ = ["rolegraph"]
SPEC = """rolegraph: 2
name: x
data: {validation: tasks.jsonl}
roles:
  a: {prompt: hi, REWARD}
"""


def spec(folder: Path, reward: str = "reward: countdown") -> Path:
    (folder / "tasks.jsonl").write_text('{"nums": [1, 2], "target": 3}\n')
    (folder / "x.yaml").write_text(SPEC.replace("REWARD", reward))
    return folder / "x.yaml"


@pytest.mark.parametrize("longer", [0, 1])
def test_an_answer_is_read_up_to_a_limit_that_has_a_name(
    tmp_path: Path, rolegraph: Command, longer: int
) -> None:
    spec(tmp_path)
    with serving(lambda _: chat_answer("a" + "\n" * (ANSWER_TEXT.most - 2 + longer) + "1")) as endpoint:
        words = ("run", "x.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "out")
        done = rolegraph(*words)
    assert done.returncode == 0, done.stderr
    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    failure = episode["a"][0].failure
    assert (failure is not None) == bool(longer)
    if failure is not None:
        assert failure.name == "malformed_output"
        assert failure.message.endswith("(limit: answer_text)")


@pytest.mark.parametrize("choices", [{"of": [1]}, {"0": 1}, "ab", 7, [7], [[]], [None], [{"message": 7}]])
def test_choices_that_are_none_are_the_server_s_failure(tmp_path: Path, choices: object) -> None:
    async def ask(url: str) -> None:
        model = await open_model(ModelRef(provider="openai", name="tiny", base_url=url))
        try:
            with pytest.raises(ModelError, match="does not answer as OpenAI") as refused:
                await model.complete(Request([], Sampling(), None, CALL))
            assert refused.value.transient
        finally:
            await model.aclose()

    garbled = JSONResponse({"id": "1", "object": "chat.completion", "choices": choices})
    with serving(lambda _: garbled) as endpoint:
        asyncio.run(ask(endpoint.base_url))


MILLIONS: Mapping[str, Response] = {
    "limit: completion_bytes": Response(b'{"choices": ["' + b"a" * COMPLETION_BYTES.most + b'"]}'),
    "limit: completion_parts": Response(b'{"choices": [' + b"{}," * COMPLETION_PARTS.most + b"{}]}"),
    "Content-Encoding is": Response(gzip.compress(b"{}"), headers={"content-encoding": "gzip"}),
}


@pytest.mark.parametrize("says", MILLIONS)
def test_an_endpoint_that_sends_without_end_is_not_heard_out(says: str) -> None:
    async def ask(url: str) -> None:
        model = await open_model(ModelRef(provider="openai", name="tiny", base_url=url))
        try:
            with pytest.raises(ModelError, match=says) as refused:
                await model.complete(Request([], Sampling(), None, CALL))
            assert not refused.value.transient
        finally:
            await model.aclose()

    with serving(lambda _: MILLIONS[says]) as endpoint:
        asyncio.run(ask(endpoint.base_url))


DEEP = "[" * 60 + "1," * 100_000 + "1" + "]" * 60


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"items": {"allOf": [{"type": "integer"}] * 200}}, DEEP),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}, str([*range(20_000)])),
        ({"items": {"required": [f"k{n}" for n in range(2_000)]}}, "[{}, {}, {}, {}, {}, {}]"),
        ({"items": {"type": "integer"}}, str([*range(40_000)])),
    ],
    ids=["faults that show all", "references", "a fault for each name", "an item each"],
)
def test_what_a_check_against_a_schema_takes_is_paid_for(schema: object, answer: str) -> None:
    parse = parsers.build(ItemCall("json", schema, has_value=True)).parse
    with pytest.raises(ParseFailure, match="limit: schema_work"):
        parse(answer, {})


def test_half_a_character_in_a_server_s_error_is_spelt_out(tmp_path: Path, rolegraph: Command) -> None:
    spec(tmp_path)
    half = Response(b'{"error": {"message": "no \\ud83d"}}', 400, media_type="application/json")
    with serving(lambda _: half) as endpoint:
        words = ("run", "x.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "out")
        done = rolegraph(*words)
    assert done.returncode == 1
    assert "\\ud83d" in done.stdout
    assert "Traceback" not in done.stderr
    assert [*read_episodes(tmp_path / "out" / "episodes.jsonl")]


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_term_that_is_no_finite_number_is_a_reward_error(tmp_path: Path, value: float) -> None:
    @rg.reward(name="odd", pure=True)
    def odd(task: object, action: object) -> Score:
        return Score(1.0, True, {"named": value})

    async def run(url: str) -> rg.Episode:
        async with rg.load(spec(tmp_path, "reward: odd")).open(model="openai:tiny", base_url=url) as flow:
            return await flow.episode({"id": "1"})

    assert odd
    with serving(lambda _: chat_answer("a")) as endpoint:
        failure = asyncio.run(run(endpoint.base_url))["a"][0].failure
    assert failure is not None
    assert failure.name == "reward_error"
    assert failure.message == f"the reward's term 'named' is {value}"


def test_two_hundred_words_are_looked_for_in_a_long_answer() -> None:
    parse = parsers.build(
        ItemCall("one_of", [f"word {n}" for n in range(199)] + ["İx"], has_value=True)
    ).parse
    assert parse("\n" * ANSWER_TEXT.most + "WORD 7", {}) == "word 7"
    assert parse("word 17 and Word 17.", {}) == "word 17"
    with pytest.raises(ParseFailure, match=r"found word 1, word 2$"):
        parse("word 1 word 2 sword 3 word 45x", {})


TALKER = """rolegraph: 2
name: talker
roles:
  a: {prompt: hi, tools: calculator, max_calls: 60}
"""
CALCULATES = ToolCall("calculator", {"expression": "1 + 1"})


class Answering(ScriptedModel):
    """Model that gives one completion again and again."""

    def __init__(self, completion: Completion) -> None:
        super().__init__(str)
        self.completion = completion

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        return self.completion


LONG = "a" * 7_900_000
EPISODE = EPISODE_SIZE._replace(most=EPISODE_SIZE.most // 10)
"""Limit of these tests, which would take long to reach that of users."""
KEEPS: Mapping[str, tuple[Completion, str, int]] = {
    "a text with a call": (Completion(LONG, calls=(CALCULATES,)), "limit: answer_text", 1),
    "a call's argument": (
        Completion("", calls=(ToolCall("calculator", {"expression": LONG}),)),
        "limit: answer_text",
        1,
    ),
    "a call that cannot be read": (
        Completion("", calls=(ToolCall("", {}, malformed=LONG),)),
        "limit: answer_text",
        1,
    ),
    "tokens": (
        Completion("a", response_ids=[7] * 400_001, logprobs=[0.0] * 400_001),
        "limit: answer_text",
        1,
    ),
    "thoughts": (Completion("a", LONG, calls=(CALCULATES,)), "limit: episode_size", 1),
    "thoughts again and again": (
        Completion("a", LONG[: EPISODE.most // 10], calls=(CALCULATES,)),
        "limit: episode_size",
        10,
    ),
    "tokens of the prompt": (
        Completion("a", prompt_ids=[7] * (EPISODE.most // 10), response_ids=[7], calls=(CALCULATES,)),
        "limit: episode_size",
        10,
    ),
}


@pytest.mark.parametrize("what", KEEPS)
def test_an_episode_keeps_no_more_of_its_answers_than_the_limits_say(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.run.turn.EPISODE_SIZE", EPISODE)
    completion, says, calls = KEEPS[what]
    (tmp_path / "x.yaml").write_text(TALKER)
    plan, model = compile_file(tmp_path / "x.yaml"), Answering(completion)
    done = run_one(plan, model)
    (trajectory,) = done.trajectories
    assert trajectory.failure is not None
    assert says in trajectory.failure.message
    assert len(model.requests) == calls
    kept = sum(
        len(step.model_response) + len(step.thought) + len(step.prompt_ids) + len(step.response_ids)
        for step in trajectory.steps
    )
    assert kept <= EPISODE.most
    if says == "limit: answer_text":
        assert len(json.dumps(done.to_dict())) < 10 * ANSWER_TEXT.most
        replayed = asyncio.run(episode(plan, limited(plan, Replay.from_episodes([done]))))
        assert replayed["a"][0].failure == trajectory.failure


def test_the_results_of_tools_count_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolegraph.engine.run.turn.EPISODE_SIZE", EPISODE_SIZE._replace(most=3))
    (tmp_path / "x.yaml").write_text(
        TALKER.replace("{prompt", "{count: 2, run: {calculator: '12'}}\n  b: {prompt")
    )
    done = run_one(compile_file(tmp_path / "x.yaml"), ScriptedModel(lambda _: ""))
    first, second = (trajectory.failure for trajectory in done["a"])
    assert first is None
    assert second is not None
    assert second.name == "tool_error"
    assert "limit: episode_size" in second.message


def test_a_failure_keeps_no_more_of_a_server_s_words_than_its_limit_says(tmp_path: Path) -> None:
    def refuse(_: Request) -> str:
        raise ModelError("a" * 1_000_000)

    (tmp_path / "x.yaml").write_text(TALKER)
    failure = run_one(compile_file(tmp_path / "x.yaml"), ScriptedModel(refuse))["a"][0].failure
    assert failure is not None
    assert failure.message == "a" * FAILURE_TEXT.most
