"""Functions of a real MCP server on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary import BadOptions, Function, ItemCall, Tool, ToolError, tools
from tests.edge import RIGHT, episode, limited, write_spec
from tests.integrations.mcp.server import Context, MCPServer, ServerToolError, running, session_of
from tests.models.edges import free_port
from tests.run.test_calls import call, results, script


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = MCPServer("shop", log_level="ERROR")
    baskets: dict[str, list[str]] = {}

    @server.tool()
    def put(what: str, context: Context) -> str:
        """Puts something into the session's basket."""
        basket = baskets.setdefault(session_of(context), [])
        basket.append(what)
        return ", ".join(basket)

    @server.tool()
    def price(what: str) -> dict[str, int]:
        """What something costs."""
        if what == "air":
            raise ServerToolError("air is not for sale")
        return {"euros": len(what)}

    @server.tool()
    async def wait() -> str:
        """Takes its time."""
        await asyncio.sleep(60)
        return "done"

    @server.tool()
    def episode(context: Context) -> str:
        """The header of the episode, if there is one."""
        headers: Mapping[str, str] = context.request_context.request.headers
        return headers.get("x-episode", "none")

    with running(server) as found:
        yield found


def item(url: str, **options: Any) -> Tool:
    return tools.build(ItemCall.parse({"mcp": url, **options}))


def use(tool: Tool, work: Callable[[Mapping[str, Function]], Any]) -> Any:
    async def run() -> Any:
        async with tool.opened("e1") as functions:
            return await work({function.name: function for function in functions})

    return asyncio.run(run())


def test_a_server_s_functions_are_what_it_lists(url: str) -> None:
    async def listed(functions: Mapping[str, Function]) -> Mapping[str, Function]:
        return functions

    functions = use(item(url), listed)
    assert set(functions) == {"put", "price", "wait", "episode"}
    assert functions["price"].description == "What something costs."
    assert functions["price"].parameters["required"] == ["what"]
    assert item(url).permissions == (url,)


def test_what_a_server_keeps_it_keeps_for_a_session(url: str) -> None:
    async def twice(functions: Mapping[str, Function]) -> list[Any]:
        return [await functions["put"].call({"what": what}) for what in ("milk", "eggs")]

    assert use(item(url), twice) == ["milk", "milk, eggs"]
    assert use(item(url), twice) == ["milk", "milk, eggs"]


def test_each_request_has_the_headers_of_the_spec(url: str) -> None:
    async def ask(functions: Mapping[str, Function]) -> Any:
        return await functions["episode"].call({})

    assert use(item(url), ask) == "none"
    assert use(item(url, headers={"X-Episode": "of {{ episode.id }}"}), ask) == "of e1"


def test_an_error_of_the_server_s_is_a_tool_error(url: str) -> None:
    async def dear(functions: Mapping[str, Function]) -> Any:
        with pytest.raises(ToolError, match="air is not for sale"):
            await functions["price"].call({"what": "air"})

    async def slow(functions: Mapping[str, Function]) -> Any:
        with pytest.raises(ToolError, match=r"[Tt]imed out"):
            await functions["wait"].call({})

    use(item(url), dear)
    use(item(url, timeout=0.5), slow)


def test_a_server_that_is_not_there_is_a_tool_error_that_names_it() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/mcp"

    async def nothing(functions: Mapping[str, Function]) -> None: ...

    with pytest.raises(ToolError, match=rf"MCP server at {nowhere} cannot be used: .+"):
        use(item(nowhere), nothing)


@pytest.mark.parametrize("written", ["stdio:python server.py", "127.0.0.1:8001/mcp", "file:///etc/passwd"])
def test_only_a_url_can_be_written(written: str) -> None:
    with pytest.raises(BadOptions, match="expected one such as http"):
        item(written)


SPEC = """\
rolegraph: 2
name: shopping
roles:
  agent:
    prompt: "{{{{ task.question }}}}"
    tools: [{{mcp: "{url}"}}]
    max_calls: 3
    parser: {{tag: answer}}
    reward: countdown
data: {{validation: countdown}}
"""


def test_a_role_uses_a_server(url: str, tmp_path: Path) -> None:
    plan = compile_file(write_spec(tmp_path, SPEC.format(url=url)), allow=[url])
    model = script(call("price", what="milk"), call("price", what="air"), RIGHT)
    done = asyncio.run(episode(plan, limited(plan, model)))
    assert done.trajectories[0].reward == 1.0
    first, second = results(model)
    assert '"euros": 4' in first
    assert second.startswith("Error: ") and "air is not for sale" in second


def test_a_server_that_is_gone_fails_its_role_alone(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    plan = compile_file(write_spec(tmp_path, SPEC.format(url=url)), allow=[url])
    (trajectory,) = asyncio.run(episode(plan, limited(plan, script(RIGHT)))).trajectories
    assert trajectory.failure is not None
    assert trajectory.failure.name is FailureName.TOOL_ERROR


def test_a_spec_with_a_server_is_checked_without_asking_it(tmp_path: Path) -> None:
    path = write_spec(tmp_path, SPEC.format(url="http://127.0.0.1:1/mcp"))
    assert check_file(path).plan is not None


NOISY = """
import asyncio, contextlib, logging, sys
from rolegraph.integrations.mcp.tool import mcp

async def serve(reader, writer):
    with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
            body = sys.argv[1].encode()
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\n")
            writer.write(b"content-length: %d\\r\\n\\r\\n" % len(body) + body)

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = "http://127.0.0.1:%d/mcp" % server.sockets[0].getsockname()[1]
    try:
        async with mcp(url, timeout=0.5).open():
            pass
    except ValueError as error:
        print(error)
    logging.getLogger("another").warning("heard")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "said",
    [
        '{"jsonrpc": "2.0", "id": "x", "result": {}}',
        '{"jsonrpc": "2.0", "id": 1, "method": "\\u001b[2J"}',
        "{",
    ],
)
def test_nothing_that_a_server_says_is_printed_by_the_way(said: str) -> None:
    done = subprocess.run([sys.executable, "-c", NOISY, said], capture_output=True, text=True, check=True)
    assert "cannot be used" in done.stdout
    assert done.stderr == "heard\n"


@pytest.mark.parametrize("installed", ["1.23.3", "3.0.0", "0.9.1"])
def test_a_version_of_the_sdk_without_support_is_named(installed: str, tmp_path: Path) -> None:
    (tmp_path / f"mcp-{installed}.dist-info").mkdir()
    (tmp_path / f"mcp-{installed}.dist-info" / "METADATA").write_text(f"Name: mcp\nVersion: {installed}\n")
    path = write_spec(tmp_path, SPEC.format(url="http://127.0.0.1:1/mcp"))
    command = [sys.executable, "-m", "rolegraph", "validate", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 2
    assert f"mcp {installed} is installed" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
