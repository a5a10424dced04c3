"""Tool with the functions of an MCP server, through the protocol's own SDK."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from rolegraph.engine.connections import client_options, route
from rolegraph.engine.errors import UsageError
from rolegraph.engine.limits.tools import MCP_BYTES, REPLY_SECONDS, TOOL_FUNCTIONS
from rolegraph.engine.vocabulary import Function, Tool, ToolError, check_headers, check_url, require_library
from rolegraph.engine.vocabulary.replies import RejectedReply, bound_replies
from rolegraph.engine.vocabulary.tool import Headers

if TYPE_CHECKING:
    from mcp import ClientSession


Seconds = Annotated[float, Field(gt=0, le=3600)]


def mcp(url: str, /, *, timeout: Seconds = 60.0, headers: Headers = None) -> Tool:
    """Offer the functions of an MCP server, with one session for each episode.

    url: the server's URL for streamable HTTP; it must be allowed on the command line
    timeout: seconds for each request
    headers: of each request, such as X-Episode: "{{ episode.id }}"
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(f"{url!r} is no URL of a server; expected one such as http://127.0.0.1:8001/mcp")
    check_url(url)
    require_library("mcp", "mcp", "MCP servers")
    _major()
    return Tool(partial(_open, url, timeout), headers=check_headers(headers), permissions=(url,))


@cache
def _major() -> int:
    """Return the major version of the installed MCP SDK; raises UsageError for an unknown one."""
    sdk_version = version("mcp")
    major, minor, *_ = (int(part) if part.isdecimal() else 0 for part in (*sdk_version.split("."), "0"))
    if not (1, 24) <= (major, minor) < (3, 0):
        raise UsageError(f"MCP servers need mcp 1.24 to 2.x; mcp {sdk_version} is installed")
    return major


@cache
def _hush() -> None:
    """Silence the MCP SDK's log, whose messages repeat errors and quote the server's text.

    Some messages go to the root logger, which prints everything after its first use if it has no handler.
    """
    sdk_log = logging.getLogger("mcp")
    sdk_log.addHandler(logging.NullHandler())
    sdk_log.propagate = False
    root_log = logging.getLogger()
    if not root_log.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.addFilter(lambda record: Path(record.pathname).parent.parent.name != "mcp")
        root_log.addHandler(handler)


