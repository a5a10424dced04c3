"""Every shipped spec: short, without Python, run on a scripted endpoint and trained for a step."""

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
from engine.local.launcher import Running
from tests.models.edges import chat_answer, serving

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
ALLOWED = ["python", "http://127.0.0.1:8001/mcp"]
NEEDS = {"textarena": "textarena", "tool_and_reasoner": "pydantic_monty"}
"""What a spec's extra brings."""
ALONE = ("roles.agent.tools=[calculator]",)
"""An agent without the server that the shipped spec asks."""
SHORT = (
    "train.batch_size=2",
    "train.rollouts=2",
    "train.steps=1",
    "train.validation={every: 0, tasks: 1, rollouts: 1}",
    "sampling.max_tokens=24",
)


def overrides(path: Path) -> tuple[str, ...]:
    pytest.importorskip(NEEDS.get(path.stem, "rolegraph"))
    return ALONE if path.stem == "react" else ()


def answer(body: dict[str, Any]) -> Response:
    """Something that each parser can read, or not: nobody needs to be right."""
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
    """The bound that `validate` states."""
    size = rg.load(path, *extra, allow=ALLOWED).source.check().size
    assert size is not None
    return size.calls


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_shipped_spec_trains_for_a_step(path: Path, service: Running, tmp_path: Path) -> None:
    if path.stem == "solver_judge_distill":
        pytest.skip("its teacher is trained from in tests/rolegraph/test_training.py")
    flow = rg.load(path, *overrides(path), *SHORT, base_url=service.base_url, allow=ALLOWED)
    with patch.dict(os.environ, TINKER_API_KEY=service.api_key):
        trained = rg.train(flow, out=tmp_path / "run")
    before, after = trained.metrics
    assert (before["step"], after["step"]) == (0, 1)
    assert {name for saved in trained.checkpoints for name in saved.policies} == set(flow.plan.policies)
    assert trained.report.exists()
