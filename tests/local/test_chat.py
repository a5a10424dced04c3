"""The service's chat completions, through OpenAI's own client and through `rolegraph run`."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from rolegraph.engine.records.episodes import read_episodes
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command, rolegraph

__all__ = ["rolegraph"]
pytestmark = pytest.mark.service


@pytest.fixture
def chat(service: LocalService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.base_url}/v1", api_key=service.api_key, max_retries=0)


def ask(client: openai.OpenAI, **options: object) -> openai.types.chat.ChatCompletion:
    messages = [{"role": "user", "content": "hello"}]
    given = {"max_tokens": 12, "seed": 3, **options}
    return client.chat.completions.create(model="", messages=messages, **given)


def served(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_an_answer_has_its_tokens_and_their_logprobs(chat: openai.OpenAI) -> None:
    asked = {"logprobs": True, "extra_body": {"return_token_ids": True, "model": served(chat)}}
    found = ask(chat, **asked)
    (choice,) = found.choices
    ids = choice.model_extra["token_ids"]
    assert choice.logprobs and choice.logprobs.content
    assert len(ids) == len(choice.logprobs.content) == found.usage.completion_tokens <= 12
    assert len(found.model_extra["prompt_token_ids"]) == found.usage.prompt_tokens
    assert all(token.logprob <= 0 for token in choice.logprobs.content)


def test_the_same_seed_gives_the_same_answers_and_n_gives_several(chat: openai.OpenAI) -> None:
    name = {"extra_body": {"model": served(chat)}}
    first, again = (ask(chat, n=3, **name) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"extra_body": {"model": "gpt"}}, "this service has no model 'gpt'"),
        ({"temperature": -1}, "temperature: Input should be greater than or equal to 0"),
        (
            {"extra_body": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}},
            "type: Input should be 'text'",
        ),
        (
            {"extra_body": {"messages": [{"role": "user", "content": "x" * 300}]}},
            "This model's maximum context length is 256 tokens",
        ),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(
    options: dict[str, object], said: str, chat: openai.OpenAI
) -> None:
    body = {"model": served(chat), **options.get("extra_body", {})}
    with pytest.raises(openai.APIStatusError, match=said):
        ask(chat, **{**options, "extra_body": body})


def test_a_wrong_key_is_refused(service: LocalService) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="wrong", max_retries=0).models.list()


def test_a_workflow_runs_over_it(
    service: LocalService, chat: openai.OpenAI, rolegraph: Command, tmp_path: Path
) -> None:
    words = ("--model", f"openai:{served(chat)}", "--base-url", f"{service.base_url}/v1", "--out", "run")
    short = ("sampling.max_tokens=8", 'roles.judge.prompt="{{ solver[0].index }}"')
    done = rolegraph("run", "solver_judge", *short, "--limit", "2", *words, OPENAI_API_KEY=service.api_key)
    assert done.returncode == 0, done.stderr
    steps = [t.steps[0] for e in read_episodes(tmp_path / "run" / "episodes.jsonl") for t in e.trajectories]
    assert len(steps) == 6
    assert all(len(step.response_ids) == len(step.logprobs) > 0 for step in steps)
