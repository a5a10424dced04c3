"""Tests of commands under values of the environment that HTTP libraries cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.edge import MISSING, below, write_spec
from tests.models.edges import chat_answer, serving

SPEC = """rolegraph: 2
name: t
data: {validation: t.jsonl}
roles: {a: {prompt: "{{ task.say }}", parser: {tag: answer}, reward: exact_match}}
"""
VALUES = (
    ("ALL_PROXY", "socks5h://127.0.0.1:9"),
    ("all_proxy", "ftp://x"),
    ("HTTP_PROXY", "http://h:port"),
    ("HTTPS_PROXY", "http://h:99999"),
    ("NO_PROXY", "http://[::1"),
    ("SSL_CERT_FILE", MISSING),
    ("SSL_CERT_FILE", __file__),
    ("SSL_CERT_DIR", MISSING),
    ("SSLKEYLOGFILE", f"{MISSING}/x"),
    ("REQUESTS_CA_BUNDLE", MISSING),
    ("OPENAI_BASE_URL", "http://[::1"),
    ("HF_ENDPOINT", "nope"),
)
NAMED = {"ALL_PROXY", "all_proxy", "HTTPS_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"}
"""Variables whose value in `VALUES` is refused where the endpoint is on another machine."""


@pytest.fixture(autouse=True)
def _task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_spec(tmp_path, SPEC)
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "1", "say": "Two?", "answer": "2"}), "utf-8")
    for variable in ("NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(("variable", "value"), VALUES)
def test_an_endpoint_of_this_machine_needs_no_proxy_and_no_certificates(
    rolegraph: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, below(tmp_path, value))
    with serving(lambda _: chat_answer("<answer>2</answer>")) as endpoint:
        done = rolegraph("run", "spec.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url)
    assert (done.returncode, "internal error" in done.stderr) == (0, False)


@pytest.mark.parametrize(("variable", "value"), VALUES)
@pytest.mark.parametrize("model", ["openai:tiny", "tinker:tiny"])
def test_for_another_machine_the_message_names_the_variable(
    rolegraph: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variable: str,
    value: str,
    model: str,
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setenv(variable, below(tmp_path, value))
    done = rolegraph("run", "spec.yaml", "--model", model, "--base-url", "https://models.invalid/v1")
    assert done.returncode == (2 if variable in NAMED else 1)
    assert "internal error" not in done.stderr
    assert (f"error: {variable}: " in done.stderr) == (variable in NAMED)


@pytest.mark.parametrize("value", ["nope", "http://h:99999", "http://[::1"])
def test_a_url_of_the_environment_is_named(
    rolegraph: Command, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", value)
    done = rolegraph("run", "spec.yaml", "--model", "openai:tiny")
    assert done.returncode == 2
    assert "error: OPENAI_BASE_URL: " in done.stderr


@pytest.mark.parametrize("variable", ["OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"])
def test_a_header_of_the_environment_that_cannot_be_sent_is_named(
    rolegraph: Command, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "X-Team: ü")
    with serving(lambda _: chat_answer("2")) as endpoint:
        done = rolegraph("run", "spec.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url)
    assert done.returncode == 2
    assert f"error: {variable}: " in done.stderr


@pytest.mark.parametrize("key", ["sk-SECRET12345abcdef\n", "sk-SECRET12345\nabcdef"])
def test_a_key_with_a_line_end_stands_in_no_output(
    rolegraph: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with serving(lambda _: chat_answer("<answer>2</answer>")) as endpoint:
        where = ("--base-url", endpoint.base_url, "--out", "out")
        done = rolegraph("run", "spec.yaml", "--model", "openai:tiny", *where)
    written = "".join(path.read_text("utf-8") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert "SECRET" not in done.stdout + done.stderr + written
    assert done.returncode == 0 or "OPENAI_API_KEY" in done.stderr


@pytest.mark.service
def test_a_variable_of_the_hub_that_is_no_number_is_named_before_the_local_model_runs(
    process: Command,
) -> None:
    done = process("run", "solver_judge", "--limit", "1", HF_HUB_ETAG_TIMEOUT="soon")
    assert done.returncode == 2
    assert "error: HF_HUB_ETAG_TIMEOUT: " in done.stderr
