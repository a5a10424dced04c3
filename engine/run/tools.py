"""Tools while they run: those that an episode has open, and the turn of a role that runs one.

A tool is opened when an episode first needs it and closed when the episode is over, whatever happened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from engine.compile import RolePlan
from engine.compile.plan import Node, RunPlan
from engine.errors import RolegraphError
from engine.prompts import PromptError
from engine.records import Failure, FailureName
from engine.run.isolation import Isolation, LimitError
from engine.run.session import NO_SCORE, NodeResult
from engine.vocabulary import Function, Tool, ToolError, Upstream, View


class _Kept(NamedTuple):
    """An open tool: the task that opens and closes it, its functions, and the word that it may close."""

    task: asyncio.Task[None]
    functions: asyncio.Future[Sequence[Function]]
    over: asyncio.Event


class OpenTools:
    """The tools of one episode, each open once, whoever asks for it."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    async def functions(self, tool: Tool) -> Sequence[Function]:
        """A tool's functions; raises what opening it raises."""
        kept = self._kept.get(id(tool))
        if kept is None:
            functions: asyncio.Future[Sequence[Function]] = asyncio.get_running_loop().create_future()
            over = asyncio.Event()
            task = asyncio.create_task(_keep(tool, functions, over))
            kept = self._kept[id(tool)] = _Kept(task, functions, over)
        return await asyncio.shield(kept.functions)  # who is cancelled takes nothing from the others

    async def close(self) -> None:
        """Close what is open; nothing that goes wrong there is the episode's."""
        for kept in self._kept.values():
            kept.over.set()
            if not kept.functions.done():
                kept.task.cancel()
        await asyncio.gather(*(kept.task for kept in self._kept.values()), return_exceptions=True)


async def _keep(tool: Tool, functions: asyncio.Future[Sequence[Function]], over: asyncio.Event) -> None:
    """Opens a tool and closes it in one task, as clients with cancel scopes of their own want it."""
    assert tool.open is not None
    try:
        async with tool.open() as opened:
            functions.set_result(opened)
            await over.wait()
    except BaseException as error:
        if functions.done():
            raise
        functions.set_exception(error if isinstance(error, Exception) else ToolError("was not opened"))
        functions.exception()  # it is told to whoever asked, if anybody still does
        if not isinstance(error, Exception):
            raise


async def run_turn(
    role: RolePlan,
    run: RunPlan,
    node: Node,
    variables: Mapping[str, Any],
    upstream: Upstream,
    *,
    tools: OpenTools,
    isolation: Isolation,
) -> NodeResult:
    """The turn of a node that runs a tool, whose result is its action; of one that failed, why.

    Only cancellation and faults of the user or of this program raise.
    """
    try:
        value = "" if run.value is None else run.value.render(variables)
    except PromptError as error:
        return _result(role, run, node, Failure(FailureName.PROMPT_ERROR, str(error)), 0, 0.0)
    for attempt in range(role.on_failure.retry + 1):
        began = perf_counter()
        try:
            async with asyncio.timeout(role.timeout):
                result: Any = await _call(run, value, upstream, tools, isolation)
        except ToolError as error:
            result = Failure(FailureName.TOOL_ERROR, str(error))
        except (TimeoutError, LimitError):
            limit = role.timeout or run.tool.timeout
            within = "in time" if limit is None else f"within {limit:g} s"
            result = Failure(FailureName.TIMEOUT, f"no result {within}")
        except RolegraphError:
            raise
        except Exception as error:  # a tool from elsewhere: its fault ends this node only
            result = Failure(FailureName.TOOL_ERROR, f"{type(error).__name__}: {error}")
        if not isinstance(result, Failure) or attempt == role.on_failure.retry:
            return _result(role, run, node, result, attempt + 1, perf_counter() - began)
    raise AssertionError("there is at least one attempt")


async def _call(
    run: RunPlan, value: str, upstream: Upstream, tools: OpenTools, isolation: Isolation
) -> object:
    tool = run.tool
    if tool.choose is not None:
        if tool.timeout is None:
            return tool.choose(upstream, run.pairs)
        return await isolation.run(tool.choose, upstream, run.pairs, limit=tool.timeout)
    functions = await tools.functions(tool)
    if len(functions) != 1:
        raise ToolError(f"{run.name} has {len(functions)} functions; a role can run a tool of one")
    (function,) = functions
    first = next(iter(function.parameters.get("properties", {})), "value")
    return await function.call({first: value})


def _result(
    role: RolePlan, run: RunPlan, node: Node, result: object, attempts: int, seconds: float
) -> NodeResult:
    """What a turn came to. A failure's message is its result, so that later roles can see what went wrong."""
    failure = result if isinstance(result, Failure) else None
    action = failure.message if failure else result
    text = action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, default=str)
    (_, index, number), lineage = node.id, node.lineage
    return NodeResult(
        View(index, action, text, "", number, lineage, failed=failure is not None),
        seconds=seconds,
        failure=failure,
        attempts=max(1, attempts),
        score=NO_SCORE if failure and role.reward else None,
        tool=run.name if attempts else "",
    )
