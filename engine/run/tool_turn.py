"""The turn of a role that runs a tool in place of asking a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.plan import Node, RunPlan
from rolegraph.engine.errors import RolegraphError
from rolegraph.engine.limits.tools import TOOL_TEXT
from rolegraph.engine.models import Clock
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.records import Failure, FailureName
from rolegraph.engine.run.isolation import CallTimeout, Isolation
from rolegraph.engine.run.session import NodeResult, ToolRun, failing_earns
from rolegraph.engine.run.tools import OpenTools, result_text
from rolegraph.engine.vocabulary import ToolError, Upstream, View
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, plain_json


async def run_turn(
    role: RolePlan,
    run: RunPlan,
    node: Node,
    variables: Mapping[str, Any],
    upstream: Upstream,
    *,
    tools: OpenTools,
    isolation: Isolation,
    clock: Clock,
    began: float,
) -> NodeResult:
    """The turn of a node that runs a tool, whose result is its action; of one that failed, why.

    `began` is when the episode did, by the clock. Only cancellation and faults of the user or of this program
    raise.
    """
    try:
        value = "" if run.value is None else run.value.render(variables)
    except PromptError as error:
        return _result(role, node, Failure(FailureName.PROMPT_ERROR, str(error)))
    for attempt in range(role.spec.on_failure.retry + 1):
        start, text = clock(), ""
        try:
            async with asyncio.timeout(role.spec.timeout):
                result: Any = await _call(run, value, upstream, tools, isolation)
            text = result_text(run.name, result)
            result = plain_json(result, TOOL_TEXT)
        except ToolError as error:
            result = Failure(FailureName.TOOL_ERROR, str(error))
        except (TimeoutError, CallTimeout):
            limit = role.spec.timeout or run.tool.timeout
            within = "in time" if limit is None else f"within {limit:g} s"
            result = Failure(FailureName.TIMEOUT, f"no result {within}")
        except RolegraphError:
            raise
        except FOREIGN_ERRORS as error:  # a tool from elsewhere: its fault ends this node only
            result = Failure(FailureName.TOOL_ERROR, describe_error(error))
        if not isinstance(result, Failure) or attempt == role.spec.on_failure.retry:
            ran = ToolRun(run.name, start - began, clock() - start, attempt)
            return _result(role, node, result, ran, text)
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
    role: RolePlan, node: Node, result: object, ran: ToolRun | None = None, text: str = ""
) -> NodeResult:
    """What a turn came to. A failure's message is its result, so that later roles can see what went wrong."""
    failure = result if isinstance(result, Failure) else None
    action, text = (failure.message, failure.message) if failure else (result, text)
    (name, index, number), lineage = node.id, node.lineage
    return NodeResult(
        View(index, action, text, "", number, lineage, failed=failure is not None, role=name),
        failure=failure,
        score=failing_earns(role) if failure and role.reward else None,
        ran=ran,
    )
