"""Tests of vLLM and SGLang with exact tokens, against servers in their protocols with a real model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from rolegraph.engine.errors import ContextFull, ModelError, UsageError, WorldError
from rolegraph.engine.models import Completion, Request, open_model
from rolegraph.engine.records import Trajectory
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.local.launcher import BASE_MODEL
from tests.local.client import plain_logprobs
from tests.models.edges import CALL
from tests.models.token_edge import NAME, Drawn, TokenEdge, token_server

BOTH = pytest.mark.parametrize("provider", ["vllm", "sglang"])
MESSAGES = [{"role": "user", "content": "Use the numbers [3, 5] to make 8."}]
SPEC = """\
rolegraph: 2
name: counter
roles:
  agent:
    prompt: "{{ task.question }}"
    tools: calculator
    max_calls: 6
    sampling: {temperature: 0.7, max_tokens: 12}
    parser: text
    reward: countdown
    estimator: grpo
data: {train: countdown}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[TokenEdge]:
    with token_server() as edge:
        yield edge


@pytest.fixture
def edge(server: TokenEdge) -> TokenEdge:
    """Return the server without faults."""
    server.bodies.clear()
    server.loads.clear()
    server.adapters.clear()
    server.forced = iter(())
    server.processed, server.retokenized, server.allows_loading = True, "", True
    return server


def ask(
    edge: TokenEdge, provider: str, sampling: Sampling, seed: int | None = 1, name: str | None = NAME
) -> Completion:
    async def run() -> Completion:
        ref = ModelRef.model_validate({"provider": provider, "name": name, "base_url": edge.base_url})
        model = await open_model(ref)
        try:
            return await model.complete(Request(MESSAGES, sampling, seed, CALL))
        finally:
            await model.aclose()

    return asyncio.run(run())


def letters(edge: TokenEdge, text: str) -> list[int]:
    """Return the ids of a text letter by letter, and the end of the turn: not as a tokenizer would."""
    encode = edge.tokenizer.encode
    return [token for letter in text for token in encode(letter, add_special_tokens=False)] + [
        edge.tokenizer.eos_token_id
    ]


def chat_of_six_calls(edge: TokenEdge, provider: str, folder: Path) -> Trajectory:
    """Run a role that calls a tool five times, in tokens of single letters, and then answers."""
    calls = (
        f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{n}+1"}}}}</tool_call>'
        for n in range(5)
    )
    edge.forced = iter([letters(edge, call) for call in calls])
    spec = folder / "counter.yaml"
    spec.write_text(SPEC, "utf-8")
    flow = rg.load(spec, model=f"{provider}:{NAME}", base_url=edge.base_url)
    (recorded,) = rg.run(flow, limit=1, out=folder / "run").recorded()
    return recorded.episode.trajectories[0]


@BOTH
def test_a_chat_of_six_turns_with_tools_keeps_every_token(
    edge: TokenEdge, provider: str, tmp_path: Path
) -> None:
    steps = chat_of_six_calls(edge, provider, tmp_path).steps
    assert len(steps) == 6 == len(edge.bodies)
    for step, body in zip(steps, edge.bodies, strict=True):
        assert [*step.prompt_ids] == body["prompt" if provider == "vllm" else "input_ids"]
        tokens = [*step.prompt_ids, *step.response_ids]
        expected = plain_logprobs(BASE_MODEL, tokens, 0.7)[len(step.prompt_ids) - 1 :]
        assert [*step.logprobs] == pytest.approx(expected, abs=1e-4)
    for number, (before, after) in enumerate(pairwise(steps)):
        said = [*before.prompt_ids, *before.response_ids]
        assert [*after.prompt_ids[: len(said)]] == said
        assert edge.decode(before.response_ids).startswith("<tool_call>")
        assert f"tool\n{number + 1}<|im_end|>" in edge.decode(after.prompt_ids[len(said) :])


@BOTH
@pytest.mark.parametrize("part", ["prompt", "answer", "text"])
def test_a_server_that_tokenizes_again_is_caught(
    edge: TokenEdge, provider: str, part: str, tmp_path: Path
) -> None:
    edge.retokenized = part
    if part == "text":
        with pytest.raises(WorldError, match="does not keep tokens: the answer 'another text' has the ids"):
            ask(edge, provider, Sampling(max_tokens=4))
        return
    failure = chat_of_six_calls(edge, provider, tmp_path).failure
    # The first prompt is text that this server's tokenizer gives the same ids; the second has sampled ones.
    assert len(edge.bodies) == (2 if part == "prompt" else 1)
    assert failure is not None and "does not keep tokens" in failure.message
    again = r"the prompt (differs: token \d+|of \d+ tokens has)"
    found = again if part == "prompt" else r"differ: token 1 is \d+"
    assert re.search(found, failure.message), failure.message