@asynccontextmanager
async def _open(
    url: str, seconds: float, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[Sequence[Function], None]:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    _hush()
    is_open = False
    timeout: Any = seconds if _major() > 1 else timedelta(seconds=seconds)
    try:
        async with (
            _client(url, headers) as http_client,
            streamable_http_client(
                url, http_client=http_client, **_unbounded_events(streamable_http_client)
            ) as streams,
            ClientSession(*streams[:2], timeout) as session,
        ):
            await session.initialize()
            functions = await _functions(session)
            is_open = True
            yield functions
    except Exception as error:
        if is_open:
            raise
        raise ToolError(f"the MCP server at {url} cannot be used{route(url)}: {_message(error)}") from error


def _unbounded_events(connect: Callable[..., Any]) -> dict[str, Any]:
    """Return the option that sets the largest event to `MCP_BYTES`; empty if the SDK's client has no such
    option."""
    name = "max_sse_event_size"
    return {name: None} if name in inspect.signature(connect).parameters else {}


def _client(url: str, headers: Mapping[str, str] | None) -> Any:
    """Return an HTTP client for the MCP SDK, which turns rejected responses into protocol errors.

    The SDK would wait in vain for an answer to such a request.
    """
    httpx: Any = import_module("httpx2" if _major() > 1 else "httpx")

    class Explained(httpx.AsyncByteStream):
        """Response stream that replaces a rejected response by a JSON-RPC error, which ends the waiting
        call.
        """

        def __init__(self, response: Any) -> None:
            self._response, self._stream = response, response.stream
            self._refused = response.status_code if response.is_server_error else None
            if self._refused:  # the SDK would end the session
                response.status_code, response.headers["content-type"] = 200, "application/json"
            self._is_json = response.headers.get("content-type", "").startswith("application/json")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks: list[bytes] = []  # a response of JSON is only passed on as a whole
            try:
                if self._refused:
                    raise RejectedReply(f"HTTP status {self._refused}")
                async for chunk in self._stream:
                    if self._is_json:
                        chunks.append(chunk)
                    else:
                        yield chunk
            except RejectedReply as rejected:
                request = json.loads(self._response.request.content or "{}")
                error = {"code": -32603, "message": f"rejected response: {rejected}"}
                body = json.dumps({"jsonrpc": "2.0", "id": request.get("id", 0), "error": error}).encode()
                # An unfinished event becomes one of a type that the session ignores.
                chunks = [body] if self._is_json else [b":\nevent: rejected\n\ndata: ", body, b"\n\n"]
            for chunk in chunks:
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def explain(response: Any) -> None:
        response.stream = Explained(response)

    # The session limits a call, and an open stream may be silent; an error here would end the session.
    timeout = httpx.Timeout(REPLY_SECONDS.most, read=None)
    hooks = {"response": [explain]}
    client = httpx.AsyncClient(headers=headers, event_hooks=hooks, timeout=timeout, **client_options(url))
    bound_replies(client, MCP_BYTES)
    return client


async def _functions(session: ClientSession) -> Sequence[Function]:
    from mcp.types import PaginatedRequestParams

    functions: list[Function] = []
    cursor: str | None = None
    size = 0
    for _ in range(TOOL_FUNCTIONS.most):  # pages, some of which may be empty
        page = _wire(await session.list_tools(params=PaginatedRequestParams(cursor=cursor)))
        functions += [
            Function(
                function_data["name"],
                function_data.get("description") or "",
                function_data["inputSchema"],
                partial(_call, session, function_data["name"]),
            )
            for function_data in page["tools"]
        ]
        cursor = page.get("nextCursor")
        size += len(json.dumps(page))
        for limit, amount in ((TOOL_FUNCTIONS, len(functions)), (MCP_BYTES, size)):
            if amount > limit.most:
                raise ToolError(limit.exceeded("it lists"))
        if not cursor:
            return functions
    raise ToolError(TOOL_FUNCTIONS.exceeded("it lists"))


def _wire(model: BaseModel) -> dict[str, Any]:
    """Convert an SDK object to the JSON object of the MCP protocol; the SDK's versions differ in field
    names.
    """
    return model.model_dump(mode="json", by_alias=True)


async def _call(session: ClientSession, name: str, arguments: Mapping[str, Any]) -> Any:
    import mcp
    from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

    request: Any = CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
    sdk: Any = mcp
    sdk_error: type[Exception] = sdk.MCPError if _major() > 1 else sdk.McpError
    try:
        # `call_tool` would check the result against the server's schema, whose patterns may take for ever.
        sdk_result = await session.send_request(
            request if _major() > 1 else sdk.ClientRequest(request), CallToolResult
        )
    except sdk_error as error:
        raise ToolError(cast("Any", error).error.message) from error
    except ValidationError:
        raise ToolError(f"{name} gave what is no result of the protocol") from None
    result = _wire(sdk_result)
    text = "\n".join(map(_part, result["content"]))
    if result["isError"]:
        raise ToolError(text or f"{name} failed")
    return text or result.get("structuredContent") or ""


def _part(part: Mapping[str, Any]) -> str:
    """Return a part of a tool's result as text; for a part that is no text, its URI or type in brackets."""
    match part["type"]:
        case "text":
            return part["text"]
        case "resource":
            return part["resource"].get("text", f"[{part['resource']['uri']}]")
        case "resource_link":
            return f"[{part['uri']}]"
        case kind:
            return f"[{kind}]"


def _message(error: BaseException) -> str:
    """Return the message of the innermost first error in an exception group; the SDK wraps errors in
    groups."""
    if isinstance(error, BaseExceptionGroup):
        return _message(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return str(error) or type(error).__name__
