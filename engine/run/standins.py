"""What stands in for models, tools and environments where nobody is to be asked.

They answer what is on record, or what the vocabulary gives as examples, in which `…` is where somebody would
say something of their own. This file knows no prompt.
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

SAID = "…"
"""In an example, what somebody would have said."""


class PreviewModel:
    """A model that answers what is on record, or else with an example of what the role's parser can read.

    Of several examples it takes the one of that number, or the last. It says `said`, or else who it is.
    """

    def __init__(self, roles: Mapping[str, RolePlan], way: int, said: str, replay: Replay | None) -> None:
        self._roles, self._way, self._said, self._replay = roles, way, said, replay
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        """An answer to any request, which is kept."""
        self.requests.append(request)
        if self._replay is not None:
            try:
                return await self._replay.complete(request)
            except ModelError:
                pass
        role = self._roles[request.id.node.role]
        examples = role.parser.examples or (SAID,)
        said = self._said or f"[{_name(request.id.node, role)}]"
        return Completion(examples[min(self._way, len(examples) - 1)].replace(SAID, said))

    async def aclose(self) -> None:
        """Nothing to let go of."""


def _name(node: NodeId, role: RolePlan) -> str:
    """Who speaks, as a made-up answer says it."""
    index = f" {node.index}" if role.count > 1 else ""
    return f"{node.role}{index}{f', round {node.round}' if role.loop is not None else ''}"


def asked_only(run: RunPlan, role: str, recorded: Episode | None, heard: Callable[[str], None]) -> RunPlan:
    """A role's tool, which hears what it is asked, and gives what is on record, in order, or its example."""
    own = (t for t in (recorded.trajectories if recorded else ()) if t.name == role)
    given: Iterator[Any] = (step.action for trajectory in own for step in trajectory.steps)

    async def call(arguments: Mapping[str, Any]) -> Any:
        heard(str(next(iter(arguments.values()), "")))
        for result in given:
            return result
        return _filled(run.tool.example, f"[{role}]")

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Sequence[Function], None]:
        yield (Function(run.name, "", {}, call),)

    return replace(run, tool=Tool(open=opened))


def told_only(tool: Tool, recorded: Episode | None) -> Tool:
    """A tool that a model is told of as it is, and whose functions give what they gave on record."""
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
    """What came of the calls in an episode, by what was called."""
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
    """An example, with what somebody would have said in its place."""
    match example:
        case str():
            return example.replace(SAID, said)
        case list():
            return [_filled(part, said) for part in cast("list[Any]", example)]
        case dict():
            return {key: _filled(part, said) for key, part in cast("dict[str, Any]", example).items()}
        case _:
            return example


def still(env: EnvPlan) -> EnvPlan:
    """An environment in which everybody moves in every round, and nothing comes of it."""
    environment = env.environment

    def opened() -> LiveEnvironment:
        return _Still(environment.open())

    return env._replace(environment=Environment(opened, environment.min_players, environment.max_players))


class _Still:
    """The start of a real environment, for ever: what a made-up move would come to is nobody's to know."""

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
