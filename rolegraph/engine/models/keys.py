"""Keys and URLs of providers, and which key may be sent to which URL. Reads the environment; knows no SDK.

A spec is untrusted, and may name a `base_url`. So a key from the environment is
sent only to the provider's own endpoint, to the URL that the environment names beside the key, to this
machine, or to the URL that the person gave outside the spec (`trusted_url`). An explicit key is always sent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from rolegraph.engine.errors import UsageError
from rolegraph.local.launcher import is_loopback


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Variables of one provider's key and URL, and its own endpoint."""

    key_variable: str
    url_variable: str
    default_url: str

    def url(self, base_url: str | None) -> str:
        """Return the URL to call, without a trailing slash; raises UsageError for an invalid URL."""
        url = (base_url or os.environ.get(self.url_variable) or self.default_url).rstrip("/")
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # an invalid port or IPv6 address
            is_valid = False
        if not is_valid:
            raise UsageError(
                f"base_url: {url!r} is not a URL; expected something like http://127.0.0.1:8000."
            )
        return url

    def key(self, url: str, *, explicit: str | None, trusted_url: str | None) -> str | None:
        """Return the key to send to `url`; None where no key may be sent there."""
        if explicit:
            return explicit
        return os.environ.get(self.key_variable) or None if self.trusts(url, trusted_url) else None

    def trusts(self, url: str, trusted_url: str | None) -> bool:
        """Return True if secrets of the environment may be sent to `url`: the provider's own URL, the URL of
        the environment variable, `trusted_url`, or this machine."""
        urls = (self.default_url, os.environ.get(self.url_variable), trusted_url)
        return _origin(url) in {_origin(it) for it in urls if it} or is_loopback(urlsplit(url).hostname or "")

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


def provider_variables() -> dict[str, str]:
    """Return the variables of the environment that providers read: keys, URLs and settings of their SDKs."""
    prefixes = tuple(rule.key_variable.partition("_")[0] + "_" for rule in (TINKER, OPENAI, VLLM, SGLANG))
    return {name: value for name, value in os.environ.items() if name.startswith((*prefixes, "HF_TOKEN"))}


_NO_PROXY = ("NO_PROXY", "no_proxy")


def bypass_proxies(url: str) -> None:
    """Add the host of a URL of this machine to NO_PROXY, so that calls and keys are sent to no proxy.

    Set for the whole process: the Tinker SDK has no option for it.
    """
    host = urlsplit(url).hostname or ""
    if not is_loopback(host):
        return
    for variable in _NO_PROXY:
        hosts = [name for name in os.environ.get(variable, "").split(",") if name]
        if host not in hosts and "*" not in hosts:
            os.environ[variable] = ",".join((*hosts, host))


def same_origin(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    return _origin(url) == _origin(other)


def redact(text: str, key: str | None) -> str:
    """Replace `key` in `text` by `[key]`: a server may echo what it was sent."""
    return text.replace(key, "[key]") if key else text


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
