"""JSON sent to a URL that a person allowed, and what comes back. No key and no cookie goes along."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from rolegraph.engine.limits.tools import REPLY_BYTES, REPLY_SECONDS
from rolegraph.engine.vocabulary import ToolError

if TYPE_CHECKING:  # it takes longer to import than a spec to check
    import httpx


def client() -> httpx.AsyncClient:
    """What asks; it follows nobody to another place."""
    import httpx

    return httpx.AsyncClient(verify=_certificates(), timeout=REPLY_SECONDS.most, follow_redirects=False)


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


async def exchange(url: str, method: Literal["POST", "GET"], client: httpx.AsyncClient, body: Any) -> Any:
    """What a URL answers to a JSON value, or to the text of one; raises ToolError."""
    import httpx

    sent = _json(body) if isinstance(body, str) else body
    if method == "GET" and not isinstance(sent, Mapping):
        raise ToolError("with GET, an object is sent, whose fields go into the query")
    how: dict[str, Any] = {"params": sent} if method == "GET" else {"json": sent}
    try:
        async with client.stream(method, url, **how) as answer:
            parts: list[bytes] = []
            size = 0
            async for part in answer.aiter_bytes():
                size += len(part)
                if size > REPLY_BYTES.most:
                    raise ToolError(REPLY_BYTES.exceeded(f"{url} answers with"))
                parts.append(part)
            status, encoding = answer.status_code, answer.charset_encoding or "utf-8"
    except httpx.ReadTimeout:
        raise ToolError(f"{url} does not answer within {REPLY_SECONDS}") from None
    except (httpx.HTTPError, httpx.InvalidURL, LookupError, ValueError) as error:
        if isinstance(error, ToolError):
            raise
        raise ToolError(f"{url} cannot be asked: {error or type(error).__name__}") from None
    text = b"".join(parts).decode(encoding, "replace")
    if not 200 <= status < 300:
        raise ToolError(f"{url} answers {status}: {text[:200]}")
    try:
        return json.loads(text)
    except ValueError:
        return text


async def retrieve(url: str, k: int, client: httpx.AsyncClient, query: Any) -> list[Any]:
    """The passages that a retriever finds; raises ToolError."""
    found = await exchange(url, "POST", client, {"query": str(query), "k": k})
    if isinstance(found, Mapping):
        found = cast("Mapping[str, Any]", found).get("results")
    if not isinstance(found, list):
        raise ToolError(f'{url} gives no list of passages, and no {{"results": […]}}')
    return cast("list[Any]", found)[:k]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ToolError(
            f"what is to be sent is not JSON ({error}); write a value as {{{{ … | tojson }}}}"
        ) from None
