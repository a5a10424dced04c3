"""Client frameworks against /v1 of a real service, with the settings of docs/clients.md."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

pytest.importorskip("torch", reason="needs the extra `local`")
pytest.importorskip("llguidance", reason="needs the extra `structured`")

from rolegraph.local.launcher import BASE_MODEL, LocalService, running

pytestmark = [pytest.mark.service, pytest.mark.frameworks]
ASK = "Numbers: 3, 4, 5. Target: 12."


class Choice(BaseModel):
    """An answer that the shipped model ends soon."""

    x: Literal[3, 4, 5, 12]


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with running(BASE_MODEL, threads=1) as started:
        yield started


def litellm(url: str, key: str, model: str) -> Any:
    found = importlib.import_module("litellm").completion(
        model=f"openai/{model}",
        api_base=url,
        api_key=key,
        messages=[{"role": "user", "content": ASK}],
        response_format=Choice,
        max_tokens=64,
    )
    return Choice.model_validate_json(found.choices[0].message.content)


def langchain_openai(url: str, key: str, model: str) -> Any:
    chat = importlib.import_module("langchain_openai").ChatOpenAI(
        model=model, base_url=url, api_key=key, max_tokens=64
    )
    assert chat.with_structured_output(Choice, method="json_schema").invoke(ASK).x
    return chat.with_structured_output(Choice, method="function_calling", tool_choice="Choice").invoke(ASK)


def pydantic_ai(url: str, key: str, model: str) -> Any:
    openai = importlib.import_module("pydantic_ai.models.openai")
    provider = importlib.import_module("pydantic_ai.providers.openai").OpenAIProvider(
        base_url=url, api_key=key
    )
    agent = importlib.import_module("pydantic_ai").Agent(
        openai.OpenAIChatModel(model, provider=provider),
        output_type=Choice,
        model_settings={"max_tokens": 64},
    )
    return agent.run_sync(ASK).output


def agents(url: str, key: str, model: str) -> Any:
    import openai

    library = importlib.import_module("agents")
    library.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key=key)
    agent = library.Agent(
        name="a",
        instructions="hi",
        output_type=Choice,
        model=library.OpenAIChatCompletionsModel(model=model, openai_client=client),
        model_settings=library.ModelSettings(max_tokens=64),
    )
    return library.Runner.run_sync(agent, ASK).final_output


def instructor(url: str, key: str, model: str) -> Any:
    import openai

    library = importlib.import_module("instructor")
    client = library.from_openai(openai.OpenAI(base_url=url, api_key=key), mode=library.Mode.TOOLS)
    messages = [{"role": "user", "content": ASK}]
    return client.chat.completions.create(
        model=model, response_model=Choice, messages=messages, max_tokens=64
    )


def llama_index(url: str, key: str, model: str) -> Any:
    chat = importlib.import_module("llama_index.llms.openai_like").OpenAILike(
        model=model, api_base=url, api_key=key, is_chat_model=True, context_window=2048, max_tokens=64
    )
    assert chat.complete(ASK).text
    return Choice(x=3)


def smolagents(url: str, key: str, model: str) -> Any:
    library = importlib.import_module("smolagents")
    chat = library.OpenAIServerModel(model_id=model, api_base=url, api_key=key, max_tokens=64)
    assert chat([{"role": "user", "content": ASK}]).content
    return Choice(x=3)


def dspy(url: str, key: str, model: str) -> Any:
    library = importlib.import_module("dspy")
    assert library.LM(f"openai/{model}", api_base=url, api_key=key, max_tokens=32, cache=False)(ASK)
    return Choice(x=3)


FRAMEWORKS = [
    litellm,
    langchain_openai,
    pydantic_ai,
    agents,
    instructor,
    llama_index,
    smolagents,
    dspy,
]


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.__name__)
def test_a_framework_gets_its_answer(service: LocalService, framework: Callable[..., Any]) -> None:
    pytest.importorskip(framework.__name__)
    answer = framework(f"{service.base_url}/v1", service.api_key, service.model_name)
    assert isinstance(answer, Choice)
