"""Tests of the proxies and certificates that the environment names: none for this machine, else by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rolegraph.engine.connections import bypass_proxies, client_options, naming_variables, route
from rolegraph.engine.errors import UsageError
from tests.cli.conftest import ENVIRONMENT, Command
from tests.cli.conftest import forked as forked
from tests.cli.conftest import rolegraph as rolegraph
from tests.edge import MISSING, below
from tests.forks import ForkedCommand

HERE, THERE = "http://127.0.0.1:8000/v1", "https://models.example/v1"
BAD_PROXIES = (
    "socks5h://127.0.0.1:9",
    "ftp://proxy.example",
    "http://h:port",
    "http://h:99999",
    "http://h:0",
    "http://[::1",
    "http://",
    " ",
    "http://\udc80:1",
    "zz",
)
USABLE = {"zz"}
"""A host name alone is a proxy, as for other tools."""
BAD_CERTIFICATES = {
    "SSL_CERT_FILE": (MISSING, "/", "\udc80", __file__),
    "SSL_CERT_DIR": (MISSING, __file__),
    "SSLKEYLOGFILE": (f"{MISSING}/x", "/"),
}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name in BAD_CERTIFICATES:
            monkeypatch.delenv(name)


PROXY_VARIABLES = ("ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *((variable, value) for variable in PROXY_VARIABLES for value in sorted({*BAD_PROXIES} - USABLE)),
        *((variable, value) for variable, values in BAD_CERTIFICATES.items() for value in values),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used_are_named_except_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, below(tmp_path, value))
    assert client_options(HERE)["proxy"] is None
    with pytest.raises(UsageError, match=f"^{variable}: "):
        client_options(THERE)


@pytest.mark.parametrize("value", ["*", "models.example", "other.example,.example", "["])
def test_a_host_of_no_proxy_needs_no_proxy(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", value)
    assert client_options(THERE)["proxy"] == (None if value != "[" else "http://proxy.example:3128")


def test_a_proxy_of_another_scheme_is_not_looked_at_and_an_empty_one_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "ftp://proxy.example")
    monkeypatch.setenv("ALL_PROXY", "")
    assert client_options(THERE)["proxy"] is None


def test_credentials_of_a_proxy_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://me:secret@proxy.example")
    with pytest.raises(UsageError) as raised:
        client_options(THERE)
    assert "secret" not in str(raised.value)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.example")
    assert "HTTPS_PROXY" in route(THERE)
    assert "secret" not in route(THERE)
    assert route(HERE) == ""


def test_several_folders_of_certificates_are_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", os.pathsep.join([below(tmp_path, MISSING), str(tmp_path)]))
    assert client_options(THERE)["verify"] is not None
    assert "SSL_CERT_DIR" in route(THERE)


def test_a_variable_that_breaks_an_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="HF_HUB_ETAG_TIMEOUT: "), naming_variables("HF_"):
        int(os.environ["HF_HUB_ETAG_TIMEOUT"])
    with pytest.raises(ValueError, match="other"), naming_variables("HF_"):
        raise ValueError("other")


BAD = {
    "ALL_PROXY": "socks5h://127.0.0.1:9",
    "HTTP_PROXY": "garbage",
    "HTTPS_PROXY": "ftp://proxy.example",
    "NO_PROXY": "[garbage",
    "SSL_CERT_FILE": MISSING,
    "SSL_CERT_DIR": MISSING,
    "SSLKEYLOGFILE": f"{MISSING}/x",
    "REQUESTS_CA_BUNDLE": MISSING,
}
HOSTED = "https://models.example"


def test_certificates_that_are_removed_for_this_machine_are_refused_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rolegraph.engine.connections._removed", {})
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, below(tmp_path, MISSING))
    bypass_proxies(HERE)
    assert "SSL_CERT_FILE" not in os.environ
    with pytest.raises(UsageError, match=r"^SSL_CERT_FILE: "):
        client_options(THERE)


@pytest.mark.service
def test_commands_on_this_machine_use_no_proxy_and_no_certificates(tmp_path: Path, forked: Command) -> None:
    bad = {name: below(tmp_path, value) for name, value in BAD.items()}
    small = ("train.steps=1", "train.batch_size=1", "train.rollouts=2", "train.validation.tasks=1")
    done = forked("train", "solver_judge", "--out", "t", *small, **bad)
    assert done.returncode == 0, done.stderr
    for words in (("view", "t", "--port", "0"), ("serve", "--port", "0")):
        ours, theirs = os.pipe()
        with ForkedCommand(words, cwd=tmp_path, env={**ENVIRONMENT, **bad}, stdout=theirs) as process:
            os.close(theirs)
            with os.fdopen(ours, encoding="utf-8") as lines:
                line = lines.readline()
            process.send_signal(signal.SIGTERM)
        assert "http://127.0.0.1:" in line


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"])
@pytest.mark.parametrize("words", [("run", "--out", "r"), ("train", "--out", "r"), ("doctor",)])
def test_commands_elsewhere_name_the_variable(
    rolegraph: Command, words: tuple[str, ...], variable: str
) -> None:
    verb, *options = words
    spec = () if verb == "doctor" else ("solver_judge", "--model", "tinker:m")
    key = {"TINKER_API_KEY": "tml-dummy"}
    done = rolegraph(verb, *spec, "--base-url", HOSTED, *options, **{variable: BAD[variable]}, **key)
    assert done.returncode == 2
    assert f"{variable}: " in done.stderr
