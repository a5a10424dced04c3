"""Downloads over HTTP: whole files of a known size and digest."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rolegraph.engine.connections import client_options, route
from rolegraph.engine.errors import UsageError, WorldError, describe_error

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 5.0
"""Seconds until a host that does not answer is given up; then another source is tried."""
READ_SECONDS = 30.0
REFUSED = (401, 403)
"""Status codes for a file that the key of the user, or none, does not open."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """State of a fetch, in bytes of the current step."""

    text: str
    """The step, such as `downloading model.safetensors`."""
    done: int = 0
    total: int = 0
    """Size of the step; 0 where the size is not known."""


Observe = Callable[[FetchProgress], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to download."""

    name: str
    url: str
    size: int
    """Bytes; a longer or shorter file is refused."""
    sha256: str | None = None
    """Hex digest that the content must have; None where its host states none."""


@asynccontextmanager
async def answered(url: str, headers: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
    """Return the streamed answer to a GET request.

    Raises:
        UsageError: The host refuses the user.
        WorldError: The host does not answer, or answers with an error.
    """
    import httpx

    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    # The size of a packed file is not that of its content.
    headers = {"Accept-Encoding": "identity", **headers}
    parts = urlsplit(url)
    shown = f"{parts.hostname}{parts.path}"  # a user's index may have a password in its URL
    try:
        async with (
            httpx.AsyncClient(timeout=timeout, follow_redirects=True, **client_options(url)) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code in REFUSED:
                raise UsageError(f"{shown} refuses you: HTTP {answer.status_code}")
            if answer.is_error:
                raise WorldError(f"{shown} answers with HTTP {answer.status_code}")
            yield answer
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise WorldError(f"{shown} does not answer: {describe_error(error)}{route(url)}") from error


async def download(
    file: RemoteFile, target: Path, observe: Observe, headers: Mapping[str, str] | None = None
) -> None:
    """Download a file and check its size and digest.

    Args:
        file: The file.
        target: Path of the new file.
        observe: Function called with each state.
        headers: Headers of the request; `Authorization` does not follow to another host.

    Raises:
        UsageError: The host refuses the user.
        WorldError: The download fails, or the content is not the expected one.
    """
    digest, done, text = hashlib.sha256(), 0, f"downloading {file.name}"
    observe(FetchProgress(text, 0, file.size))
    async with answered(file.url, headers or {}) as answer:
        with target.open("xb") as out:
            async for chunk in answer.aiter_bytes():
                done += len(chunk)
                if done > file.size:
                    break
                digest.update(chunk)
                out.write(chunk)
                observe(FetchProgress(text, done, file.size))
    if done != file.size:
        seen = "more" if done > file.size else f"only {done:,}"
        raise WorldError(f"{file.name} has {file.size:,} bytes, and its host sent {seen}")
    if file.sha256 is not None and digest.hexdigest() != file.sha256:
        raise WorldError(
            f"{file.name} from {urlsplit(file.url).hostname} has the SHA-256 {digest.hexdigest()}, expected "
            f"{file.sha256}: it is damaged, or another file"
        )
