"""Removal of secrets from texts that are printed, logged, recorded or sent.

Every text goes through `without_secrets`: messages of errors in their `__str__`, output to the terminal in
`printable`, and `log.txt`, `run.json`, `spec.yaml`, failures in episodes, spans and trackers when they are
written. Nothing else removes secrets.
"""

from __future__ import annotations

import html
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from rolegraph.engine.json_values import rewritten

CUT = "[key]"
"""Text that replaces a secret."""
LEAST = 8
"""Number of characters of the shortest key that is removed: a placeholder such as `none` may be a part of any
word."""

_SECRET_NAME = re.compile(
    r"((?<!mon|don|tur|hoc|joc|his)key|token|secret|(?<!com|res)(?<!by)pass(wor|w)?d?|passphrase|passcode|pwd"
    r"|credential|authorization|bearer|jwt|cookie|signature|webhook|headers|connection_?string|database_ur[il]"
    r"|(?<![a-z])(pw|pat|sk|o?auth|sig|sas|dsn|(?<!xdg_)(?<!desktop_)session))"
    r"s?(?![a-z]|_(file|path|dir|sock|type|name|manager|bus|count|limit|length|size|mode|method)\b)",
    re.IGNORECASE,
)
"""Pattern in the name of a variable, header or query parameter whose value is a secret, such as `api_key`."""
_FOLDERS = ("PWD", "OLDPWD")
"""Variables of every shell that hold no password, although their names resemble one."""
_PATH = re.compile(r"(~|\.{1,2})?/([^A-Z\n]*|[^\n]*\.[^\n]*)")
"""Pattern of a value that names a file; a key in base64 has upper case and no dot."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
_PAIR = re.compile(r"([\w-]+)[\"']?\s*[:=]\s*[\"']?([^,;\n\"']*)")
"""Pattern of a header, or a part of a connection string, in a value."""
_TOKEN_AS_USER = 16
"""Number of characters from which the user in a URL counts as a token, even if a password follows."""
_CREDENTIALS = re.compile(r"://[^/?#\s]*@")
_PARAMETER = re.compile(r"([?&;#])([^=&?#;\s'\"<>\\]+)=([^&#;\s'\"<>\\]+?)(?=[.,:)]*(?:[&#;\s'\"<>\\]|$))")
_HEADER_ERROR = re.compile(
    r"((?:illegal|invalid)\b[^\n]{0,200}?\bheader (?:value|name):? ?).*", re.IGNORECASE
)
"""Pattern of the errors with which httpx, requests and http.client refuse a header: they quote it."""

_remembered: set[str] = set()
"""Secrets of this process that are not in an environment variable."""


def without_secrets(text: str) -> str:
    """Return a text in which `[key]` replaces each secret.

    Secrets are users and passwords of URLs, query parameters with names of secrets (`is_secret_name`),
    headers that HTTP clients quote when they refuse them, and keys: those in the environment (`secrets_of`
    its variables) and those given to `remember`, unchanged, in base64, or with escapes of Python, JSON, HTML
    and URLs.

    Args:
        text: Any text, such as an error's message; calling the function on its own result changes nothing.
    """
    if keys := _keys(tuple(os.environ.items())) | _remembered:
        text = _pattern(keys).sub(CUT, text)
    return _HEADER_ERROR.sub(rf"\1{CUT}", without_url_secrets(text))


def without_url_secrets(text: str) -> str:
    """Return a text without users, passwords and secret parameters of URLs; the result does not depend on the
    environment."""
    return _PARAMETER.sub(_without_value, _CREDENTIALS.sub("://", text))


def without_secrets_in(value: object) -> object:
    """Return a JSON value, such as a command's document, with `without_secrets` applied to each text."""
    return rewritten(value, without_secrets)


def remember(value: str) -> None:
    """Register a secret, so that it and each of its words with at least 8 characters are removed from all
    texts from now on."""
    _remembered.update(_words(value))


