"""Tests of the shipped ReAct spec with a scripted endpoint that calls tools and a real MCP server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import Response

from rolegraph.engine.compile import compile_file
from rolegraph.engine.models import LimitedModel, open_model
from rolegraph.engine.records import Episode
from rolegraph.engine.spec import ModelRef
from tests.edge import RIGHT, episode
from tests.models.edges import chat_answer, serving


def asks(name: str, arguments: str, number: int) -> Response:
    call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return chat_answer("Let me see.", finish="tool_calls", message={"tool_calls": [call]})


def scripted(body: dict[str, Any]) -> Response:
    """Call each tool once, then answer."""
    done = sum(message["role"] == "tool" for message in body["messages"])
    asked = [("calculator", '{"expression": "3 + 4"}'), ("double", '{"number": 7}'), ("calculator", "{3 +")]
    return asks(*asked[done], done) if done < len(asked) else chat_answer(RIGHT)


def test_an_agent_uses_a_calculator_and_an_mcp_server() -> None:
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    from tests.integrations.mcp.server import MCPServer, running

    server = MCPServer("numbers", log_level="ERROR")

    @server.tool()
    def double(number: int) -> int:
        """Twice a number."""
        return 2 * number

    with running(server) as url, serving(scripted) as endpoint:
        tools = f"roles.agent.tools=[calculator, {{mcp: '{url}'}}]"
        plan = compile_file("react", [tools], allow=[url])

        async def run() -> Episode:
            model = await open_model(ModelRef(provider="openai", base_url=endpoint.base_url))
            try:
                return await episode(plan, [LimitedModel(model, 8)])
            finally:
                await model.aclose()

        done = asyncio.run(run())
    (trajectory,) = done.trajectories
    assert (done.is_correct, trajectory.reward, len(trajectory.steps)) == (True, 1.0, 4)
    offered = [tool["function"]["name"] for tool in endpoint.bodies[0]["tools"]]
    assert offered == ["calculator", "double"]
    sent = endpoint.bodies[-1]["messages"]
    results = [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"]
    assert results[:2] == [("c0", "7"), ("c1", "14")]
    assert results[2][1].startswith("Error: the arguments of calculator are not the JSON of an object")
