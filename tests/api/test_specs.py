"""Tests of every shipped spec: its length, and a run on a scripted endpoint."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from starlette.responses import Response

import rolegraph as rg
from tests.models.edges import chat_answer, serving

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
ALLOWED = ["python", "http://127.0.0.1:8001/mcp"]
NEEDS = {"textarena": "textarena", "tool_and_reasoner": "pydantic_monty"}
"""Modules that the specs with an extra require, by spec."""
EXTRA = {
    "react": ("roles.agent.tools=[calculator]",),  # replaces the MCP server of the shipped spec
    "tic_tac_toe": ("loops.play.env={tic_tac_toe: {illegal: repeats}}", "loops.play.times=3"),
    "plan_path": ("loops.walk.times=2",),
    "textarena": ("loops.play.times=3",),
}


def overrides(path: Path) -> tuple[str, ...]:
    pytest.importorskip(NEEDS.get(path.stem, "rolegraph"))
    return EXTRA.get(path.stem, ())


def answer(body: dict[str, Any]) -> Response:
    """Return a fixed answer that most parsers can read; correctness does not matter."""
    return chat_answer("3 + 4 is 7, up.\n<answer>1</answer><code>print('3 + 4')</code>[4]")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_shipped_spec_is_short_and_has_no_python(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 40
    assert yaml.safe_load(text)["name"] == path.stem


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_shipped_spec_runs_on_any_endpoint(path: Path) -> None:
    extra = overrides(path)

    async def run(url: str) -> list[rg.Episode]:
        flow = rg.load(path, *extra, model="openai:scripted", base_url=url, allow=ALLOWED)
        async with flow.open() as opened:
            return [episode async for episode in opened.stream("validation", limit=2)]

    with serving(answer) as endpoint, patch.dict(os.environ, OPENAI_API_KEY="key"):
        episodes = asyncio.run(run(endpoint.base_url))
    plan = rg.load(path, *extra, allow=ALLOWED).plan
    assert len(episodes) == 2
    for episode in episodes:
        assert {trajectory.name for trajectory in episode.trajectories} <= {role.name for role in plan.roles}
        assert episode.trajectories and episode.termination_reason.value == "env_done"
    assert len(endpoint.bodies) <= 2 * plan_calls(path, extra)


def plan_calls(path: Path, extra: tuple[str, ...]) -> int:
    """Return the upper bound on model calls per episode that `validate` reports."""
    size = rg.check(path, *extra, allow=ALLOWED).size
    assert size is not None
    return size.calls
