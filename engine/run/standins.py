"""Replacements of models, tools and environments, for previews that call none of them.

They answer from a recorded episode, or with the examples of the vocabulary, in which `…` stands for what a
model would write. Knows no prompt.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.plan import EnvPlan, RunPlan
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.prompts.tools import calls_of
from rolegraph.engine.records import Episode, NodeId
from rolegraph.engine.vocabulary import Environment, Function, LiveEnvironment, Tool, Transition

PLACEHOLDER = "…"
"""Placeholder in an example for what a model would write."""


class PreviewModel:
    """A model that answers from a replay, or else with an example of the role's parser.

    Of several examples, `way` is the position of the one to take, at most the last. Its placeholder becomes
    `said`, or else the name of the node.
    """

    def __init__(self, roles: Mapping[str, RolePlan], way: int, said: str, replay: Replay | None) -> None:
        self._roles, self._way, self._said, self._replay = roles, way, said, replay
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        """Keep a request and answer it; never raises ModelError."""
        self.requests.append(request)
        if self._replay is not None:
            try:
                return await self._replay.complete(request)
            except ModelError:
                pass
        role = self._roles[request.id.node.role]
        examples = role.parser.examples or (PLACEHOLDER,)
        said = self._said or f"[{_name(request.id.node, role)}]"
        return Completion(examples[min(self._way, len(examples) - 1)].replace(PLACEHOLDER, said))

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


def _name(node: NodeId, role: RolePlan) -> str:
    """Return a node's name as it stands in made-up answers."""
    index = f" {node.index}" if role.count > 1 else ""
    return f"{node.role}{index}{f', round {node.round}' if role.loop is not None else ''}"


def example_run(run: RunPlan, role: str, recorded: Episode | None, keep: Callable[[str], None]) -> RunPlan:
    """Replace a role's tool by one that passes its argument to `keep` and returns recorded results."""
    own = (t for t in (recorded.trajectories if recorded else ()) if t.name == role)
    given: Iterator[Any] = (step.action for trajectory in own for step in trajectory.steps)

    async def call(arguments: Mapping[str, Any]) -> Any:
        keep(str(next(iter(arguments.values()), "")))
        for result in given:
            return result
        return _filled(run.tool.example, f"[{role}]")

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Sequence[Function], None]:
        yield (Function(run.name, "", {}, call),)

    return replace(run, tool=Tool(open=opened))


def example_tool(tool: Tool, recorded: Episode | None) -> Tool:
    """Replace the functions of a tool by ones that return recorded results, or their names."""
    given = _results(recorded)

    async def call(name: str, arguments: Mapping[str, Any]) -> Any:
        return given.get(_key(name, arguments), f"[{name}]")

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Sequence[Function], None]:
        assert tool.open is not None
        async with tool.open() as functions:
            yield tuple(function._replace(call=partial(call, function.name)) for function in functions)

    return Tool(open=opened)


def _results(recorded: Episode | None) -> Mapping[str, str]:
    """Return the recorded results of an episode's tool calls, by name and arguments."""
    given: dict[str, str] = {}
    for trajectory in recorded.trajectories if recorded else ():
        for step in trajectory.steps:
            waiting: list[str] = []
            for message in step.chat_completions:
                waiting += [_key(call.name, call.arguments) for call in calls_of(message)]
                if message["role"] == "tool" and waiting:
                    given[waiting.pop(0)] = message["content"]
    return given


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(dict(arguments), sort_keys=True, default=str)}"


def _filled(example: Any, said: str) -> Any:
    """Replace the placeholder in an example by `said`."""
    match example:
        case str():
            return example.replace(PLACEHOLDER, said)
        case list():
            return [_filled(part, said) for part in cast("list[Any]", example)]
        case dict():
            return {key: _filled(part, said) for key, part in cast("dict[str, Any]", example).items()}
        case _:
            return example


def still_environment(env: EnvPlan) -> EnvPlan:
    """Replace an environment by one in which all players move in every round and nothing changes."""
    environment = env.environment

    def opened() -> LiveEnvironment:
        return _StillEnvironment(environment.open())

    return env._replace(environment=Environment(opened, environment.min_players, environment.max_players))


class _StillEnvironment:
    """An environment that stays at its start, since the result of a made-up move is unknown."""

    def __init__(self, live: LiveEnvironment) -> None:
        self._live = live
        self._shown = Transition({})

    async def reset(self, seed: int, players: int) -> Transition:
        first = await self._live.reset(seed, players)
        unseen = {player: f"[what player {player + 1} sees]" for player in range(players)}
        self._shown = Transition({**unseen, **first.observations})
        return self._shown

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        return self._shown

    async def close(self) -> None:
        await self._live.close()
