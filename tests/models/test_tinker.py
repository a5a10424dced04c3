"""Tests of the Tinker SDK's own client, from messages to an answer with every token."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from rolegraph.engine.errors import ModelError, UsageError, WorldError
from rolegraph.engine.models import Completion, Model, Request, ServedModel, open_model, open_served
from rolegraph.engine.models.tokenizer import hub_name, load_tokenizer
from rolegraph.engine.models.types import LogprobScorer
from rolegraph.engine.prompts import ChatPrefix
from rolegraph.engine.prompts.chat import Tokenizer
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.vocabulary import Function, ToolCall
from tests.models.edges import CALL, free_port, served, write_tokenizer
from tests.models.tinker_edge import Script, Service, failed, tinker_service
from tests.prompts.templates import HERMES

KEY = "tml-test-secret"
MESSAGES = [{"role": "user", "content": "1 + 1?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture
def says(tokenizer: Tokenizer) -> Callable[[str], Script]:
    """Return a function from a text to a script that always samples this text, at log-probability -0.5."""

    def script(text: str) -> Script:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return lambda _: (ids, [-0.5] * len(ids), "stop" if text.endswith(">") else "length")

    return script


def request(seed: int | None = None, **sampling: object) -> Request:
    return Request(MESSAGES, Sampling.model_validate(sampling), seed, CALL)


def using(service: Service, folder: Path, work: Callable[[Model], Awaitable[object]], **ref: object) -> None:
    """Open the service's model, do `work` with it, close it."""

    async def run() -> None:
        opened = ModelRef.model_validate({"provider": "tinker", "base_url": service.base_url, **ref})
        model = await open_served(ServedModel(opened, api_key=KEY, tokenizer_dir=folder))
        try:
            await work(model)
        finally:
            await model.aclose()

    asyncio.run(run())


def ask(service: Service, folder: Path, wanted: Request, **ref: object) -> Completion:
    answers: list[Completion] = []

    async def work(model: Model) -> None:
        answers.append(await model.complete(wanted))

    using(service, folder, work, **ref)
    return answers[0]


def failure(script: Script, folder: Path) -> ModelError:
    with tinker_service(script) as service, pytest.raises(ModelError) as caught:
        ask(service, folder, request())
    return caught.value


def test_an_answer_keeps_every_token_and_splits_thought_from_text(
    folder: Path, tokenizer: Tokenizer, says: Callable[[str], Script]
) -> None:
    said = "<think>add</think><answer>2</answer><|end|>"
    with tinker_service(says(said)) as service:
        completion = ask(service, folder, request())
    prompt = "<|start|>user\n1 + 1?<|end|>\n<|start|>assistant\n"
    assert (completion.thought, completion.text) == ("add", "<answer>2</answer>")
    assert completion.finish_reason == "stop"
    assert list(completion.prompt_ids) == tokenizer.encode(prompt, add_special_tokens=False)
    assert list(completion.response_ids) == tokenizer.encode(said, add_special_tokens=False)
    assert list(completion.logprobs) == [-0.5] * len(completion.response_ids)
    assert service.finished == 1
    assert service.keys == {KEY}


def test_the_request_says_how_to_sample_and_where_a_turn_ends(
    folder: Path, tokenizer: Tokenizer, says: Callable[[str], Script]
) -> None:
    with tinker_service(says("2")) as service:
        completion = ask(
            service, folder, request(seed=17, temperature=0.5, top_p=0.9, max_tokens=64), name="tiny"
        )
    params = service.asked[0]["sampling_params"]
    assert (params["temperature"], params["top_p"], params["max_tokens"]) == (0.5, 0.9, 64)
    assert params["seed"] == 17
    assert params["stop"] == tokenizer.encode("<|end|><|text|>", add_special_tokens=False)
    assert completion.finish_reason == "length"


def test_stop_texts_go_along_with_the_end_of_turn_and_are_cut_from_the_text(
    folder: Path, says: Callable[[str], Script]
) -> None:
    with tinker_service(says("two</a>")) as service:
        completion = ask(service, folder, request(stop=["</a>"]))
    assert service.asked[0]["sampling_params"]["stop"] == ["</a>", "<|end|>", "<|text|>"]
    assert completion.text == "two"


def test_an_answer_is_asked_no_longer_than_the_context_has_room(
    folder: Path, says: Callable[[str], Script]
) -> None:
    with tinker_service(says("2"), context=40) as service:
        completion = ask(service, folder, request(max_tokens=1000))
    assert service.asked[0]["sampling_params"]["max_tokens"] == 40 - len(completion.prompt_ids)


def test_a_prompt_that_does_not_fit_says_so_and_is_not_sent(
    folder: Path, says: Callable[[str], Script]
) -> None:
    with (
        tinker_service(says("2"), context=8) as service,
        pytest.raises(ModelError, match=r"does not fit: it has \d+ tokens.*context is 8 tokens") as caught,
    ):
        ask(service, folder, request())
    assert not caught.value.transient
    assert service.asked == []


