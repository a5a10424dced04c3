"""Replacements for values and parts that a preview does not use: hidden values, models, tools and
environments.

A hidden value is replaced by its name. A model or a tool answers with a recorded answer, or else with an
example of the vocabulary, in which `…` stands for text that a model would write.
"""

from __future__ import annotations

import json
import operator
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.role_plan import EnvPlan, RunPlan
from rolegraph.engine.errors import ModelError
from rolegraph.engine.json_values import rewritten
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.prompts.tools import calls_of
from rolegraph.engine.records import Episode, NodeId
from rolegraph.engine.vocabulary import (
    Function,
    LiveEnvironment,
    ParseFailure,
    Parser,
    Tool,
    ToolCall,
    Transition,
    Upstream,
)

PLACEHOLDER = "…"
"""Placeholder in an example for text that a model would write."""

# hidden values


_Method = Callable[[Any, Any], Any]


def _operators(word: str, sign: str) -> tuple[_Method, _Method]:
    """Return (method of a binary operator, its reflected method); their result has a name such as `target +
    1`."""
    compute: Callable[[float, float], float] = getattr(operator, word)

    def operation(left: Any, right: Any) -> Any:
        if not (isinstance(left, int | float) and isinstance(right, int | float)):
            return NotImplemented
        names = [f"({name})" if " " in name else name for name in map(_label, (left, right))]
        return _number(compute(left.real, right.real), f" {sign} ".join(names))  # `real` has no label

    def reflected(right: Any, left: Any) -> Any:
        return operation(left, right)

    return operation, reflected


class _HiddenNumber:
    """Number that prints as the name of a hidden field; arithmetic keeps the name."""

    label: str

    def __str__(self) -> str:
        return f"[hidden: {self.label}]"

    __repr__ = __str__
    __add__, __radd__ = _operators("add", "+")
    __sub__, __rsub__ = _operators("sub", "-")
    __mul__, __rmul__ = _operators("mul", "*")
    __truediv__, __rtruediv__ = _operators("truediv", "/")
    __floordiv__, __rfloordiv__ = _operators("floordiv", "//")
    __mod__, __rmod__ = _operators("mod", "%")


class _HiddenInt(_HiddenNumber, int):
    pass


class _HiddenFloat(_HiddenNumber, float):
    pass


def _number(value: float, label: str) -> _HiddenInt | _HiddenFloat:
    number = _HiddenInt(value) if isinstance(value, int) else _HiddenFloat(value)
    number.label = label
    return number


def _label(value: float) -> str:
    return value.label if isinstance(value, _HiddenNumber) else str(value)


def hidden_value(value: object, name: str) -> Any:
    """Return a stand-in of the same type whose text is the field's name; lists and mappings keep their
    size."""
    return _with_leaves(value, name, _hidden)


def _hidden(value: object, name: str) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _number(1 if isinstance(value, int) else 1.0, name) if is_number else f"[hidden: {name}]"


def _with_leaves(value: Any, name: str, leaf: Callable[[Any, str], Any]) -> Any:
    """Return a copy of nested lists and mappings in which each leaf becomes `leaf(value, its name)`."""
    match value:
        case list():
            return [
                _with_leaves(item, f"{name} {n}", leaf) for n, item in enumerate(cast("list[Any]", value), 1)
            ]
        case dict():
            items_ = cast("dict[str, Any]", value)
            return {key: _with_leaves(value_, f"{name}.{key}", leaf) for key, value_ in items_.items()}
        case _:
            return leaf(value, name)


# models, tools and environments


class PreviewModel:
    """Model for `preview` that keeps its requests, and answers from a recording or with the parser's example.

    `way` is the position of the example to use, or the last one if there are fewer; None gives each instance
    of a role another example. The placeholder of the example becomes `answer`, or without `answer` the name
    of the node. A role in `texts` answers with its text there.
    """

    def __init__(
        self,
        roles: Mapping[str, RolePlan],
        way: int | None,
        answer: str,
        replay: Replay | None,
        texts: Mapping[str, str],
    ) -> None:
        self._roles, self._way, self._answer, self._replay = roles, way, answer, replay
        self._texts = texts
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        """Record a request, and return the recorded or made-up answer; never raises ModelError."""
        self.requests.append(request)
        if self._replay is not None:
            try:
                return await self._replay.complete(request)
            except ModelError:
                pass
        role = self._roles[request.id.node.role]
        if role.callees and request.id.call == 1:  # so that the prompts of the roles that it calls are seen
            calls = tuple(_example_call(role, callee.function) for callee in role.callees)
            return Completion("", calls=calls, usage={"prompt_tokens": 1, "completion_tokens": 1})
        node = request.id.node
        way = (node.index - 1) % max(len(role.parser.examples), 1) if self._way is None else self._way
        example = example_answer(role, way, self._answer or f"[{_name(node, role)}]")
        text = self._texts.get(role.name, example)
        return Completion(text, usage={"prompt_tokens": 1, "completion_tokens": len(text.split())})

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


