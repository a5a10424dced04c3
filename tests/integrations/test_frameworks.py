"""Client frameworks against /v1 of a real service, with the settings of docs/clients.md."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
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


def lm_eval(url: str, key: str, model: str) -> Any:
    rows = [
        {"question": "2 + 3 is", "choices": ["5", "six"], "answer": 0},
        {"question": "4 + 4 is", "choices": ["seven", "8"], "answer": 1},
    ]
    server = f"model={model},base_url={url}/completions"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "rows.jsonl")
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(folder, "sums.yaml").write_text(f"""
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {folder}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
""")
        tasks = importlib.import_module("lm_eval.tasks").TaskManager(
            include_path=folder, include_defaults=False
        )
        found = importlib.import_module("lm_eval").simple_evaluate(
            model="local-completions",
            model_args=f"{server},tokenizer_backend=huggingface,tokenizer={BASE_MODEL}",
            tasks=["sums"],
            task_manager=tasks,
            bootstrap_iters=0,
        )
    assert 0 <= found["results"]["sums"]["acc,none"] <= 1
    assert all(answer[0][0] < 0 for row in found["samples"]["sums"] for answer in row["resps"])
    return Choice(x=3)


def tinker_cookbook(url: str, key: str, model: str) -> Any:
    import tinker

    renderers = importlib.import_module("tinker_cookbook.renderers")
    tokenizer = importlib.import_module("tinker_cookbook.tokenizer_utils").get_tokenizer(str(BASE_MODEL))
    renderer = renderers.get_renderer("role_colon", tokenizer)
    prompt = renderer.build_generation_prompt([{"role": "user", "content": ASK}])
    client = tinker.ServiceClient(base_url=url.removesuffix("/v1"), api_key=key)
    sampler = client.create_sampling_client(base_model=str(BASE_MODEL)).result()

    def sample(stop: list[str]) -> list[list[int]]:
        params = tinker.SamplingParams(max_tokens=256, stop=stop, seed=1)
        return [answer.tokens for answer in sampler.sample(prompt, 8, params).result().sequences]

    ends = {renderer.parse_response(tokens)[1].name for tokens in sample(renderer.get_stop_sequences())}
    assert "EOS" in ends
    texts = [tokenizer.decode(tokens) for tokens in sample(["</answer>"])]
    assert any(text.endswith("</answer>") for text in texts)
    return Choice(x=3)


def inspect_ai(url: str, key: str, model: str) -> Any:
    library = importlib.import_module("inspect_ai")
    solvers = importlib.import_module("inspect_ai.solver")
    tools = importlib.import_module("inspect_ai.tool")
    models = importlib.import_module("inspect_ai.model")

    @tools.tool
    def choose() -> Callable[..., Any]:
        async def execute(number: Literal["3", "4"]) -> str:
            """Choose a number.

            Args:
                number: The number.
            """
            return number

        return execute

    forced = solvers.use_tools(choose(), tool_choice=tools.ToolFunction("choose"))
    sample = importlib.import_module("inspect_ai.dataset").Sample(input=ASK)
    with tempfile.TemporaryDirectory() as folder:
        (log,) = library.eval(
            library.Task(dataset=[sample], solver=[forced, solvers.generate()], message_limit=4),
            model=models.get_model(f"openai/{model}", base_url=url, api_key=key, responses_api=False),
            max_tokens=64,
            log_dir=folder,
            display="none",
        )
        assert log.status == "success", log.error
        messages = log.samples[0].messages  # read from the folder at first use
    assert [message.role for message in messages][:3] == ["user", "assistant", "tool"]
    return Choice.model_validate({"x": int(messages[2].text)})


def verifiers(url: str, key: str, model: str) -> Any:
    library = importlib.import_module("verifiers")
    if not hasattr(library, "ToolEnv"):
        pytest.skip("verifiers 0.4 has no ToolEnv, and its Toolset installs packages for each server")
    datasets = importlib.import_module("datasets")

    def double(number: int) -> int:
        """Double a number.

        Args:
            number: The number.
        """
        return 2 * number

    rows = datasets.Dataset.from_list([{"question": ASK, "answer": "12"}])
    environment = library.ToolEnv(dataset=rows, eval_dataset=rows, tools=[double], max_turns=2)
    client = importlib.import_module("verifiers.types").ClientConfig(
        api_key_var="OPENAI_API_KEY", api_base_url=url
    )
    found = environment.evaluate_sync(
        client=client, model=model, sampling_args={"max_tokens": 32}, num_examples=1, rollouts_per_example=2
    )
    assert [answer["error"] for answer in found["outputs"]] == [None, None]
    assert all(answer["completion"] for answer in found["outputs"])
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
    lm_eval,
    tinker_cookbook,
    verifiers,
    inspect_ai,
]


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.__name__)
def test_a_framework_gets_its_answer(
    service: LocalService, framework: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", service.api_key)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # LiteLLM downloads its prices otherwise
    pytest.importorskip(framework.__name__)
    answer = framework(f"{service.base_url}/v1", service.api_key, service.model_name)
    assert isinstance(answer, Choice)
