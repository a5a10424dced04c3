"""Fields of a request that a server refuses: left out, renamed, or one fault of the spec."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from starlette.responses import JSONResponse, Response

from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request, ServedModel, open_served
from rolegraph.engine.models.openai import OpenAIModel, with_unique_ids
from rolegraph.engine.models.openai_answers import says_refused
from rolegraph.engine.models.openai_fields import AskedField, Taken, after_refusal, sent
from rolegraph.engine.models.types import LocalService
from rolegraph.engine.records import RunFolder, read_episodes
from rolegraph.engine.spec import ModelRef, Sampling
from tests.cli.conftest import Command
from tests.cli.conftest import rolegraph as rolegraph
from tests.models.edges import CALL, Endpoint, chat_answer, chat_stream, serving
from tests.models.test_openai import MESSAGES, ask
from tests.trainings import STEP, at, key

Body = Mapping[str, Any]
ANSWER = "<answer>42</answer>"
SPEC = """\
rolegraph: 2
name: sums
data: {validation: rows.jsonl}
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: exact_match
"""


def refusal(message: str, **fields: object) -> Response:
    error = {"message": message, "type": "invalid_request_error", **fields}
    return JSONResponse({"error": error}, status_code=400)


def claude(body: Body) -> str | None:
    both = {"temperature", "top_p"} <= {*body}
    return "`temperature` and `top_p` cannot both be specified for this model. Please use only one." * both


def azure(body: Body) -> str | None:
    if "max_tokens" in body:
        return (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead."
        )
    if body.get("temperature", 1) != 1:
        return "Unsupported value: 'temperature' does not support 0.7 with this model. Only 1 is supported."
    return "Unsupported parameter: 'top_p' is not supported with this model." * ("top_p" in body)


def gemini(body: Body) -> str | None:
    return 'Invalid JSON payload received. Unknown name "seed": Cannot find field.' * ("seed" in body)


def older(body: Body) -> str | None:
    """Refuse what no OpenAI-compatible server of 2023 knew."""
    known = {"model", "messages", "max_tokens", "temperature", "stop"}
    unknown = [name for name in body if name not in known]
    return f"Unrecognized request argument supplied: {unknown[0]}" if unknown else None


def asks(endpoint: Endpoint, *, times: int) -> list[str | ModelError]:
    """Ask one model so often, and return the text or the failure of each call."""

    async def run() -> list[str | ModelError]:
        ref = ModelRef(provider="openai", name="tiny", base_url=endpoint.base_url)
        model = await open_served(ServedModel(ref))
        answers: list[str | ModelError] = []
        for _ in range(times):
            try:
                answers.append((await model.complete(Request(MESSAGES, Sampling(), 3, CALL))).text)
            except ModelError as error:
                answers.append(error)
        await model.aclose()
        return answers

    return asyncio.run(run())


def answering(refuses: Callable[[Body], str | None]) -> Callable[[Body], Response]:
    return lambda body: refusal(said) if (said := refuses(body)) else chat_answer(ANSWER)


def mistral(body: Body) -> Response:
    unknown = [name for name in ("seed", "logprobs", "top_logprobs", "return_token_ids") if name in body]
    if not unknown:
        return chat_answer(ANSWER)
    detail = [
        {"type": "extra_forbidden", "loc": ["body", it], "msg": "Extra inputs are not permitted"}
        for it in unknown
    ]
    return JSONResponse({"object": "error", "message": {"detail": detail}}, status_code=422)


def nested(body: Body) -> Response:
    """Refuse a seed as a gateway does that writes its provider's error as text."""
    inner = json.dumps({"error": {"message": 'Unknown parameter: "seed"', "got": ["top_p", "temperature"]}})
    return refusal(f"provider returned: {json.dumps(inner)}") if "seed" in body else chat_answer(ANSWER)


def other_limit(body: Body) -> Response:
    """Ask for `max_output_tokens` as FastAPI does, with the whole request."""
    if "max_output_tokens" in body:
        return chat_answer(ANSWER)
    missing = {"loc": ["body", "max_output_tokens"], "msg": "Field required", "type": "missing"}
    return JSONResponse({"detail": [{**missing, "input": body}]}, status_code=422)