@pytest.mark.parametrize(("category", "transient"), [("user", False), ("server", True), ("unknown", True)])
def test_a_failed_operation_may_pass_unless_it_is_the_users(
    folder: Path, category: str, transient: bool
) -> None:
    error = failure(lambda _: failed("out of memory", category), folder)
    assert str(error) == "out of memory"
    assert error.transient is transient


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_request_does_not_pass_and_shows_no_key(folder: Path, status: int) -> None:
    error = failure(lambda _: JSONResponse({"detail": f"no: {KEY}"}, status_code=status), folder)
    assert not error.transient
    assert KEY not in str(error)


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (401, UsageError, "refuses the key in TINKER_API_KEY"),
        (403, UsageError, "refuses the key in TINKER_API_KEY"),
        (404, WorldError, "no longer has the session or its weights"),
        (410, WorldError, "no longer has the session or its weights"),
    ],
)
def test_a_refusal_that_every_later_call_would_meet_is_no_failure_of_a_turn(
    folder: Path, status: int, kind: type[Exception], message: str
) -> None:
    refusal = JSONResponse({"detail": f"no: {KEY}"}, status_code=status)
    with tinker_service(lambda _: refusal) as service, pytest.raises(kind, match=message) as caught:
        ask(service, folder, request())
    assert KEY not in str(caught.value) and "--resume" in str(caught.value)


@pytest.mark.parametrize(
    "garbage",
    [
        Response(b""),
        Response(b"<html>Bad gateway</html>", media_type="text/html"),
        Response(b'{"request_id": "x", "sequ', media_type="application/json"),
        Response(b"\xff\xff\xff", media_type="application/x-protobuf"),
        JSONResponse({"sequences": 7}),
    ],
    ids=["nothing", "HTML", "half a JSON", "no protobuf", "another JSON"],
)
def test_what_is_no_answer_may_pass(folder: Path, garbage: Response) -> None:
    assert failure(lambda _: garbage, folder).transient


def test_hundreds_of_calls_at_once_are_each_answered(folder: Path, says: Callable[[str], Script]) -> None:
    async def work(model: Model) -> None:
        answers = await asyncio.gather(*(model.complete(request(seed=i)) for i in range(300)))
        assert {answer.text for answer in answers} == {"two"}

    with tinker_service(says("two<|end|>")) as service:
        using(service, folder, work)
    assert {body["sampling_params"]["seed"] for body in service.asked} == set(range(300))


def test_a_cancelled_call_leaves_nothing_running(folder: Path) -> None:
    async def work(model: Model) -> None:
        before = asyncio.all_tasks()
        call = asyncio.create_task(model.complete(request()))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == before

    with tinker_service(lambda _: JSONResponse({"type": "try_again"})) as service:
        using(service, folder, work)


async def complete(model: Model) -> object:
    return await model.complete(request())


async def logprobs(model: Model) -> object:
    assert isinstance(model, LogprobScorer)
    return await model.logprobs([1, 2], [3])


