"""Tests of the proxies and certificates that the environment names: none for this machine, else by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolegraph.engine.connections import client_options, naming_variables, route
from rolegraph.engine.errors import UsageError

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
    "SSL_CERT_FILE": ("/nonexistent", "/", "\udc80", __file__),
    "SSL_CERT_DIR": ("/nonexistent", __file__),
    "SSLKEYLOGFILE": ("/nonexistent/x", "/"),
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
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
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
    monkeypatch.setenv("SSL_CERT_DIR", os.pathsep.join(["/nonexistent", str(tmp_path)]))
    assert client_options(THERE)["verify"] is not None
    assert "SSL_CERT_DIR" in route(THERE)


def test_a_variable_that_breaks_an_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="HF_HUB_ETAG_TIMEOUT: "), naming_variables("HF_"):
        int(os.environ["HF_HUB_ETAG_TIMEOUT"])
    with pytest.raises(ValueError, match="other"), naming_variables("HF_"):
        raise ValueError("other")
