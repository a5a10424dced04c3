"""Tests of the removal of secrets from texts."""

from __future__ import annotations

import json
import logging
from urllib.parse import quote, quote_plus

import pytest

from rolegraph.engine.connections import is_here
from rolegraph.engine.errors import UsageError, first_line, printable
from rolegraph.engine.secrets import remember, remember_url, without_secrets, without_secrets_in
from rolegraph.engine.vocabulary.children import program_environment


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


NAMED = """OPENAI_API_KEY PGPASSWORD GITHUBTOKEN MYSECRET DB_PASSWD DB_PASS AWS_SECRET_ACCESS_KEY GH_PAT
MYAPPKEY STRIPE_SK OPENAI_APIKEY GPG_PASSPHRASE AZURE_STORAGE_CONNECTION_STRING MYSQL_PWD SENTRY_DSN
API_KEY_2 accessToken"""
OTHERS = """MONKEY KEYBOARD TOKENIZERS_PARALLELISM SSH_KEYFILE NETRC PWD OLDPWD COMPASS DESKTOP_SESSION TASK
XDG_SESSION_ID SSH_AUTH_SOCK AWS_WEB_IDENTITY_TOKEN_FILE token_type design keyword"""


@pytest.mark.parametrize("name", NAMED.split())
def test_a_variable_named_as_a_secret_is_cut_and_not_passed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "CANARYsecret-0001")
    assert without_secrets("x CANARYsecret-0001 y") == "x [key] y"
    assert name not in program_environment(own_code=True)
    assert name in program_environment([f"env:{name}"])


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_variables_cut_no_words(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "reading-group")
    assert without_secrets("a reading-group") == "a reading-group"
    assert program_environment(own_code=True)[name] == "reading-group"
    assert name not in program_environment()


@pytest.mark.parametrize(
    "value", ["/path/to/file", "~/.ssh/id_rsa", "/Users/Me/server.pem", "none", "false", "2048"]
)
def test_a_file_or_setting_in_a_variable_named_as_a_secret_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SERVER_KEY", value)
    assert without_secrets(f"no {value}") == f"no {value}"


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("SLACK_WEBHOOK_URL", "https://hooks.example/services/T0/B0/CANARY0001", "CANARY0001"),
        ("DATABASE_URL", "postgres://postgres:CANARY0001@db.example/orders", "CANARY0001"),
        ("SENTRY_DSN", "https://CANARY0001@sentry.example/1", "CANARY0001"),
        ("MY_MIRROR", "https://db.example/simple?token=CANARY0001", "CANARY0001"),
        ("HTTPS_PROXY", "http://me:CANARY0001@proxy.example:3128", "bWU6Q0FOQVJZMDAwMQ=="),
        ("AZURE_STORAGE_CONNECTION_STRING", "AccountName=orders-db;AccountKey=CANARY0001==", "CANARY0001=="),
        ("OTHER_HEADERS", "X-Team: postgres\nX-API-Key: CANARY0001", "CANARY0001"),
    ],
)
def test_secrets_inside_of_a_value_are_cut_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, secret: str
) -> None:
    monkeypatch.setenv(name, value)
    assert without_secrets(f"a {secret} b") == "a [key] b"
    others = "hooks.example db.example sentry.example proxy.example orders-db postgres /orders"
    assert without_secrets(others) == others
    assert name not in program_environment(own_code=True)


def test_a_token_as_user_and_basic_authentication_are_cut() -> None:
    remember_url("https://CANARYtoken1@h/v1")
    remember_url("https://me:CANARYpass1@h/v1")
    assert without_secrets("CANARYtoken1 Basic bWU6Q0FOQVJZcGFzczE=") == "[key] Basic [key]"


@pytest.mark.parametrize(
    "name", ["httpx", "openai._base_client", "urllib3.connectionpool", "huggingface_hub.utils"]
)
def test_what_http_libraries_log_has_no_secret(name: str) -> None:
    assert not is_here("https://h/v1?key=CANARY0001")  # of the module that every client needs
    words = ("HTTP Request: %s %s", ("GET", "https://h/v1?key=CANARY0001"))
    record = logging.getLogger(name).makeRecord(name, logging.INFO, __file__, 1, *words, None)
    assert record.getMessage() == "HTTP Request: GET https://h/v1?key=[key]"


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
