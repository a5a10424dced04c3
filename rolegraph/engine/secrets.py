"""Removal of secrets from texts that are printed, logged, recorded or sent.

Every message passes `without_secrets`: errors by their `__str__`, the terminal by `printable`, `log.txt`,
`run.json`, `spec.yaml`, failures in episodes, spans and trackers by themselves. Nothing else cuts secrets.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import cast
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

CUT = "[key]"
"""Text in the place of a secret."""
LEAST = 8
"""Characters of the shortest key that is cut: a placeholder such as `none` may be a part of any word."""

_KEY_VARIABLE = re.compile(r"(.*_)?(API_?KEY|KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE | re.DOTALL)
"""Names of environment variables whose value is a key, and not the name of a file or a setting."""
_SECRET_NAME = re.compile(
    r"(key|token|secret|pass(wor|w)?d?|pwd|auth(orization)?|bearer|jwt|cookie|session|sig(nature)?|credential)"
    r"s?(?![a-z])",
    re.IGNORECASE,
)
"""Part of the name of a header or query parameter whose value is a secret, such as `api_key`."""
_CREDENTIALS = re.compile(r"://[^/?#\s]*@")
_PARAMETER = re.compile(r"([?&;])([^=&?#;\s'\"<>\\]+)=([^&#;\s'\"<>\\]+?)(?=[.,:)]*(?:[&#;\s'\"<>\\]|$))")
_HEADER_ERROR = re.compile(
    r"((?:illegal|invalid)\b[^\n]{0,200}?\bheader (?:value|name):? ?).*", re.IGNORECASE
)
"""Errors by which httpx, requests and http.client refuse a header: they quote it."""

_remembered: set[str] = set()
"""Secrets of this process that stand in no variable of the environment."""


def without_secrets(text: str) -> str:
    """Return a text with `[key]` in the place of each secret.

    Cut are user and password of URLs, parameters of a query that are named as secrets (`key`, `api_key`,
    `token`, `sig`), the quotations of HTTP clients that refuse a header, and keys: of the environment
    (variables that end in KEY, TOKEN, SECRET or PASSWORD) and of `remember`, as they are, with escapes of
    Python, JSON, HTML and URLs.

    Args:
        text: Any text, such as an error's message; cutting it again changes nothing.
    """
    if keys := _remembered | _keys_of_environment():
        text = _pattern(frozenset(keys)).sub(CUT, text)
    return _HEADER_ERROR.sub(rf"\1{CUT}", without_url_secrets(text))


def without_url_secrets(text: str) -> str:
    """Return a text without users, passwords and secret parameters of URLs, the same in every environment."""
    return _PARAMETER.sub(_without_value, _CREDENTIALS.sub("://", text))


def without_secrets_in(value: object) -> object:
    """Return a value of JSON, such as a command's document, with `without_secrets` of each text."""
    match value:
        case str():
            return without_secrets(value)
        case dict():
            fields = cast("dict[object, object]", value)
            return {without_secrets_in(name): without_secrets_in(field) for name, field in fields.items()}
        case list() | tuple():
            return [*map(without_secrets_in, cast("Sequence[object]", value))]
        case _:
            return value


def remember(value: str) -> None:
    """Cut a secret, and each of its words, from all texts from now on, if they have at least 8 characters."""
    _remembered.update(_words(value))


def remember_url(url: str) -> None:
    """Cut the password and the secret parameters of a URL from all texts from now on, without the URL too."""
    try:
        parts = urlsplit(url)
        password = parts.password or ""
    except ValueError:  # an invalid URL is refused by its reader
        return
    remember(unquote(password))
    for pair in re.split("[&;]", parts.query):
        name, _, value = pair.partition("=")
        if is_secret_name(unquote_plus(name)):
            remember(unquote_plus(value))
            remember(value)


def is_secret_name(name: str) -> bool:
    """Return True if the value of a header or query parameter with this name is a secret."""
    return _SECRET_NAME.search(name) is not None


def _without_value(match: re.Match[str]) -> str:
    mark, name, _ = match.groups()
    return f"{mark}{name}={CUT}" if is_secret_name(unquote_plus(name)) else match[0]


def _words(value: str) -> Iterable[str]:
    return (word for word in (value.strip(), *value.split()) if len(word) >= LEAST)


def _keys_of_environment() -> set[str]:
    """Return the keys that variables of the environment hold, also those of their headers."""
    keys = set[str]()
    for name, value in os.environ.items():
        if _KEY_VARIABLE.fullmatch(name):
            keys.update(_words(value))
        elif name.upper().endswith("HEADERS"):  # `a: b` a line, or `a=b,c=d` with percent-encoding
            for header, word in re.findall(r"([\w-]+)\s*[:=]\s*([^,\n]*)", value):
                if is_secret_name(header):
                    keys.update(_words(f"{word} {unquote(word)}"))
    return keys


@lru_cache(maxsize=8)
def _pattern(keys: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern of all forms of some keys, the longest first."""
    forms = {form for key in keys for form in _forms(key)}
    return re.compile("|".join(map(_loose, sorted(forms, key=len, reverse=True))))


def _forms(key: str) -> set[str]:
    """Return a key as it is, and as Python, JSON, HTML and URLs write it."""
    escaped = {key, repr(key)[1:-1], ascii(key)[1:-1], json.dumps(key)[1:-1], html.escape(key)}
    escaped |= {json.dumps(form)[1:-1] for form in escaped}  # such as JSON in a message of JSON
    encoded = key.encode("utf-8", "surrogateescape")
    return escaped | {quote(encoded, safe=""), quote(encoded), quote_plus(encoded)}


def _loose(form: str) -> str:
    """Return the pattern of a form; hexadecimal digits after a percent sign are of either case."""
    return re.sub(r"%[0-9A-F]{2}", lambda it: f"(?i:{it[0]})", re.escape(form))
