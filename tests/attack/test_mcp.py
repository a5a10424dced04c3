"""Tests that each answer of a hostile MCP server becomes the result of the call or a named tool error."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolegraph.engine.limits.tools import TOOL_FUNCTIONS
from rolegraph.engine.run.tools import CallResult, OpenTools, call_all
from rolegraph.engine.vocabulary import ItemCall, ToolCall, ToolError, tools

pytest.importorskip("mcp", reason="needs the extra `mcp`")
ROOT = Path(__file__).parents[2]
COMES = {
    "honest": "42",
    "huge": "Error: huge gave more than 400,000 characters (limit: tool_text)",
    "many": "a\na\na",
    "escapes": "\0 \x1b[31m \u202e <script>",
    "image": "[image]",
    "audio": "[audio]",
    "blob": "[file:///etc/passwd]",
    "nothing": "",
    "error": "Error: \x1b[31mno",
    "silent_error": "Error: silent_error failed",
    "hologram": "Error: hologram gave what is no result of the protocol",
    "number": "Error: number gave what is no result of the protocol",
    "deep": "Error: deep gave neither text nor a JSON value: it is nested too deeply",
    "structured": '{"a": [1, null]}',
}


@contextmanager
def hostile(listing: str) -> Iterator[str]:
    """Start a hostile server in a child process and yield its URL."""
    command = [sys.executable, "-m", "tests.attack.mcp_server", listing]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp/"
        finally:
            process.kill()


async def ask(url: str, *names: str, seconds: float = 60.0) -> list[CallResult]:
    """Call tools of a server one after the other in one turn and return the results."""
    opened = OpenTools()
    try:
        tool = tools.build(ItemCall.parse({"mcp": url, "timeout": seconds}))
        functions = await opened.named_functions([tool])
        return [(await call_all(functions, [ToolCall(name, {})], None))[0] for name in names]
    finally:
        await opened.close()


def test_whatever_a_server_answers_is_the_call_s_result_or_its_error() -> None:
    with hostile("plain") as url:
        came = asyncio.run(ask(url, *COMES, "honest_2", "\x1b[31m\0"))
        said = [result.message["content"] for result in came]
        for (name, start), text in zip(COMES.items(), said, strict=False):
            assert text.startswith(start), name
            assert "\n" not in text or name == "many", name
        assert said[-2] == "42", "a second function of one name has one of its own"
        assert said[-1].startswith("Error: ")
        (never, after) = asyncio.run(ask(url, "never", "honest", seconds=1.0))
        assert never.message["content"].startswith("Error: Timed out")
        assert after.message["content"] == "42"
        (dead, *_) = asyncio.run(ask(url, "dies", seconds=1.0))
        assert dead.message["content"].startswith("Error: ")


@pytest.mark.parametrize("listing", ["endless", "stuck"])
def test_a_server_that_lists_tools_for_ever_is_a_tool_error(listing: str) -> None:
    with hostile(listing) as url, pytest.raises(ToolError, match=rf"{url} .*limit: {TOOL_FUNCTIONS.name}"):
        asyncio.run(ask(url, "honest"))
