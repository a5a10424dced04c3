"""Keys and URLs of providers, and which key may be sent to which URL. Reads the environment; knows no SDK.

A spec is untrusted, and may name a `base_url`. So a key from the environment is sent only to the provider's
own endpoint, to the URL that the environment names beside the key, to this machine, or to the URL that the
person gave outside the spec (`trusted_url`). An explicit key is always sent.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from rolegraph.engine.connections import is_here
from rolegraph.engine.errors import UsageError
from rolegraph.engine.secrets import CUT, LEAST, remember, remember_url

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Environment variables of one provider's key and URL, and the provider's own endpoint."""

    key_variable: str
    url_variable: str
    default_url: str

    def url(self, base_url: str | None) -> str:
        """Return the URL to call, without a trailing slash; raises UsageError for an invalid URL."""
        environment_url = os.environ.get(self.url_variable, "").strip()
        url = ((base_url or "").strip() or environment_url or self.default_url).rstrip("/")
        source = self.url_variable if url == environment_url.rstrip("/") else "base_url"
        if not _is_url(url):
            raise UsageError(
                f"{source}: {url!r} is not a URL; expected something like http://127.0.0.1:8000."
            )
        if CUT in url:
            raise UsageError(
                f"{source}: {url} was recorded without its key; give the whole URL with --base-url."
            )
        remember_url(url)
        return url

    def key(self, url: str, *, explicit: str | None, trusted_url: str | None) -> str | None:
        """Return the key to send to `url`, without white space around it; None if no key may be sent there.

        Args:
            url: The URL.
            explicit: A key that the user gave for this model; it is sent to any URL.
            trusted_url: URL that the user gave outside the spec.

        Raises:
            UsageError: The key has characters that a request cannot carry.
        """
        if explicit:
            remember(explicit)  # messages show no key of the environment anyway
            return _checked("the key", explicit)
        if not self.trusts(url, trusted_url):
            return None
        return _checked(self.key_variable, os.environ.get(self.key_variable, ""))

    def trusts(self, url: str, trusted_url: str | None) -> bool:
        """Return True if secrets of the environment may be sent to `url`: the provider's own URL, the URL of
        the environment variable, `trusted_url`, or this machine."""
        urls = (self.default_url, os.environ.get(self.url_variable), trusted_url)
        return is_here(url) or _origin(url) in {_origin(other) for other in urls if other and _is_url(other)}

    def withheld(self, url: str, variable: str | None = None) -> str:
        """Return the error message that says why the key, or the secret in `variable`, is not sent to
        `url`."""
        return (
            f"{variable or self.key_variable} is not sent to {url} because only the spec names that URL; "
            f"set {self.url_variable}={url} or give it with --base-url to allow it."
        )


TINKER = KeyRule(
    "TINKER_API_KEY", "TINKER_BASE_URL", "https://tinker.thinkingmachines.dev/services/tinker-prod"
)
OPENAI = KeyRule("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1")
VLLM = KeyRule("VLLM_API_KEY", "VLLM_BASE_URL", "http://127.0.0.1:8000")
SGLANG = KeyRule("SGLANG_API_KEY", "SGLANG_BASE_URL", "http://127.0.0.1:30000")


def header_value(name: str, value: str) -> str:
    """Return the value of a header without white space around it, such as the line end of a file.

    Args:
        name: Name of the environment variable, for the message.
        value: The variable's value, which may be a secret: no message shows it.

    Raises:
        UsageError: The value has a character that headers cannot carry.
    """
    stripped = value.strip()
    bad_character = next((char for char in stripped if not (char.isascii() and char.isprintable())), None)
    if bad_character is not None:
        location = f"the character U+{ord(bad_character):04X}, number {stripped.index(bad_character) + 1}"
        raise UsageError(f"{name}: it has {location}, which a header cannot carry; expected printable ASCII")
    return stripped


def provider_variables() -> dict[str, str]:
    """Return the variables of the environment that providers read: keys, URLs and settings of their SDKs."""
    prefixes = tuple(rule.key_variable.partition("_")[0] + "_" for rule in (TINKER, OPENAI, VLLM, SGLANG))
    return {name: value for name, value in os.environ.items() if name.startswith((*prefixes, "HF_TOKEN"))}


def same_origin(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    return _origin(url) == _origin(other)


def _checked(name: str, value: str) -> str | None:
    """Return a key without white space around it, and warn of a short key; None for an empty key."""
    key = header_value(name, value)
    if 0 < len(key) < LEAST:
        _warn_of_short(name)
    return key or None


@cache
def _warn_of_short(name: str) -> None:
    _logger.warning(
        "%s: a key of fewer than %d characters is not cut from messages and logs, where it may be a part of "
        "any word",
        name,
        LEAST,
    )


def _is_url(url: str) -> bool:
    """Return True if an HTTP client accepts `url` as the URL of a server."""
    import httpx  # slow to import, and imported for the call anyway

    try:
        url_parts, httpx_url = urlsplit(url), httpx.URL(url)
        is_whole = bool(httpx_url.host) and url_parts.port != 0 and not re.search(r"\s", url)
        return url_parts.scheme in ("http", "https") and is_whole
    except (ValueError, httpx.InvalidURL):  # an invalid port, host or IPv6 address
        return False


def _origin(url: str) -> tuple[str, str | None, int | None]:
    split = urlsplit(url)
    return split.scheme, split.hostname, split.port or {"http": 80, "https": 443}.get(split.scheme)
