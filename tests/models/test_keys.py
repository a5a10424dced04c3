"""Tests of the hosts that a key may be sent to: a spec from a stranger must not send a key elsewhere."""

from __future__ import annotations

import pytest

from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.keys import OPENAI, TINKER


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


@pytest.mark.parametrize("key", ["sk-mine\n", " sk-mine\r\n", "\tsk-mine "])
def test_white_space_around_a_key_is_not_of_the_key(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert OPENAI.key("http://127.0.0.1:8000", explicit=None, trusted_url=None) == "sk-mine"
    assert OPENAI.key("https://evil.example", explicit=key, trusted_url=None) == "sk-mine"


@pytest.mark.parametrize("key", ["sk-SEC\nRET", "sk-SECRET-é", "sk-SECRET-\x01", "sk-SECRET-\udc80"])
def test_a_key_that_no_header_carries_is_named_by_its_variable_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UsageError, match="OPENAI_API_KEY: ") as raised:
        OPENAI.key("http://127.0.0.1:8000", explicit=None, trusted_url=None)
    assert "SEC" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "nope",
        "http://h:99999",
        "http://[::1",
        "http://a b",
        "http://\udc80",
        "ftp://h",
        "http://h:0",
        "http://",
    ],
)
def test_a_url_of_the_environment_that_is_none_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(UsageError, match="OPENAI_BASE_URL: "):
        OPENAI.url(None)
    assert OPENAI.url("https://lab.example/v1\n") == "https://lab.example/v1"
    assert not OPENAI.trusts("https://lab.example/v1", None)
