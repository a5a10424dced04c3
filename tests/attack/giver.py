"""Runner for the cases in `given`: an episode in which third-party code returns a hostile value."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy
import yaml

from rolegraph.engine.compile import compile_file
from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import EpisodeWriter, read_episodes
from rolegraph.engine.vocabulary import (
    Environment,
    Function,
    Metric,
    Parser,
    Reward,
    Score,
    Tool,
    ToolError,
    Transition,
    environments,
    metrics,
    parsers,
    rewards,
    tools,
)
from tests.attack.cases import Came
from tests.edge import episode, limited
from tests.run.test_calls import call, script

ASKED: dict[str, Any] = {"prompt": "hi"}
SPECS: Mapping[str, Any] = {
    "tool": {"roles": {"a": {"run": {"given": "hi"}}}},
    "call": {"roles": {"a": {**ASKED, "tools": "given", "max_calls": 2}}},
    "parser": {"roles": {"a": {**ASKED, "parser": "given"}}},
    "reward": {"roles": {"a": {**ASKED, "reward": "given"}}},
    "metric": {"roles": {"a": ASKED}, "episode": {"metrics": {"m": "given"}}},
    "environment": {
        "roles": {"a": {"prompt": "{{ self.observation }}", "reward": "env"}},
        "loops": {"l": {"roles": ["a"], "times": 1, "env": "given"}},
    },
}
source = "None"
"""Python expression of the current case."""


def raises(error: Exception) -> NoReturn:
    raise error


def deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


NAMES = {
    "Score": Score, "ToolError": ToolError, "Transition": Transition, "numpy": numpy,
    "raises": raises, "deep": deep, "circle": circle,
}  # fmt: skip


def given(*_: object) -> Any:
    """Evaluate the expression of the current case."""
    return eval(source, NAMES)


class World:
    async def reset(self, seed: int, players: int) -> Transition:
        return given()

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        return Transition({}, done=True)

    async def close(self) -> None: ...


@asynccontextmanager
async def _opened() -> AsyncGenerator[Sequence[Function], None]:
    async def ask(arguments: Mapping[str, Any]) -> Any:
        return given()

    yield (Function("given", "Gives.", {"type": "object"}, ask),)


def _tool(asked: str | None = None, /) -> Tool:
    return Tool(open=_opened, source=asked)


def register() -> None:
    """Register a tool, parser, reward, metric and environment named `given`."""
    tools.register("given")(_tool)
    parsers.register("given")(lambda: Parser(given))
    rewards.register("given")(lambda: Reward(given))
    metrics.register("given")(lambda: Metric(given))
    environments.register("given")(lambda: Environment(World, 1, 1))


def give(case: str) -> Came:
    """Run the episode of a case, write and read the episode, and return the outcome."""
    global source
    kind, _, source = case.partition(":")
    Path("given.yaml").write_text(yaml.safe_dump({"rolegraph": 2, "name": "x", **SPECS[kind]}))
    plan = compile_file("given.yaml")
    model = script(call("given"), "done")
    done = asyncio.run(episode(plan, limited(plan, model), {"id": "t"}))
    Path("episodes.jsonl").unlink(missing_ok=True)
    with EpisodeWriter(Path("episodes.jsonl")) as writer:
        writer.append(done)
    (read,) = read_episodes(Path("episodes.jsonl"))
    return _came(kind, read)


def _came(kind: str, read: Episode) -> Came:
    (trajectory,) = read.trajectories
    if uncomputed := read.metadata.get("uncomputed_metrics"):
        return Came("error", uncomputed["m"])
    if trajectory.failure is not None:
        return Came("error", f"{trajectory.failure.name.value}: {trajectory.failure.message}"[:500])
    if kind == "call":
        noted, message = trajectory.steps[0].metadata["calls"][0], trajectory.steps[1].chat_completions[-2]
        return Came("error" if "error" in noted else "text", _shown(message["content"]))
    if kind == "environment":
        return Came("text", _shown(trajectory.steps[0].chat_completions[0]["content"]))
    return Came("text", _shown(trajectory.action))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text)[1:-1][:500]