@BOTH
def test_log_probabilities_before_temperature_are_told(edge: TokenEdge, provider: str) -> None:
    edge.processed = False
    advice = {"vllm": "--logprobs-mode processed_logprobs", "sglang": "SGLANG_RETURN_ORIGINAL_LOGPROB"}
    with pytest.raises(ModelError, match=advice[provider]) as caught:
        ask(edge, provider, Sampling(temperature=0.7, max_tokens=4))
    assert not caught.value.transient
    assert len(ask(edge, provider, Sampling(max_tokens=4)).logprobs) == 4, "at 1 there is no difference"


@BOTH
def test_a_null_among_the_log_probabilities_keeps_the_answer(
    edge: TokenEdge, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = edge._draw

    def without_the_first(*arguments: Any) -> Drawn:
        drawn = draw(*arguments)
        return drawn._replace(logprobs=[None, *drawn.logprobs[1:]])

    monkeypatch.setattr(edge, "_draw", without_the_first)
    answer = ask(edge, provider, Sampling(max_tokens=4)).checked()
    assert (len(answer.response_ids), answer.logprobs) == (4, ())
    assert answer.unusable_numbers == ("log-probability None",)


@BOTH
def test_the_same_seed_gives_the_same_tokens(edge: TokenEdge, provider: str) -> None:
    first, again, other = (ask(edge, provider, Sampling(max_tokens=8), seed) for seed in (1, 1, 2))
    assert first == again != other


@BOTH
def test_an_answer_ends_with_the_context(edge: TokenEdge, provider: str) -> None:
    completion = ask(edge, provider, Sampling(max_tokens=4), name=None)
    assert completion.finish_reason == "length" and len(completion.response_ids) == 4
    long = Sampling(max_tokens=4)
    with pytest.raises(ContextFull, match="context is 2048 tokens"):
        MESSAGES.append({"role": "user", "content": "x " * 2100})
        try:
            ask(edge, provider, long)
        finally:
            MESSAGES.pop()


@BOTH
def test_an_unknown_model_and_a_missing_server_are_named(edge: TokenEdge, provider: str) -> None:
    with pytest.raises(UsageError, match=r"has no model 'bass'; did you mean 'base'\?"):
        ask(edge, provider, Sampling(), name="bass")
    ref = ModelRef.model_validate({"provider": provider, "base_url": "http://127.0.0.1:9"})
    with pytest.raises(WorldError, match="Nothing answers"):
        asyncio.run(open_model(ref))


@BOTH
def test_a_stand_in_refuses_what_the_real_server_refuses(edge: TokenEdge, provider: str) -> None:
    """The probe once sampled at temperature 10, which vLLM refuses."""
    sampling = {"temperature": 10.0, "top_p": 1.0}
    if provider == "vllm":
        answer = edge.completion({"model": NAME, "prompt": [1], "max_tokens": 1, "logprobs": 1, **sampling})
        assert answer.status_code == 400 and b"temperature" in answer.body
    else:
        answer = edge.generate({"input_ids": [1], "sampling_params": {**sampling, "max_tokens": 1}})
        assert answer.status_code == 400 and b"max_tokens" in answer.body


def test_the_probe_of_a_vllm_server_is_one_that_vllm_takes(
    edge: TokenEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = ModelRef(provider="vllm", name=NAME, base_url=edge.base_url)

    async def opened() -> None:
        await (await open_model(ref)).aclose()

    asyncio.run(opened())
    monkeypatch.setattr("rolegraph.engine.models.token_server._PROBE_TEMPERATURE", 10.0)
    with pytest.raises(WorldError, match="temperature"):
        asyncio.run(opened())


def test_a_temperature_that_vllm_does_not_take_is_a_fault_of_the_spec(edge: TokenEdge) -> None:
    async def asked() -> None:
        model = await open_model(ModelRef(provider="vllm", name=NAME, base_url=edge.base_url))
        try:
            await model.complete(Request(MESSAGES, Sampling(temperature=3.0), 1, CALL))
        finally:
            await model.aclose()

    with pytest.raises(UsageError, match=r"up to 2, and sampling\.temperature of role solver is 3"):
        asyncio.run(asked())


def test_a_stop_has_text() -> None:
    """VLLM and SkyRL refuse an empty one."""
    with pytest.raises(ValueError, match="at least 1 character"):
        Sampling(stop=[""])
