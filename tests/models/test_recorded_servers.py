"""Tests of the client against answers that real servers gave, replayed by an endpoint on this machine.

`tests/data/servers.json` has the answers of llama.cpp's server, llama-cpp-python's server, `transformers
serve` and LiteLLM's proxy before `rolegraph serve` (November 2026) to requests with each set of fields.
`test_real_servers.py` asks the servers themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from rolegraph.engine.errors import ContextFull
from rolegraph.engine.models import Completion
from tests.cli.conftest import Command
from tests.cli.conftest import rolegraph as rolegraph
from tests.models.edges import chat_answer, serving
from tests.models.test_openai import ask

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "servers.json").read_text("utf-8")
)
EXTRAS = {"logprobs", "top_logprobs", "return_token_ids", "return_prompt_token_ids"}


def replayed(server: str) -> Callable[[dict[str, Any]], Response]:
    """Return a function that answers as the server did to a request with the same extra fields."""

    def answer(body: dict[str, Any]) -> Response:
        fields = sorted(EXTRAS & body.keys())
        (row,) = [row for row in RECORDED[server]["answers"] if row["fields"] == fields]
        return JSONResponse(row["answer"], status_code=row["status"])

    return answer


def asked(server: str, times: int = 1) -> tuple[list[Completion], int]:
    """Ask a replayed server; return its answers and the number of requests that it got."""
    with serving(replayed(server)) as endpoint:
        return ask(endpoint, times=times), len(endpoint.bodies)


@pytest.mark.parametrize(
    ("server", "prompt", "ids", "logprobs"),
    [
        ("llama.cpp", 0, 4, 4),
        ("llama-cpp-python", 0, 0, 4),
        ("transformers serve", 0, 0, 0),
        ("LiteLLM", 16, 4, 4),
    ],
)
def test_the_tokens_that_a_server_gives_are_kept_and_missing_logprobs_are_named_once(
    server: str, prompt: int, ids: int, logprobs: int, caplog: pytest.LogCaptureFixture
) -> None:
    answers, _ = asked(server, times=3)
    for answer in answers:
        assert (len(answer.prompt_ids), len(answer.response_ids), len(answer.logprobs)) == (
            prompt,
            ids,
            logprobs,
        )
        assert answer.text
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == (not logprobs)
    assert all("`logprobs`" in text and "http://127.0.0.1" in text for text in warned)


@pytest.mark.parametrize(
    ("server", "refused"),
    [("llama.cpp", 0), ("llama-cpp-python", 0), ("transformers serve", 1), ("LiteLLM", 1)],
)
def test_a_refused_field_costs_one_request_and_takes_no_other_field_along(server: str, refused: int) -> None:
    _, requests = asked(server, times=2)
    assert requests == 2 + refused


def test_answers_without_likeliest_tokens_were_too_large_or_lacked_logprobs() -> None:
    def entries(server: str, fields: list[str]) -> int:
        (row,) = [row for row in RECORDED[server]["answers"] if row["fields"] == fields]
        choice = row["answer"]["choices"][0]
        return sum(len(token["top_logprobs"]) for token in (choice.get("logprobs") or {}).get("content", ()))

    assert entries("llama.cpp", ["logprobs"]) == 20 * entries("llama.cpp", ["logprobs", "top_logprobs"])
    assert entries("llama-cpp-python", ["logprobs"]) == 0


@pytest.mark.parametrize("server", [name for name, recorded in RECORDED.items() if "full" in recorded])
def test_a_prompt_beyond_the_context_of_a_server_is_context_full(server: str) -> None:
    full = RECORDED[server]["full"]
    with (
        serving(lambda _: JSONResponse(full["answer"], status_code=full["status"])) as endpoint,
        pytest.raises(ContextFull),
    ):
        ask(endpoint)


@pytest.mark.parametrize(
    ("refused", "words", "sent"),
    [
        ("logprobs", "unsupported: {body}", [EXTRAS, {"logprobs", "top_logprobs"}, {"logprobs"}, set[str]()]),
        ("logprobs", "unsupported: logprobs", [EXTRAS, EXTRAS - {"logprobs", "top_logprobs"}]),
        ("top_logprobs", "top_logprobs is not served", [EXTRAS, EXTRAS - {"top_logprobs"}]),
    ],
    ids=["the whole request is quoted", "one field is named", "a dependent field is named"],
)
def test_fields_are_left_out_by_the_words_of_the_refusal(
    refused: str, words: str, sent: list[set[str]]
) -> None:
    def strict(body: dict[str, Any]) -> Response:
        message = words.format(body=json.dumps(body))
        error = {"error": {"message": message}}
        return JSONResponse(error, status_code=400) if refused in body else chat_answer("two")

    with serving(strict) as endpoint:
        ask(endpoint)
    assert [EXTRAS & body.keys() for body in endpoint.bodies] == sent


SPEC = """
rolegraph: 2
name: ask
data: {train: rows.jsonl}
model: {provider: openai, escape_markers: false}
roles:
  solver: {prompt: "{{ task.question }}", parser: text, reward: {matches: two}, estimator: grpo}
"""
LONG = "two, as everybody can see who looks at the question"


@pytest.mark.parametrize(("text", "warns"), [(lambda n: LONG, True), (lambda n: f"{LONG} {n}", False)])
def test_a_run_says_once_that_repeated_prompts_have_equal_answers(
    text: Callable[[int], str], warns: bool, rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "{n}?"}}\n' for n in range(10)))
    (tmp_path / "ask.yaml").write_text(SPEC)
    with serving(lambda body: chat_answer(text(body["seed"]))) as endpoint:
        words = ("run", "ask.yaml", "--rollouts", "2", "--out", "out", "--model", "openai:tiny")
        done = rolegraph(*words, "--base-url", endpoint.base_url)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("do_sample") == warns
    assert done.stderr.count("`logprobs`") == 1
    log = (tmp_path / "out" / "log.txt").read_text()
    assert log.count("do_sample") == warns and log.count("`logprobs`") == 1


def test_an_endpoint_cannot_be_trained_and_the_message_names_models_that_can(
    rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1?"}\n' * 4)
    (tmp_path / "ask.yaml").write_text(SPEC)
    with serving(replayed("llama-cpp-python")) as endpoint:
        words = ("train", "ask.yaml", "--out", "out", "--model", "openai:tiny")
        done = rolegraph(*words, "--base-url", endpoint.base_url)
        assert not endpoint.bodies
    assert done.returncode != 0
    assert "openai" in done.stderr and "local" in done.stderr and "tinker" in done.stderr
