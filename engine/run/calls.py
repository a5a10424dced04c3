"""What a model asks of tools in its turn: what it may call, and what comes of its calls.

Whatever goes wrong with a call is its result's text, so that the model can do better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rolegraph.engine.errors import UserError, did_you_mean
from rolegraph.engine.limits.answers import ANSWER_CALLS
from rolegraph.engine.limits.records import CALL_SHOWN
from rolegraph.engine.limits.tools import TOOL_TEXT
from rolegraph.engine.prompts.tools import result_message
from rolegraph.engine.records import Message
from rolegraph.engine.run.tools import result_text
from rolegraph.engine.vocabulary import Function, Tool, ToolCall, ToolError
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error
from rolegraph.engine.vocabulary.schemas import UNBOUNDED_KEYWORDS, Keyword, TooMuchWork, schema_checker

if TYPE_CHECKING:
    from rolegraph.engine.run.tools import OpenTools

Functions = Mapping[str, Function]
"""What a model may call, by name."""


async def offered(tools: Sequence[Tool], opened: OpenTools) -> Functions:
    """The functions of some tools; raises what a tool raises that cannot be opened.

    Where two have one name, the later is known as `name_2`.
    """
    found: dict[str, Function] = {}
    for functions in await asyncio.gather(*map(opened.functions, tools)):
        for function in functions:
            name, number = function.name, 1
            while name in found:
                number += 1
                name = f"{function.name}_{number}"
            found[name] = function._replace(name=name)
    return found


class CallResult(NamedTuple):
    """What came of a call."""

    message: Message
    """A turn of the chat."""
    noted: Mapping[str, str]
    """For the record: the function's `name`, and the `error` where there is one."""


async def results_of(
    functions: Functions, calls: Sequence[ToolCall], seconds: float | None
) -> Sequence[CallResult]:
    """What came of the calls of one answer, in their order, side by side; `seconds` bounds each.

    Only so many are made of one answer, and only so much is said of them together.
    """
    made = await asyncio.gather(*(_result(functions, call, seconds) for call in calls[: ANSWER_CALLS.most]))
    results, left = list[CallResult](), TOOL_TEXT.most
    for call, result in zip(calls, made, strict=False):
        length = len(result.message["content"])
        fits = length <= left
        left -= length if fits else 0
        results.append(
            result if fits else _failed(call, TOOL_TEXT.exceeded("the results of these calls have"))
        )
    past = ANSWER_CALLS.exceeded("the answer has")
    return [*results, *(_failed(call, f"not called: {past}") for call in calls[ANSWER_CALLS.most :])]


async def _result(functions: Functions, call: ToolCall, seconds: float | None) -> CallResult:
    try:
        text = await _called(functions, call, seconds)
    except ToolError as error:
        return _failed(call, str(error))
    return CallResult(result_message(call, text), {"name": call.name})


def _failed(call: ToolCall, why: str) -> CallResult:
    return CallResult(result_message(call, f"Error: {why}"), {"name": call.name, "error": why})


async def _called(functions: Functions, call: ToolCall, seconds: float | None) -> str:
    """The result's text; raises ToolError, or UserError for the person's mistake."""
    try:
        function = functions.get(call.name)
        if function is None or call.malformed:
            raise ToolError(_not_understood(functions, call))
        _check(function, call.arguments)
        async with asyncio.timeout(seconds):
            result = await function.call(call.arguments)
        return result_text(call.name, result)
    except (ToolError, UserError):
        raise
    except TimeoutError:
        within = "in time" if seconds is None else f"within {seconds:g} s"
        raise ToolError(f"{call.name} gave no result {within}") from None
    except FOREIGN_ERRORS as error:  # a tool may be a package's own code
        raise ToolError(describe_error(error)) from error


def _not_understood(functions: Functions, call: ToolCall) -> str:
    written = (
        call.malformed if len(call.malformed) <= CALL_SHOWN.most else f"{call.malformed[: CALL_SHOWN.most]}…"
    )
    if not call.name:
        return f"this call cannot be read: {written!r}; expected a tool's name, and arguments as JSON"
    if call.name in functions:
        return f"the arguments of {call.name} are not the JSON of an object: {written!r}"
    hint = did_you_mean(call.name, functions)
    return f"there is no tool {call.name!r}; there is {', '.join(functions)}{f'; {hint}' if hint else ''}"


def _check(function: Function, arguments: Mapping[str, Any]) -> None:
    """Raises ToolError for arguments that are not what a function takes.

    Patterns are the tool's own to hold them against, because some take for ever, and so is what its schema
    says elsewhere: nothing is fetched.
    """
    unread: dict[str, Keyword] = dict.fromkeys(
        ("pattern", "patternProperties", *UNBOUNDED_KEYWORDS), _anything
    )
    try:
        problem = schema_checker(function.parameters, unread)(dict(arguments))
    except TooMuchWork as error:
        raise ToolError(f"{function.name} does not take these arguments: {error}") from None
    except Exception:  # a schema that is none: the tool has to see for itself
        return
    if problem is not None:
        place = "" if problem.path == "$" else f" at {problem.path}"
        raise ToolError(
            f"{function.name} does not take these arguments{place}: {problem.message[: CALL_SHOWN.most]}"
        )


def _anything(validator: object, wanted: object, value: object, around: object) -> Sequence[object]:
    return ()
