"""Tests of the hosts that a key may be sent to: a spec from a stranger must not send a key elsewhere."""

from __future__ import annotations

import pytest

from rolegraph.engine.models.keys import OPENAI, TINKER, redact


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://api.openai.com/v1", True),
        ("http://127.0.0.1:8000/v1", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("https://gateway.example/v1", True),
        ("https://lab.example/v1/", True),
        ("https://evil.example/v1", False),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com.evil.example/v1", False),
        ("https://localhost.evil.example", False),
        ("https://api.openai.com@evil.example/v1", False),
    ],
)
def test_the_environments_key_goes_only_where_the_person_meant_it_to(
    monkeypatch: pytest.MonkeyPatch, url: str, sent: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    key = OPENAI.key(url, explicit=None, trusted_url="https://lab.example/v1")
    assert key == ("sk-mine" if sent else None)


def test_an_explicit_key_goes_where_its_caller_says() -> None:
    assert TINKER.key("https://evil.example", explicit="tml-x", trusted_url=None) == "tml-x"


def test_a_key_that_a_server_echoes_is_taken_out() -> None:
    assert redact("bad key sk-mine!", "sk-mine") == "bad key [key]!"
    assert redact("no key", None) == "no key"