def with_status_200(body: Body) -> Response:
    error = {"code": 400, "message": "seed: this model takes none", "type": "invalid_request_error"}
    return JSONResponse({"error": error}) if "seed" in body else chat_answer(ANSWER)


def as_a_text(body: Body) -> Response:
    return JSONResponse({"error": "seed is not supported"}) if "seed" in body else chat_answer(ANSWER)


def as_an_object(body: Body) -> Response:
    error = {"object": "error", "message": "seed is not supported", "code": 40001}
    return JSONResponse(error) if "seed" in body else chat_answer(ANSWER)


def wrong_type(body: Body) -> Response:
    if isinstance(body.get("top_logprobs"), int):
        return refusal("1 is not of type 'boolean' - 'top_logprobs'")
    if body.get("seed", 0) >= 2**15:
        return refusal(f"Invalid value at 'generation_config.seed' (TYPE_INT16), {body['seed']}")
    return chat_answer(ANSWER)


def camel(body: Body) -> Response:
    return refusal("topP is deprecated for this model") if "top_p" in body else chat_answer(ANSWER)


def silent(body: Body) -> Response:
    """Refuse `seed` and what it does not know, and name nothing."""
    known = {"model", "messages", "max_tokens", "temperature", "stop"}
    return chat_answer(ANSWER) if {*body} <= known else refusal("Bad request")


def without_limit(body: Body) -> Response:
    limits = [name for name in body if name.startswith("max_")]
    return refusal(f"Unsupported parameter: {limits[0]}") if limits else chat_answer(ANSWER)


def failing(body: Body) -> Response:
    error = {"error": {"message": "Unsupported param: seed", "type": "server_error"}}
    return JSONResponse(error, status_code=500) if "seed" in body else chat_answer(ANSWER)


def stream_alone(body: Body) -> Response:
    if body.get("stream"):
        return chat_stream(ANSWER)
    return refusal("Streaming is required for this model", param="stream")


def stream_in_words(body: Body) -> Response:
    words = "This model only support stream mode, please enable the stream parameter to access the model."
    return chat_stream(ANSWER) if body.get("stream") else refusal(words)


def stream_without_usage(body: Body) -> Response:
    if "stream_options" in body:
        return refusal("Unknown parameter: 'stream_options'")
    return stream_alone(body)


SERVERS: dict[str, tuple[Callable[[Body], Response], list[str]]] = {
    "claude": (answering(claude), ["top_p"]),
    "azure": (answering(azure), ["top_p"]),
    "gemini": (answering(gemini), ["seed"]),
    "mistral": (mistral, ["seed"]),
    "older": (answering(older), ["seed", "top_p"]),
    "nested": (nested, ["seed"]),
    "other limit": (other_limit, []),
    "status 200": (with_status_200, ["seed"]),
    "text": (as_a_text, ["seed"]),
    "object": (as_an_object, ["seed"]),
    "wrong type": (wrong_type, ["seed"]),
    "camel": (camel, ["top_p"]),
    "silent": (silent, ["seed", "top_p"]),
    "without limit": (without_limit, ["max_tokens"]),
    "failing": (failing, ["seed"]),
    "stream alone": (stream_alone, []),
    "stream in a text": (stream_in_words, []),
    "stream unasked": (lambda _: chat_stream(ANSWER), []),
    "stream without usage": (stream_without_usage, []),
}


def write_sums(folder: Path, count: int) -> Path:
    """Write the spec `sums.yaml` with so many rows, and return the folder."""
    (folder / "sums.yaml").write_text(SPEC)
    rows = [{"id": str(n), "question": f"{n}?", "answer": "42"} for n in range(count)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sums(tmp_path, 64)


@pytest.mark.parametrize("name", SERVERS)
def test_a_field_that_nothing_depends_on_is_left_out(
    name: str, folder: Path, rolegraph: Command, caplog: pytest.LogCaptureFixture
) -> None:
    answer, left_out = SERVERS[name]
    with serving(answer) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "run")
        done = rolegraph("run", "sums.yaml", *where)
    assert done.returncode == 0, done.stderr
    run = RunFolder(folder / "run")
    assert not [it for it in read_episodes(run.episodes) if it.failures]
    assert {*run.info().left_out.get("openai:tiny", ())} == {*left_out}
    assert not left_out or f"refuses {', '.join(left_out)}" in done.stdout
    warnings = [it.getMessage() for it in caplog.records if "left out from now on" in it.getMessage()]
    assert len(warnings) == bool(left_out)
    # One call learns for all: the others are sent as the server takes them.
    assert len(endpoint.bodies) <= 64 + 8


