"""Tests of the removal of secrets from texts."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest

from rolegraph.engine.errors import UsageError, first_line, printable
from rolegraph.engine.secrets import remember, remember_url, without_secrets, without_secrets_in


@pytest.mark.parametrize("key", ['sk-"quoted"/key', "sk-quoted + é", "sk-quoted\\'\udc80", "sk-quoted\n"])
def test_a_key_is_cut_in_each_form(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OTHER_API_KEY", key)
    bare = key.strip()
    encoded = bare.encode("utf-8", "surrogateescape")
    forms = (bare, repr(key), ascii(key), json.dumps(bare), json.dumps(json.dumps(bare)), f"Bearer {bare}")
    for form in (*forms, quote(encoded, safe=""), quote(encoded).lower(), quote_plus(encoded)):
        text = without_secrets(f"refused: {form}!")
        assert "quoted" not in text
        assert text.startswith("refused: ")
        assert without_secrets(text) == text


@pytest.mark.parametrize("key", ["e", "none", "tml-abc"])
def test_a_short_key_is_left_alone(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    remember(key)
    assert (
        without_secrets("none of rolegraph's tml-abc texts change")
        == "none of rolegraph's tml-abc texts change"
    )


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("https://me:pass@h/v1", "https://h/v1"),
        ("https://h/v1?key=abc", "https://h/v1?key=[key]"),
        ("'https://h?a=1&api_key=abc&b=2' x", "'https://h?a=1&api_key=[key]&b=2' x"),
        ("(https://h?token=abc): no", "(https://h?token=[key]): no"),
        (
            "https://h?Subscription-Key=a;x-amz-signature=b#c",
            "https://h?Subscription-Key=[key];x-amz-signature=[key]#c",
        ),
        ("https://h?%6bey=abc&client%5Fsecret=d", "https://h?%6bey=[key]&client%5Fsecret=[key]"),
        ("https://h?keyword=cats&design=1&q=token", "https://h?keyword=cats&design=1&q=token"),
        ('{"u": "https://h?sig=abc\\"x"}', '{"u": "https://h?sig=[key]\\"x"}'),
        ("h?key=[key]", "h?key=[key]"),
        ("key=abc", "key=abc"),
    ],
)
def test_secrets_of_a_url_are_cut(text: str, cut: str) -> None:
    assert without_secrets(text) == cut
    assert without_secrets(cut) == cut


def test_secrets_of_a_url_that_is_called_are_cut_where_they_stand_alone() -> None:
    remember_url("https://me:p%40ssword7@h/v1?api_key=abc%2Bdefgh&n=12345678")
    text = "p@ssword7 abc+defgh abc%2bdefgh 12345678"
    assert without_secrets(text) == "[key] [key] [key] 12345678"


def test_headers_of_the_environment_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abcdefgh,x-team=reading-group")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: writing-group\nX-API-Key: ijklmnop")
    text = "Bearer abcdefgh, ijklmnop, reading-group, writing-group"
    assert without_secrets(text) == "Bearer [key], [key], reading-group, writing-group"


def test_errors_and_printed_texts_have_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "abcdefgh")
    assert str(UsageError("no abcdefgh")) == first_line(ValueError("no abcdefgh")) == "no [key]"
    assert printable("abcdefgh\x1b") == "[key]\\x1b"
    assert without_secrets_in({"a": ["abcdefgh", 1, None]}) == {"a": ["[key]", 1, None]}


@pytest.mark.parametrize(
    "text",
    [
        "Illegal header value b'Bearer abc\\n'",
        "Invalid header value b'abc'",
        "Invalid leading whitespace, reserved character(s), or return character(s) in header value: 'abc'",
    ],
)
def test_what_a_transport_says_of_a_header_is_cut(text: str) -> None:
    assert "abc" not in without_secrets(text)
