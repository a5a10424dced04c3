"""What only a person allows, and never a spec: a name such as `python`, or a URL and all below it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

_URL = (
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[a-z0-9._~!$&'()*+,;=:@%/-]*)?(?P<rest>\?[a-z0-9._~!$&'()*+,;=:@%/?-]*)?"
)
"""Only what every reader of URLs reads alike: no credentials, no backslash, no other script."""
_SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_PORTS = {"http": "80", "https": "443"}


def is_secret(variable: str) -> bool:
    """Whether a variable of the environment is one that no worker sees."""
    return variable.endswith(_SECRET)


def is_allowed(permission: str, allowed: Iterable[str]) -> bool:
    """Whether one of those that a person named covers it: the same name, or a URL of the same origin whose
    path leads to it."""
    return any(permission == name or _leads_to(name, permission) for name in allowed)


def check_url(text: str) -> str:
    """A URL as it was written; raises ValueError for one that readers could take for another."""
    _parts(text)
    return text


def _leads_to(allowed: str, wanted: str) -> bool:
    try:
        (origin, path), (other, below) = _parts(allowed), _parts(wanted)
    except ValueError:
        return False
    return origin == other and (below == path or below.startswith(path.rstrip("/") + "/"))


def _parts(url: str) -> tuple[tuple[str, str, str], str]:
    """Scheme, host and port, and the path."""
    found = re.fullmatch(_URL, url, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{url!r} is not a plain URL, such as http://127.0.0.1:8000/search")
    path = found["path"] or "/"
    if any(part.partition(";")[0] in (".", "..") for part in unquote(unquote(path)).split("/")):
        raise ValueError(f"{url!r} goes up or stays in its own path; write the path without . and ..")
    scheme = found["scheme"].lower()
    return (scheme, found["host"].lower(), str(int(found["port"] or _PORTS[scheme]))), path
