"""Refusal of malformed and hostile requests, beside a training that must not change."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import httpx
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from fuzz.train_requests import training_request  # noqa: E402
from tinker.proto import tinker_public_pb2 as public  # noqa: E402

from rolegraph.local.launcher import LocalService  # noqa: E402
from tests.local.client import ADAM, PROMPT, datum, sampler, trainer  # noqa: E402

pytestmark = pytest.mark.service

DEEP = "[" * 100_000
HUGE = "1" + "0" * 5000
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXT = {"prompt": "hi", "max_tokens": 2}
SAMPLE: dict[str, Any] = {
    "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
    "sampling_params": {"max_tokens": 2},
    "sampling_session_id": "SAMPLER",
}
STEP: dict[str, Any] = {"model_id": "MODEL", "seq_id": 1, "adam_params": {"learning_rate": 0.01}}
CREATE: dict[str, Any] = {"session_id": "SESSION", "model_seq_id": 7, "base_model": "NAME"}


def params(**given: Any) -> dict[str, Any]:
    return {**SAMPLE, "sampling_params": {"max_tokens": 2, **given}}


def message(**given: Any) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", "content": "hi", **given}]}


def train(change: Callable[[Any, Any], None]) -> bytes:
    """Serialize a forward_backward of one datum for the model MODEL, after `change` has changed it."""
    asked = training_request("MODEL")
    change(asked, asked.data[0])
    return asked.SerializeToString()


def shape(*sizes: int) -> Callable[[Any, Any], None]:
    def change(asked: Any, one: Any) -> None:
        one.loss_fn_inputs["weights"].shape[:] = sizes

    return change


def dense(name: str, value: bytes) -> Callable[[Any, Any], None]:
    return lambda asked, one: setattr(one.loss_fn_inputs[name], "dense", value)


def ids(value: bytes) -> Callable[[Any, Any], None]:
    return lambda asked, one: setattr(one.model_input[0].encoded_text, "tokens", value)


PACE = 0.05
"""Seconds between two steps of the training beside the requests, whose steps are repeated alone later."""
CHATS, TEXTS, ASK = "/v1/chat/completions", "/v1/completions", "/api/v1/asample"
TRAIN, OPTIM, NEW = "/api/v1/forward_backward", "/api/v1/optim_step", "/api/v1/create_model"
NAN = np.asarray([np.nan, 1], np.float32).tobytes()
BAD: list[tuple[str, Any, int]] = [
    # not a request body
    (CHATS, b"", 400),
    (CHATS, b"{", 400),
    (CHATS, b"\xff\xfe", 400),
    (CHATS, b'{"messages": "\\ud800"}', 400),
    (CHATS, DEEP.encode(), 400),
    (CHATS, [], 400),
    (CHATS, None, 400),
    (ASK, b"{", 422),
    (ASK, DEEP.encode(), 422),
    (ASK, 7, 422),
    ("/api/v1/get_info", DEEP.encode(), 422),
    ("/api/v1/get_info", {"model_id": 7}, 422),
    ("/api/v1/get_info", b'{"model_id": "\\ud800"}', 422),
    ("/api/v1/get_info", {"model_id": "x" * 4000}, 422),
    ("/api/v1/retrieve_future", {"request_id": "request-1"}, 410),
    ("/api/v1/session_heartbeat", {"session_id": "nobody"}, 410),
    ("/api/v1/samplers/" + "x" * 5000, "GET", 404),
    ("/v1/models/" + "x" * 5000, "GET", 404),
    ("/v1/nothing", {}, 404),
    # numbers
    (CHATS, {**CHAT, "seed": 2**70}, 400),
    (CHATS, {**CHAT, "seed": -1}, 200),
    (CHATS, b'{"messages": [{"role": "user", "content": "hi"}], "seed": ' + HUGE.encode() + b"}", 400),
    (CHATS, {**CHAT, "top_k": 10**30}, 400),
    (CHATS, b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}', 400),
    (CHATS, {**CHAT, "temperature": 1e-30}, 400),
    (CHATS, b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}', 400),
    (CHATS, {**CHAT, "n": 10**6}, 400),
    (CHATS, {**CHAT, "max_tokens": 0}, 400),
    (CHATS, {**CHAT, "max_tokens": 2**40}, 400),
    (CHATS, {**CHAT, "stop": ["x"] * 1000}, 400),
    (CHATS, {**CHAT, "stop": "x" * 10_000}, 400),
    (ASK, params(top_k=10**30), 422),
    (ASK, params(seed=-5), 200),
    (ASK, params(seed=10**40), 422),
    (ASK, params(temperature=-1), 422),
    (ASK, params(temperature=1e-20), 422),
    (ASK, params(top_p=0), 422),
    (ASK, params(stop=[-1]), 422),
    (ASK, {**SAMPLE, "num_samples": 10**9}, 422),
    (ASK, {**SAMPLE, "seq_id": 10**30}, 422),
    (ASK, {**SAMPLE, "prompt_logprobs_last_n": -3}, 422),
    (ASK, {**SAMPLE, "topk_prompt_logprobs": 10**9}, 422),
    (ASK, {**SAMPLE, "topk_prompt_logprobs": -1}, 422),
    (OPTIM, {**STEP, "adam_params": {"learning_rate": 1e400}}, 422),
    (OPTIM, {**STEP, "adam_params": "fast"}, 422),
    (OPTIM, {**STEP, "seq_id": -1}, 422),
    (NEW, {**CREATE, "lora_config": {"rank": 0}}, 422),
    (NEW, {**CREATE, "lora_config": {"rank": 10**9}}, 422),
    (NEW, {**CREATE, "lora_config": {"rank": 4, "seed": 2**80}}, 422),
    (NEW, {**CREATE, "model_seq_id": -1, "lora_config": {"rank": 4}}, 422),
    # unsupported options are never ignored, and no text or truth value is taken for a number
    (CHATS, {**CHAT, "n": "2"}, 400),
    (CHATS, {**CHAT, "n": True}, 400),
    (CHATS, {**CHAT, "temperature": True}, 400),
    (CHATS, {**CHAT, "stream": "yes"}, 400),
    (CHATS, {**CHAT, "n": 129}, 400),
    (CHATS, {**CHAT, "logprobs": True, "top_logprobs": 21}, 400),
    (CHATS, {**CHAT, "stop": [5]}, 400),
    (CHATS, {**CHAT, "stop": ["x", None]}, 400),
    (CHATS, {**CHAT, "stop": {}}, 400),
    (CHATS, {**CHAT, "tool_choice": {"type": "function", "function": {"name": "f"}}}, 400),
    (CHATS, {**CHAT, "tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, 400),
    (TEXTS, {**TEXT, "prompt": [True, False]}, 400),
    (TEXTS, {**TEXT, "logprobs": -1}, 400),
    (TEXTS, {**TEXT, "logprobs": True}, 400),
    (TEXTS, {**TEXT, "max_tokens": -1}, 400),
    (ASK, params(presence_penalty=1.0), 422),
    (ASK, params(presence_penalty=0), 200),
    (ASK, params(stop=[True]), 422),
    (ASK, params(stop=["x", 5]), 422),
    (ASK, {**SAMPLE, "beam": 4}, 422),
    (ASK, {**SAMPLE, "base_model": "NAME"}, 422),
    (OPTIM, {**STEP, "adam_params": {"learning_rate": 0.1, "beta1": 2.0}}, 422),
    (OPTIM, {**STEP, "adam_params": {"learning_rate": 0.1, "beta2": -0.5}}, 422),
    (OPTIM, {**STEP, "adam_params": {"learning_rate": 0.1, "eps": -1}}, 422),
    ("/api/v1/save_weights", {"model_id": "MODEL", "path": "x", "user_metadata": {"a": "x" * 10**5}}, 422),
    ("/api/v1/load_weights", {"model_id": "MODEL", "path": "tinker://a/weights/b", "base_model": "y"}, 404),
    # wrong types and long names
    (CHATS, {**CHAT, "messages": {"role": "user"}}, 400),
    (CHATS, {**CHAT, "messages": []}, 400),
    (CHATS, message(role=7), 400),
    (CHATS, message(content=[{"type": "image_url"}]), 400),
    (CHATS, message(role="x" * 1000), 400),
    (CHATS, message(content="x" * 100_000), 400),
    (CHATS, {**CHAT, "model": "x" * 1000}, 400),
    (CHATS, {**CHAT, "model": "tinker://" + "x" * 230 + "/weights/y"}, 404),
    (CHATS, {**CHAT, "tools": [{"type": "function"}]}, 400),
    (TEXTS, {**TEXT, "prompt": [-1]}, 400),
    (TEXTS, {**TEXT, "prompt": [10**9]}, 400),
    (TEXTS, {**TEXT, "prompt": []}, 400),
    (TEXTS, {**TEXT, "prompt": ["x"] * 1000}, 400),
    (TEXTS, {**TEXT, "prompt": [["x"]]}, 400),
    (ASK, {**SAMPLE, "prompt": {"chunks": [{"tokens": ["a"] * 100_000}]}}, 422),
    ("/api/v1/save_weights", {"model_id": "MODEL", "path": "x" * 300, "seq_id": 1}, 422),
    ("/api/v1/load_weights", {"model_id": "MODEL", "path": "tinker://" + "x" * 9000}, 422),
    ("/api/v1/weights_info", {"tinker_path": "tinker://../weights/x"}, 400),
    # tensors
    (TRAIN, b"\xff" * 100, 400),
    (TRAIN, train(shape(3)), 400),
    (TRAIN, train(shape(-1, -1)), 400),
    (TRAIN, train(shape(2**62, 2**62)), 400),
    (TRAIN, train(dense("weights", b"abc")), 400),
    (TRAIN, train(ids(b"abc")), 400),
    (TRAIN, train(lambda asked, one: asked.data.extend([public.Datum()] * 2**17)), 400),
    (TRAIN, train(lambda asked, one: setattr(asked, "model_id", "nobody")), 404),
    (TRAIN, train(ids(np.asarray([-5, 80], np.int32).tobytes())), 200),  # the operation fails, not the call
    (TRAIN, train(dense("weights", NAN)), 200),
    (TRAIN, train(shape(2, 1)), 200),
]


@pytest.fixture
def http(service: LocalService) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=service.base_url, headers={"X-API-Key": service.api_key}, timeout=None
    ) as client:
        yield client


def losses(client: tinker.ServiceClient, service: LocalService) -> Iterator[float]:
    """Train and yield the loss of each step."""
    training = trainer(client, service)
    while True:
        step = training.forward_backward([datum("cross_entropy", PROMPT)] * 4, "cross_entropy")
        training.optim_step(ADAM).result()
        yield step.result().metrics["loss:sum"]


def test_no_malformed_or_hostile_request_is_a_500_or_disturbs_a_training(
    client: tinker.ServiceClient, service: LocalService, http: httpx.Client
) -> None:
    assert len(BAD) >= 60
    other = tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)
    names = {
        "MODEL": trainer(other, service).model_id,
        "SAMPLER": sampler(other, service)._sampling_session_id,
        "NAME": service.model_name,
    }
    names["SESSION"] = names["MODEL"].partition(":")[0]
    done, found = threading.Event(), list[float]()

    def train_beside() -> None:
        for loss in losses(client, service):
            found.append(loss)
            if done.wait(PACE) and len(found) >= 6:
                return

    beside = threading.Thread(target=train_beside)
    beside.start()
    try:
        answers = [(path[:60], body, send(http, path, body, names), wanted) for path, body, wanted in BAD]
    finally:
        done.set()
        beside.join()
    assert [(path, str(body)[:200], got) for path, body, got, wanted in answers if got != wanted] == []
    assert [*islice(losses(client, service), len(found))] == found
    other.close("success").result()


def send(http: httpx.Client, path: str, body: Any, names: dict[str, str]) -> int:
    """Send a request and return its status; wait for the operation that it starts, if any."""
    if body == "GET":
        return http.get(path).status_code
    media = "application/x-protobuf" if path == TRAIN else "application/json"
    if path == TRAIN and b"MODEL" in body:
        asked = public.ForwardBackwardRequest.FromString(body)
        asked.model_id = names["MODEL"]
        body = asked.SerializeToString()
    if not isinstance(body, bytes):
        text = json.dumps(body)
        for name, value in names.items():
            text = text.replace(f'"{name}"', json.dumps(value))
        body = text.replace("Infinity", "1e999").encode()
    answer = http.post(path, content=body, headers={"Content-Type": media})
    if path.startswith("/v1") and answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if answer.status_code == 200 and "request_id" in answer.json():
        found = http.post("/api/v1/retrieve_future", json={"request_id": answer.json()["request_id"]})
        assert found.status_code == 200
        assert b'"server"' not in found.content
    return answer.status_code


def test_a_body_that_is_too_long_is_refused_before_it_is_read(
    service: LocalService, http: httpx.Client
) -> None:
    host, port = service.base_url.removeprefix("http://").split(":")
    lines = [
        f"POST {CHATS} HTTP/1.1",
        f"Host: {host}",
        f"X-API-Key: {service.api_key}",
        "Content-Type: application/json",
        f"Content-Length: {200 * 2**20}",
    ]
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall("\r\n".join([*lines, "", ""]).encode())
        assert raw.recv(12) == b"HTTP/1.1 413"

    def unsaid() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 2**20

    try:
        status = http.post(CHATS, content=unsaid(), headers={"Content-Type": "application/json"}).status_code
    except httpx.TransportError:  # the service hung up while there was more to send
        status = 413
    assert status == 413
    assert http.get("/api/v1/healthz").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": "localhost:9000"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"X-API-Key": "tml-wrong"}, 401),
        ({"X-API-Key": "tml-\xff".encode("latin-1")}, 401),
        ({"Content-Encoding": "gzip"}, 415),
    ],
)
def test_a_page_of_another_site_is_told_nothing_whatever_it_knows(
    http: httpx.Client, headers: dict[str, Any], status: int
) -> None:
    given = {"Content-Type": "application/json", **headers}
    answer = http.post("/api/v1/create_session", content=b"{}", headers=given)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    if status == 403:
        assert http.get("/api/v1/healthz", headers=headers).status_code == 403
        assert http.options("/v1/models", headers=headers).status_code == 403


FUNCTION = {"type": "function", "function": {"name": "f", "description": "x " * 50_000}}


@pytest.mark.parametrize(
    ("path", "asked", "limit"),
    [
        (CHATS, {**CHAT, "tools": [FUNCTION]}, "service_text_per_token"),
        (CHATS, {**CHAT, "messages": [{"role": "user", "content": ""}] * 1000}, "service_text_per_token"),
        (CHATS, message(role="assistant", reasoning_content="x" * 10**5), "service_text_per_token"),
        (TEXTS, {**TEXT, "prompt": "x " * 50_000}, "service_text_per_token"),
        (CHATS, {**CHAT, "stop": ["x"] * 65}, "service_stops"),
        (CHATS, {**CHAT, "stop": "x" * 1025}, "service_stop_text"),
        (CHATS, {**CHAT, "seed": 2**70}, "service_seed"),
        (CHATS, {**CHAT, "max_tokens": 2**40}, "service_number"),
        (CHATS, {**CHAT, "model": "x" * 256}, "service_name"),
        (ASK, params(stop=[2**40]), "service_number"),
        (NEW, {**CREATE, "lora_config": {"rank": 10**9}}, "service_rank"),
    ],
)
def test_who_is_past_a_limit_is_told_which_before_any_work(
    http: httpx.Client, path: str, asked: dict[str, Any], limit: str
) -> None:
    answer = http.post(path, json=asked)
    assert answer.status_code in (400, 422)
    assert f"(limit: {limit})" in answer.text


def test_of_many_prompts_that_are_too_long_one_is_read(http: httpx.Client) -> None:
    answer = http.post(TEXTS, json={**TEXT, "prompt": ["x " * 300, "x" * 10**5]})
    assert answer.status_code == 400
    assert "the prompt has 600 tokens" in answer.text