def test_a_field_that_the_spec_asks_for_is_one_fault_before_the_run(folder: Path, rolegraph: Command) -> None:
    with serving(answering(azure)) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "run")
        done = rolegraph("run", "sums.yaml", "sampling.temperature=0.7", *where)
        asked = len(endpoint.bodies)
        assert done.returncode == 2 and asked <= 8
        assert "`temperature`, which sampling.temperature sets to 0.7" in done.stderr
        assert "`body: {temperature: null}` of the model" in done.stderr
        left_out = "roles.solver.model.body={temperature: null}"
        done = rolegraph("run", "sums.yaml", "sampling.temperature=0.7", left_out, *where)
    assert done.returncode == 0, done.stderr
    assert "temperature" not in endpoint.bodies[-1]


def test_roles_have_fields_of_their_own_over_those_of_the_model(folder: Path, rolegraph: Command) -> None:
    def thinks(body: Body) -> str | None:
        wanted = body.get("chat_template_kwargs", {}).get("enable_thinking")
        said = {True: "think", False: "at once"}[wanted]
        return None if said in body["messages"][-1]["content"] and body["top_k"] == 20 else "wrong"

    (folder / "two.yaml").write_text(
        "rolegraph: 2\nname: two\ndata: {validation: rows.jsonl}\n"
        "model: {provider: openai, name: tiny, body: {top_k: 20}}\n"
        "roles:\n"
        "  slow:\n"
        '    prompt: "think"\n'
        "    model: {body: {chat_template_kwargs: {enable_thinking: true}}}\n"
        "  fast:\n"
        '    prompt: "at once"\n'
        "    model: {body: {chat_template_kwargs: {enable_thinking: false}}}\n"
    )
    with serving(answering(thinks)) as endpoint:
        done = rolegraph(
            "run", "two.yaml", "--limit", "4", "--base-url", endpoint.base_url, "--model", "openai:tiny",
            "--out", "run",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not [it for it in read_episodes(RunFolder(folder / "run").episodes) if it.failures]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("{temperature: 0.5}", "sampling"),
        ("{messages: []}", "the run decides"),
        ("{a: [{api_key: x}]}", "environment"),
    ],
)
def test_a_body_sets_nothing_that_has_another_place(
    body: str, place: str, folder: Path, rolegraph: Command
) -> None:
    done = rolegraph("validate", "sums.yaml", f"roles.solver.model.body={body}", "--model", "openai:tiny")
    assert done.returncode == 2 and place in done.stderr


def test_a_body_is_for_servers_that_take_one(folder: Path, rolegraph: Command) -> None:
    done = rolegraph("validate", "sums.yaml", "roles.solver.model.body={top_k: 20}")
    assert done.returncode == 2 and "local takes no `body`" in done.stderr


def test_answers_that_are_all_reasoning_name_the_server_s_parser(
    folder: Path, rolegraph: Command, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(body: Body) -> Response:
        return chat_answer(None, message={"reasoning_content": ANSWER})

    with serving(answer) as endpoint:
        rolegraph(
            "run", "sums.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "run"
        )
    said = [it.getMessage() for it in caplog.records if "reasoning parser" in it.getMessage()]
    assert len(said) == 1 and "reasoning and without content" in said[0]


@pytest.mark.parametrize("how", [{"finish": "content_filter"}, {"message": {"refusal": "no"}}])
def test_a_refusal_is_a_failure_of_its_own(how: dict[str, Any], folder: Path, rolegraph: Command) -> None:
    with serving(lambda _: chat_answer(None, **how)) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "run")
        rolegraph("run", "sums.yaml", "--limit", "2", *where)
    failures = [it.failures for it in read_episodes(RunFolder(folder / "run").episodes)]
    assert [failure["name"] for it in failures for failure in it.values()] == ["refused"] * 2