_EXAMPLES: Mapping[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
"""Example argument by its type; for a text, the example names the role and the argument."""


def _example_call(role: RolePlan, function: Function) -> ToolCall:
    """Return a call of a function with made-up arguments."""
    arguments = {
        name: schema.get("enum", [_EXAMPLES.get(schema["type"], f"[{role.name}: {name}]")])[0]
        for name, schema in function.parameters["properties"].items()
    }
    return ToolCall(function.name, arguments)


def example_answer(role: RolePlan, way: int, answer: str) -> str:
    """Return the example of a role's parser at position `way`, or the last example, filled with `answer`."""
    examples = role.parser.examples or (PLACEHOLDER,)
    return examples[min(way, len(examples) - 1)].replace(PLACEHOLDER, answer)


def lenient_parser(parser: Parser, example: str) -> Parser:
    """Return a copy of a parser that parses `example` if it cannot parse the response."""

    def parse(response: str, upstream: Upstream) -> Any:
        try:
            return parser.parse(response, upstream)
        except ParseFailure:
            return parser.parse(example, upstream)

    return replace(parser, parse=parse)


def _name(node: NodeId, role: RolePlan) -> str:
    """Return the name of a turn for made-up answers, such as `solver 2, round 1`."""
    index = f" {node.index}" if role.count > 1 else ""
    if role.loop is None:
        return f"{node.role}{index}"
    number, outer = role.round_at(node.round)
    return f"{node.role}{index}, round {number}" + (f" of outer round {outer}" if role.is_nested else "")


def example_run(run: RunPlan, role: str, recorded: Episode | None, keep: Callable[[str], None]) -> RunPlan:
    """Return a copy of `run` whose tool computes nothing, and passes its argument to `keep`.

    The result is the recorded one, or else made up from the tool's example.

    Args:
        run: The tool that a role runs.
        role: Name of the role.
        recorded: Episode with recorded results, if any.
        keep: Function that gets the argument.
    """
    trajectories = (t for t in (recorded.trajectories if recorded else ()) if t.name == role)
    steps = (step for trajectory in trajectories for step in trajectory.steps)
    given_results: Iterator[Any] = (step.model_response if run.parser else step.action for step in steps)

    async def call(arguments: Mapping[str, Any]) -> Any:
        keep(value := str(next(iter(arguments.values()), "")))
        if run.tool.open is None:
            return value
        for result in given_results:
            return result
        return rewritten(run.tool.example, lambda text: text.replace(PLACEHOLDER, f"[{role}]"))

    return replace(run, tool=Tool(open=lambda: nullcontext((Function(run.name, "", {}, call),))))


def example_tool(tool: Tool, recorded: Episode | None) -> Tool:
    """Return a tool whose functions compute nothing: each returns its recorded result, or else `[NAME]`."""
    given_results = _results(recorded)

    async def call(name: str, arguments: Mapping[str, Any]) -> Any:
        return given_results.get(_key(name, arguments), f"[{name}]")

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Sequence[Function], None]:
        async with tool.opened("preview") as functions:
            yield tuple(function._replace(call=partial(call, function.name)) for function in functions)

    return Tool(open=opened)


def _results(recorded: Episode | None) -> Mapping[str, str]:
    """Return the results of tool calls in an episode's chats, by the call's name and arguments."""
    results_by_call: dict[str, str] = {}
    for trajectory in recorded.trajectories if recorded else ():
        for step in trajectory.steps:
            waiting_calls: list[str] = []
            for message in step.chat_completions:
                waiting_calls += [_key(call.name, call.arguments) for call in calls_of(message)]
                if message["role"] == "tool" and waiting_calls:
                    results_by_call[waiting_calls.pop(0)] = message["content"]
    return results_by_call


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(dict(arguments), sort_keys=True, default=str)}"


def still_environment(env: EnvPlan) -> EnvPlan:
    """Return a copy of `env` for `preview`, in which every player moves in each round and moves have no
    effect.

    An environment that needs a permission is not opened at all.
    """
    environment = env.environment
    start = None if environment.permissions else environment.open
    return env._replace(environment=replace(environment, open=lambda: _StillEnvironment(start and start())))


class _StillEnvironment:
    """Environment for `preview` that repeats its first observations, since made-up moves have no result."""

    def __init__(self, live: LiveEnvironment | None) -> None:
        self._live = live
        self._shown = Transition({})

    async def reset(self, seed: int, players: int) -> Transition:
        first_transition = await self._live.reset(seed, players) if self._live else Transition({})
        made_up = {player: f"[what player {player + 1} sees]" for player in range(players)}
        self._shown = Transition({**made_up, **first_transition.observations})
        return self._shown

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        return self._shown

    async def close(self) -> None:
        if self._live:
            await self._live.close()
