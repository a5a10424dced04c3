"""Permissions that a user gives and a spec cannot: a name such as `python`, or a URL and everything below
it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from rolegraph.engine.errors import UsageError
from rolegraph.engine.secrets import remember_url

_URL = (
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[a-z0-9._~!$&'()*+,;=:@%/-]*)?(?P<rest>\?[a-z0-9._~!$&'()*+,;=:@%/?-]*)?"
)
"""Pattern of URLs that all parsers read in the same way: no credentials, no backslash, ASCII only."""
_PYTHON = "python="
MONTY = "monty"
"""Python's interpreter by default."""
_PORTS = {"http": "80", "https": "443"}


def is_allowed(permission: str, allowed: Iterable[str]) -> bool:
    """Return True if a permission is among those that a user gave.

    Args:
        permission: The permission that an item requests: a name or a URL.
        allowed: The names and URLs that the user gave. A URL allows every URL of the same origin with the
            same path or one below it; `python=INTERPRETER` allows `python`.
    """
    return any(
        permission == name
        or (permission == "python" and name.startswith(_PYTHON))
        or _covers(name, permission)
        for name in allowed
    )


def python_interpreter(allowed: Iterable[str]) -> str:
    """Return the interpreter of the last `python=…` among the permissions; MONTY without one.

    Raises:
        UsageError: The interpreter is neither docker:IMAGE, podman:IMAGE nor the URL of a server.
    """
    names = [name.removeprefix(_PYTHON) for name in allowed if name.startswith(_PYTHON)]
    if names and not re.fullmatch(r"(docker|podman):[^\s-]\S*|https?://\S+", names[-1]):
        raise UsageError(
            f"no Python interpreter {names[-1]!r}; expected docker:IMAGE, podman:IMAGE, or the URL of a "
            "SandboxFusion server, as in --allow python=docker:python:3.12-slim"
        )
    return names[-1] if names else MONTY


def check_url(text: str) -> str:
    """Return a URL unchanged; error messages leave out secrets in its query.

    Raises:
        ValueError: The text is not a URL, or a URL that two parsers could read differently.
    """
    if "{{" in text:
        raise ValueError(
            f"{text!r} holds a template, and a URL has none: it stands in logs; "
            "episode.id may stand in `headers`, and in a body"
        )
    _split_url(text)
    remember_url(text)
    return text


def _covers(allowed: str, wanted: str) -> bool:
    try:
        # The query of what is allowed does not count; one of a record has had its key cut.
        (allowed_origin, allowed_path), (origin, path) = map(_split_url, (allowed.partition("?")[0], wanted))
    except ValueError:
        return False
    is_same_origin = origin == allowed_origin
    return is_same_origin and (path == allowed_path or path.startswith(allowed_path.rstrip("/") + "/"))


def _split_url(url: str) -> tuple[tuple[str, str, str], str]:
    """Split a URL into its origin (scheme, host, port) and its path."""
    match = re.fullmatch(_URL, url, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{url!r} is not a plain URL, such as http://127.0.0.1:8000/search")
    path = match["path"] or "/"
    # Decoded twice, because a server behind a proxy may decode twice.
    if any(part.partition(";")[0] in (".", "..") for part in unquote(unquote(path)).split("/")):
        raise ValueError(f"{url!r} has . or .. in its path; write the path without them")
    scheme = match["scheme"].lower()
    return (scheme, match["host"].lower(), str(int(match["port"] or _PORTS[scheme]))), path
