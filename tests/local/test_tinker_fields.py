"""The table of docs/clients.md has every field of the Tinker SDK's requests, with what the service does."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from rolegraph.local.launcher import LocalService  # noqa: E402
from tests.local.client import PROMPT, prompt, sampler, trainer  # noqa: E402

pytestmark = pytest.mark.service
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (served|without effect|refused) \|", re.MULTILINE)
HEADER = "x-rolegraph-without-effect"
TABLE = [
    (kind, field, here)
    for kind, fields, here in ROW.findall(PAGE.read_text("utf-8"))
    for field in re.findall(r"`(\w+)`", fields)
]
SAMPLE: dict[str, Any] = {
    "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
    "sampling_params": {"max_tokens": 2},
    "sampling_session_id": "SAMPLER",
}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "SampleRequest": ("asample", SAMPLE),
    "SaveWeightsExternalRequest": ("save_weights_external", {"model_id": "MODEL", "path": "x"}),
    "LoadWeightsRequest": ("load_weights", {"model_id": "MODEL", "path": "PATH", "optimizer": False}),
    "CreateModelRequest": (
        "create_model",
        {"session_id": "SESSION", "model_seq_id": 7, "base_model": "NAME", "lora_config": {"rank": 2}},
    ),
    "CreateSessionRequest": ("create_session", {}),
    "JoinSamplingSessionRequest": ("join_sampling_session", {}),
    "CopyWeightsRequest": ("copy_weights", {}),
    "CreateCustomLossRequest": ("create_custom_loss", {}),
}
"""Path and body for each type with a field that is not served."""
VALUES: dict[str, Any] = {
    "target_prompt_logprobs": {"data": [1], "dtype": "int64"},
    "prompt_alt_tokens_k": 2,
    "record_stability_info": True,
    "tags": ["a"],
    "user_metadata": {"a": "b"},
}


NOT_SERVED = [row for row in TABLE if row[2] != "served" and row[0] != "Datum"]


def fields_of(name: str) -> set[str]:
    kind: Any = getattr(tinker.types, name, None)
    if kind is None:
        module = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        kind = getattr(importlib.import_module(f"tinker.types.{module}"), name)
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return {*kind.model_fields}


def post(service: LocalService, path: str, body: dict[str, Any]) -> httpx.Response:
    url, headers = f"{service.base_url}/api/v1/{path}", {"X-API-Key": service.api_key}
    return httpx.post(url, json=body, headers=headers, timeout=None)


@pytest.fixture(scope="module")
def ids(service: LocalService) -> dict[str, str]:
    client = tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)
    training = trainer(client, service)
    session = training.get_info().model_id.partition(":")[0]
    sampling = {"session_id": session, "sampling_session_seq_id": 99, "base_model": service.model_name}
    return {
        "MODEL": training.get_info().model_id,
        "NAME": service.model_name,
        "PATH": training.save_state("fields").result().path,
        "SESSION": session,
        "SAMPLER": post(service, "create_sampling_session", sampling).json()["sampling_session_id"],
    }


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in TABLE}))
def test_the_table_has_every_field_once(kind: str) -> None:
    listed = [field for name, field, _ in TABLE if name == kind]
    assert sorted(listed) == sorted(fields_of(kind))


@pytest.mark.parametrize(("kind", "field", "here"), NOT_SERVED, ids=[f"{a}.{b}" for a, b, _ in NOT_SERVED])
def test_a_field_that_is_not_served_is_named(
    kind: str, field: str, here: str, service: LocalService, ids: dict[str, str]
) -> None:
    path, body = BODIES[kind]
    given = {name: ids.get(value, value) if isinstance(value, str) else value for name, value in body.items()}
    answer = post(service, path, {**given, field: VALUES.get(field, "x")})
    if here == "refused":
        assert answer.status_code in (404, 422)
        assert "is not served" in answer.json()["detail"]
        assert answer.status_code == 404 or field in answer.json()["detail"]
    else:
        assert answer.status_code == 200, answer.text
        assert field in answer.headers[HEADER]


def test_spans_of_a_datum_have_no_effect_and_are_named(service: LocalService, ids: dict[str, str]) -> None:
    from fuzz.train_requests import training_request

    asked = training_request(ids["MODEL"])
    asked.data[0].model_input_spans.add()
    answer = httpx.post(
        f"{service.base_url}/api/v1/forward_backward",
        content=asked.SerializeToString(),
        headers={"X-API-Key": service.api_key, "Content-Type": "application/x-protobuf"},
        timeout=None,
    )
    assert answer.headers[HEADER] == "model_input_spans, loss_fn_input_spans"


def test_likeliest_sampled_tokens_are_those_of_a_greedy_answer(client: Any, service: LocalService) -> None:
    params = tinker.SamplingParams(max_tokens=6, temperature=0.0, stop=[])
    answer = sampler(client, service).sample(prompt(), 2, params, topk_sample_logprobs=2).result()
    for sequence in answer.sequences:
        assert [row[0][0] for row in sequence.topk_logprobs] == sequence.tokens
        assert [row[0][1] for row in sequence.topk_logprobs] == pytest.approx(sequence.logprobs)


@pytest.mark.parametrize("last", [1, len(PROMPT) - 1, len(PROMPT)])
def test_the_last_entries_are_fewer_than_the_prompt(last: int, client: Any, service: LocalService) -> None:
    asked = sampler(client, service).compute_logprobs(prompt(), prompt_logprobs_last_n=last)
    if last == len(PROMPT):
        with pytest.raises(Exception, match=f"prompt_logprobs_last_n is {last}"):
            asked.result()
    else:
        assert [value is None for value in asked.result()] == [True] * (len(PROMPT) - last) + [False] * last