def remember_url(url: str) -> None:
    """Register the secrets of a URL, so that they are removed from all texts from now on, even without the
    URL."""
    for secret in _secrets_of_url(url):
        remember(secret)


def is_secret_name(name: str) -> bool:
    """Return True if the value of a variable, header or query parameter with this name is a secret."""
    return name not in _FOLDERS and _SECRET_NAME.search(name) is not None


def secrets_of(name: str, value: str) -> set[str]:
    """Return the secrets in the value of an environment variable; empty for a setting or the name of a file.

    They are the whole value if the variable has the name of a secret and the value is no URL, the secrets of
    URLs, and values of headers and of parts of connection strings with names of secrets.
    """
    urls: list[str] = _URL.findall(value)
    values = {secret for url in urls for secret in _secrets_of_url(url)}
    pairs = ((name_part, text.strip()) for name_part, text in _PAIR.findall(value))
    values |= {f"{text} {unquote(text)}" for name_part, text in pairs if text and is_secret_name(name_part)}
    if urls and "webhook" in name.lower():  # Slack's and Discord's carry their secret in the path
        values |= {urlsplit(url).path.rpartition("/")[2] for url in urls}
    is_list = name.upper().endswith("HEADERS")
    if is_secret_name(name) and not (urls or is_list or _PATH.fullmatch(value)):
        values.add(value)
    return values - {""}


def _secrets_of_url(url: str) -> set[str]:
    """Return the secrets of a URL: the password, a user that is a token, both as base64, and secret
    parameters."""
    try:
        url_parts = urlsplit(url)
        user, password = unquote(url_parts.username or ""), unquote(url_parts.password or "")
    except ValueError:  # an invalid URL is refused by its reader
        return set()
    values = {password} if password and len(user) < _TOKEN_AS_USER else {user, password}
    if user or password:
        values.add(b64encode(f"{user}:{password}".encode()).decode())
    for pair in re.split("[&;]", f"{url_parts.query}&{url_parts.fragment}"):
        name, _, value = pair.partition("=")
        if is_secret_name(unquote_plus(name)):
            values |= {unquote_plus(value), value}
    return values - {""}


def _without_value(match: re.Match[str]) -> str:
    mark, name, _ = match.groups()
    return f"{mark}{name}={CUT}" if is_secret_name(unquote_plus(name)) else match[0]


def _words(value: str) -> Iterable[str]:
    return (word for word in (value.strip(), *value.split()) if len(word) >= LEAST)


@lru_cache(maxsize=8)
def _keys(variables: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Return the API keys in environment variables, given as (name, value), whole and as single words."""
    values = (secret for name, value in variables for secret in secrets_of(name, value))
    return frozenset(word for secret in values for word in _words(secret))


@lru_cache(maxsize=8)
def _pattern(keys: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern that matches any form of some keys, the longest first."""
    forms = {form for key in keys for form in _forms(key)}
    return re.compile("|".join(map(_loose, sorted(forms, key=len, reverse=True))))


def _forms(key: str) -> set[str]:
    """Return a key unchanged, and in the forms in which Python, JSON, HTML and URLs escape it."""
    spellings = {key, repr(key)[1:-1], ascii(key)[1:-1], json.dumps(key)[1:-1], html.escape(key)}
    spellings |= {json.dumps(form)[1:-1] for form in spellings}  # such as JSON in a message of JSON
    key_bytes = key.encode("utf-8", "surrogateescape")
    spellings |= {quote(key_bytes, safe=""), quote(key_bytes), quote_plus(key_bytes)}
    return spellings | {b64encode(key_bytes).decode().rstrip("=")}


def _loose(form: str) -> str:
    """Return the pattern of a form; hexadecimal digits after a percent sign may be upper or lower case."""
    return re.sub(r"%[0-9A-F]{2}", lambda it: f"(?i:{it[0]})", re.escape(form))