IDS = st.sampled_from(["", "call_0", "call_1", "x"])


@given(st.lists(st.lists(IDS, max_size=3), max_size=4))
def test_all_calls_of_a_chat_have_ids_of_their_own(turns: list[list[str]]) -> None:
    messages: list[dict[str, object]] = []
    for ids in turns:
        calls = [{"id": id, "function": {"name": f"f{n}", "arguments": "{}"}} for n, id in enumerate(ids)]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages += [{"role": "tool", "content": f"{n}", "tool_call_id": id} for n, id in enumerate(ids)]
    renamed = with_unique_ids(messages)
    given_ids = [call["id"] for it in renamed for call in it.get("tool_calls", ())]  # type: ignore[attr-defined]
    results = [it["tool_call_id"] for it in renamed if it["role"] == "tool"]
    assert given_ids == results and len({*given_ids}) == len(given_ids) and all(given_ids)
    flat = [id for ids in turns for id in ids]
    if all(flat) and len({*flat}) == len(flat):
        assert renamed == messages


def test_a_refusal_of_something_else_teaches_nothing() -> None:
    asked = {"stop": AskedField(["x"], "sampling.stop"), "seed": AskedField(1), "foo(": AskedField(1, "body")}
    assert after_refusal(asked, Taken(), "please stop: messages are empty", "messages") is None
    assert after_refusal(asked, Taken(), "unknown 'foo('", ["seed"]) == "foo("
    learned = after_refusal(asked, Taken(), "do not stop; unknown `seed`")
    assert isinstance(learned, Taken) and learned.left_out == {"seed"}


@pytest.mark.parametrize("name", ["min_tokens", "stop_token_ids", "skip_special_tokens", "prompt_cache_key"])
def test_a_field_may_have_tokens_or_a_key_in_its_name(name: str, folder: Path, rolegraph: Command) -> None:
    body = f"roles.solver.model.body={{{name}: 1}}"
    assert rolegraph("validate", "sums.yaml", body, "--model", "openai:tiny").returncode == 0


def test_calls_of_a_slow_server_learn_together(folder: Path, rolegraph: Command) -> None:
    async def slow(body: Body) -> Response:
        if said := older(body):
            return refusal(said)
        await asyncio.sleep(3)
        return chat_answer(ANSWER)

    with serving(slow) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "run")
        done = rolegraph("run", "sums.yaml", "roles.solver.timeout=6", *where)
    assert done.returncode == 0, done.stderr
    assert not [it for it in read_episodes(RunFolder(folder / "run").episodes) if it.failures]
    assert len(endpoint.bodies) <= 64 + 8


def test_a_stream_that_is_refused_as_well_is_undone() -> None:
    words = "streaming is not available for this key"
    with serving(lambda _: refusal(words)) as endpoint, pytest.raises(ModelError, match=words):
        ask(endpoint)
    assert [it.get("stream", False) for it in endpoint.bodies] == [False, True]


def test_a_refused_stream_is_requested_once() -> None:
    replies = iter([refusal("Streaming is not available")] * 2)
    with serving(lambda _: next(replies, chat_answer(ANSWER))) as endpoint:
        failed, *others = asks(endpoint, times=3)
    assert isinstance(failed, ModelError) and others == [ANSWER] * 2
    assert [it.get("stream", False) for it in endpoint.bodies] == [False, True, False, False]


def test_refusals_without_a_name_cost_requests_once() -> None:
    with serving(lambda _: refusal("this content violates our policy")) as endpoint:
        failures = asks(endpoint, times=3)
    assert all(isinstance(it, ModelError) for it in failures)
    assert len(endpoint.bodies) == 7 + 2