@pytest.mark.parametrize("asking", [complete, logprobs])
def test_a_service_that_goes_away_fails_its_calls(
    asking: Callable[[Model], Awaitable[object]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.models.tinker._PATIENCE_SECONDS", 0.3)

    async def run() -> None:
        with tinker_service(lambda _: JSONResponse({"type": "try_again"})) as service:
            service.scoring = service.script
            ref = ModelRef(provider="tinker", base_url=service.base_url)
            model = await open_served(ServedModel(ref, api_key=KEY, tokenizer_dir=folder))
            calls = [asyncio.ensure_future(asking(model)) for _ in range(20)]
            await asyncio.sleep(0.2)
        async with asyncio.timeout(600):  # an answer would never come
            results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            assert isinstance(result, ModelError)
            assert f"service at {service.base_url} is gone" in str(result)
            assert result.transient
        monkeypatch.setattr("rolegraph.engine.models.tinker._CLOSE_SECONDS", 0.2)
        await model.aclose()

    asyncio.run(run())


def test_weights_are_sampled_by_their_path_and_need_no_name(
    folder: Path, says: Callable[[str], Script]
) -> None:
    with tinker_service(says("2<|end|>")) as service:
        assert ask(service, folder, request(), checkpoint="tinker://run/weights/1").text == "2"
        with pytest.raises(
            UsageError,
            match=r"'weights/1' is not a path of weights; expected a path that starts with tinker://",
        ):
            ask(service, folder, request(), checkpoint="weights/1")


def test_a_model_that_the_service_does_not_have_is_named_with_the_nearest_it_has(
    folder: Path, says: Callable[[str], Script]
) -> None:
    with tinker_service(says("2")) as service, pytest.raises(UsageError) as caught:
        ask(service, folder, request(), name="tinny")
    assert "cannot sample from 'tinny'" in str(caught.value)
    assert "Did you mean 'tiny'?" in str(caught.value)


def test_a_missing_key_is_a_usage_error_that_names_the_variable() -> None:
    with pytest.raises(UsageError, match="TINKER_API_KEY is not set"):
        asyncio.run(open_model(ModelRef(provider="tinker", name="some/model")))


def test_a_key_of_another_kind_is_a_usage_error_that_does_not_show_it() -> None:
    with pytest.raises(UsageError, match="not a Tinker key") as caught:
        asyncio.run(
            open_served(ServedModel(ModelRef(provider="tinker", name="some/model"), api_key="sk-secret"))
        )
    assert "secret" not in str(caught.value)


def test_a_spec_alone_cannot_send_the_key_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    with pytest.raises(UsageError, match=r"not sent to https://evil\.example.*--base-url"):
        asyncio.run(open_model(ModelRef(provider="tinker", base_url="https://evil.example")))


def test_an_endpoint_that_is_down_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(WorldError, match=f"No Tinker service answers at {url}"):
        asyncio.run(open_served(ServedModel(ModelRef(provider="tinker", base_url=url), api_key=KEY)))


def test_a_url_of_something_else_is_a_usage_error() -> None:
    with served(Starlette()) as url, pytest.raises(UsageError, match="not as a Tinker service does"):
        asyncio.run(open_served(ServedModel(ModelRef(provider="tinker", base_url=url), api_key=KEY)))


ALONE = """
import asyncio, os, sys
from pathlib import Path
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request, ServedModel, open_served
from rolegraph.engine.records import CallId, NodeId
from rolegraph.engine.spec import ModelRef, Sampling

async def main():
    ref = ModelRef(provider="tinker", base_url=sys.argv[1])
    model = await open_served(ServedModel(ref, tokenizer_dir=Path(sys.argv[2])))
    ask = Request([{"role": "user", "content": "?"}], Sampling(), None, CallId("t", 0, NodeId("solver")))
    print((await model.complete(ask)).text)
    try:
        await model.complete(ask)
    except ModelError as error:
        print(error)
    calls = [asyncio.create_task(model.complete(ask)) for _ in range(20)]
    await asyncio.sleep(0.2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await model.aclose()

asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # as the command does: the SDK's native threads now and then abort in the interpreter's teardown
"""


def test_a_program_of_its_own_prints_nothing_but_what_it_means_to(
    folder: Path, says: Callable[[str], Script]
) -> None:
    replies = iter([says("two<|end|>")({}), failed("out of memory", "server")])
    with tinker_service(lambda _: next(replies, JSONResponse({"type": "try_again"}))) as service:
        done = subprocess.run(
            [sys.executable, "-c", ALONE, service.base_url, str(folder)],
            env={**os.environ, "TINKER_API_KEY": KEY},
            capture_output=True,
            text=True,
        )
    assert (done.stdout, done.stderr, done.returncode) == ("two\nout of memory\n", "", 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B:peft:131072", "Qwen/Qwen3-8B"),
        ("org/model/variant", "org/model"),
        ("/models/mine/v1", "/models/mine/v1"),
    ],
)
def test_the_tokenizer_of_a_hosted_model_is_looked_up_without_the_services_variant(
    name: str, expected: str
) -> None:
    assert hub_name(name) == expected


def test_a_chat_that_goes_on_is_sent_as_the_tokens_that_it_is(
    folder: Path, says: Callable[[str], Script]
) -> None:
    tokenizer = load_tokenizer(folder)
    asked = [*MESSAGES, {"role": "assistant", "content": "two"}, {"role": "user", "content": "And 2 + 2?"}]
    with tinker_service(says("four<|end|>")) as service:
        first = ask(service, folder, request())
        so_far = (*first.prompt_ids, *first.response_ids)
        goes_on = Request(asked, Sampling(), None, CALL, continues=ChatPrefix(so_far, 2))
        second = ask(service, folder, goes_on)
    added = tokenizer.encode(
        "\n<|start|>user\nAnd 2 + 2?<|end|>\n<|start|>assistant\n", add_special_tokens=False
    )
    assert tuple(second.prompt_ids) == (*so_far, *added), "though the message is not what was sampled"


def test_calls_of_tools_are_read_from_what_is_said(tmp_path: Path, says: Callable[[str], Script]) -> None:
    async def add(arguments: object) -> int:
        return 0

    template = HERMES.replace("<|im_start|>", "<|start|>").replace("<|im_end|>", "<|end|>")
    folder = write_tokenizer(tmp_path, template)
    tools = [Function("add", "Adds.", {"type": "object"}, add)]
    text = '<think>hm</think>Wait. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    with tinker_service(says(f"{text}<|end|>")) as service:
        found = ask(service, folder, request()._replace(tools=tools))
        without = ask(service, folder, request())
    assert (found.thought, found.text, found.calls) == ("hm", "Wait.", (ToolCall("add", {"a": 1}),))
    assert '"name": "add"' in load_tokenizer(folder).decode(
        found.prompt_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert (without.text, without.calls) == (text.removeprefix("<think>hm</think>"), ())
