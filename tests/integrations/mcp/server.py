"""Server class of the MCP SDK, which version 2 renamed; its tools are written alike in both."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

pytest.importorskip("mcp", reason="needs the extra `mcp`")

_IS_SECOND = find_spec("mcp.server.mcpserver") is not None
_module: Any = importlib.import_module("mcp.server.mcpserver" if _IS_SECOND else "mcp.server.fastmcp")
MCPServer: Any = _module.MCPServer if _IS_SECOND else _module.FastMCP
ServerToolError: type[Exception] = importlib.import_module(f"{_module.__name__}.exceptions").ToolError
"""Error whose message a server sends to the client; version 2 keeps the messages of other errors."""
if TYPE_CHECKING:
    Context = Any
else:
    Context = _module.Context


def session_of(context: Context) -> str:
    """Return the identifier of the session of a call."""
    return context.request_context.request.headers["mcp-session-id"]


@contextmanager
def running(server: Any) -> Generator[str]:
    """Run a server during the block; yield its URL."""
    config = uvicorn.Config(server.streamable_http_app(), port=0, log_level="error")
    web = uvicorn.Server(config)
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        web.should_exit = web.force_exit = True
        thread.join()