def test_a_failure_with_status_200_proves_no_trial() -> None:
    def answer(body: Body) -> Response:
        return refusal("Bad request") if "logprobs" in body else JSONResponse({"error": {"message": "busy"}})

    async def run() -> OpenAIModel:
        client = AsyncOpenAI(base_url=endpoint.base_url, api_key="none", max_retries=0)
        model = OpenAIModel(client, "tiny")
        with pytest.raises(ModelError, match="busy"):
            await model.complete(Request(MESSAGES, Sampling(), 3, CALL))
        await model.aclose()
        return model

    with serving(answer) as endpoint:
        assert asyncio.run(run()).taken == Taken()


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        ("upstream connect error: seed node unreachable", False),
        ("max_new_tokens worker crashed", False),
        ("Unsupported param: seed", True),
        ("unexpected keyword argument 'seed'", True),
        ("seed is not supported", True),
    ],
)
def test_a_failure_teaches_what_it_names_as_refused(words: str, left_out: bool) -> None:
    asked = {"seed": AskedField(1), "max_tokens": AskedField(1)}
    learned = after_refusal(asked, Taken(), words, is_certain=False)
    assert learned == (Taken(frozenset({"seed"})) if left_out else None)


def test_a_failure_may_name_the_field_as_param() -> None:
    learned = after_refusal({"seed": AskedField(1)}, Taken(), "failed", "seed", is_certain=False)
    assert learned == Taken(frozenset({"seed"}))


def test_a_long_code_is_read_at_once() -> None:
    # A pattern that is tried at each place of the code would take hours.
    assert not says_refused({"code": "a" * 2_000_000})
    assert says_refused({"code": "x_invalid_request_error"}) and says_refused({"status": 422})


@pytest.mark.parametrize("code", ["invalid_api_key", "authentication_error", 401])
def test_a_wrong_key_with_status_200_is_one_request(code: object) -> None:
    error = {"code": code, "type": "invalid_request_error"}
    with (
        serving(lambda _: JSONResponse({"error": error})) as endpoint,
        pytest.raises(ModelError, match="OPENAI_API_KEY") as caught,
    ):
        ask(endpoint, key="sk-wrong")
    assert not caught.value.transient and len(endpoint.bodies) == 1


FIELDS = ("seed", "top_p", "temperature", "max_tokens", "logprobs", "top_logprobs", "return_token_ids")


@given(
    st.dictionaries(st.sampled_from(FIELDS), st.booleans(), min_size=1),
    st.sets(st.sampled_from(FIELDS)),
)
def test_refusals_end_with_what_the_server_takes_or_with_what_the_spec_asks_for(
    wanted: dict[str, bool], refused: set[str]
) -> None:
    asked = {name: AskedField(1, "sampling" if insists else "") for name, insists in wanted.items()}
    taken = Taken()
    for _ in range(2 * len(FIELDS) + 2):
        fields = sent(asked, taken)
        bad = [name for name in fields if name in refused]
        if not bad:
            break
        learned = after_refusal(asked, taken, f"unknown field {bad[0]!r} ", None)
        if learned is None or isinstance(learned, str):
            assert wanted[learned or bad[0]] or len(fields) == 1
            return
        assert learned != taken
        taken = learned
    assert not refused & {*sent(asked, taken)}


@pytest.mark.service
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_training_records_a_refused_field_or_stops_before_its_first_step(
    temperature: float, tmp_path: Path, rolegraph: Command, service: LocalService
) -> None:
    (tmp_path / "two.yaml").write_text(
        "rolegraph: 2\nname: two\n"
        "data: {train: {countdown: {}}, validation: {countdown: {}}}\n"
        "roles:\n"
        "  solver:\n"
        '    prompt: "{{ task.question }}"\n'
        "    parser: {tag: answer}\n"
        "    reward: countdown\n"
        "    estimator: grpo\n"
        "  critic:\n"
        '    prompt: "{{ solver[0].response }}"\n'
        "    needs: solver\n"
        ""
    )
    with serving(answering(azure)) as endpoint:
        critic = f"{{provider: openai, name: tiny, base_url: '{endpoint.base_url}'}}"
        words = (f"roles.critic.model={critic}", f"roles.critic.sampling.temperature={temperature}")
        done = rolegraph("train", "two.yaml", *STEP, *words, "--out", "t", *at(service), **key(service))
    run = RunFolder(tmp_path / "t")
    if temperature == 1.0:
        assert done.returncode == 0, done.stderr
        assert run.info().left_out == {"openai:tiny": ("top_p",)}
    else:
        assert done.returncode == 2 and "`temperature`, which sampling.temperature sets" in done.stderr
        assert not [line for line in run.metrics() if line["step"]]
