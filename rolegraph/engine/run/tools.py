"""The tools of one episode: opened at the first use, called in a turn, closed when the episode ends.

Any error in a model's call becomes the text of its result, so that the model can correct itself.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from rolegraph.engine.compile.role_plan import CalleePlan
from rolegraph.engine.errors import FOREIGN_ERRORS, UserError, describe_error, did_you_mean
from rolegraph.engine.limits.answers import ANSWER_CALLS
from rolegraph.engine.limits.records import CALL_SHOWN
from rolegraph.engine.limits.tools import TOOL_CLOSE_SECONDS, TOOL_TEXT
from rolegraph.engine.models.limit import call_tool
from rolegraph.engine.prompts.tools import result_message
from rolegraph.engine.records import Failure, FunctionCallMetadata, Message, check_recordable
from rolegraph.engine.vocabulary import Function, Tool, ToolCall, ToolError
from rolegraph.engine.vocabulary.schemas import UNBOUNDED_KEYWORDS, Keyword, TooMuchWork, schema_checker

Functions = Mapping[str, Function]
"""The functions that a model may call, by name."""


class OpenTools:
    """The tools of one episode, each opened once for all turns."""

    def __init__(self, episode: str) -> None:
        """Create the set of tools of an episode, none of them open."""
        self._episode = episode
        self._opened: dict[int, asyncio.Future[Sequence[Function]]] = {}
        """Functions of each open tool, by the tool's id()."""
        self._holders: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()

    async def functions(self, tool: Tool) -> Sequence[Function]:
        """Return the functions of a tool, opened if it is not open yet; raises the errors of opening it."""
        if id(tool) not in self._opened:
            functions_future = self._opened[id(tool)] = asyncio.get_running_loop().create_future()
            self._holders.append(asyncio.create_task(self._hold(tool, functions_future)))
        # Shielded: a turn that is cancelled must not cancel the opening for the other turns.
        return await asyncio.shield(self._opened[id(tool)])

    async def named_functions(
        self, tools: Sequence[Tool], roles: Sequence[Function] = (), without: Collection[str] = ()
    ) -> Functions:
        """Open tools, and return the functions of roles and tools by name.

        If two functions have one name, the later is called `name_2`.

        Args:
            tools: The tools.
            roles: The functions of roles.
            without: Functions of the tools to leave out, by their name in the tool or in the result.
        """
        by_name = {function.name: function for function in roles}
        left_out: set[str] = set()
        for functions in await asyncio.gather(*map(self.functions, tools)):
            for function in functions:
                name, number = function.name, 1
                while name in by_name:
                    number += 1
                    name = f"{function.name}_{number}"
                by_name[name] = function._replace(name=name)
                if function.name in without or name in without:
                    left_out.add(name)
        return {name: function for name, function in by_name.items() if name not in left_out}

    async def _hold(self, tool: Tool, opened: asyncio.Future[Sequence[Function]]) -> None:
        """Open a tool, set `opened` to its functions, and close the tool when the episode ends.

        One task does all of it, since anyio's scopes must be left by the task that entered them.
        """
        try:
            async with tool.opened(self._episode) as functions:
                opened.set_result(functions)
                await self._closing.wait()
        except FOREIGN_ERRORS as error:
            if opened.done():
                return  # closing failed, when nothing depends on the tool any more
            del self._opened[id(tool)]  # the next turn tries again
            opened.set_exception(error)
            opened.exception()  # marks it as retrieved: the turn that opened the tool may be cancelled

    async def close(self) -> None:
        """Close the open tools; cancel those that take longer than `TOOL_CLOSE_SECONDS`."""
        self._closing.set()
        if self._holders:
            await asyncio.wait(self._holders, timeout=TOOL_CLOSE_SECONDS.most)
        for holder in self._holders:
            holder.cancel()
        await asyncio.gather(*self._holders, return_exceptions=True)


Answer = tuple[Any, Failure | None]
"""(action of a called role, its failure or None)."""


class Callees(NamedTuple):
    """Roles that the model of one turn may call as tools, and the function that runs a called role."""

    plans: Mapping[str, CalleePlan]
    """Roles that can be called, by name."""
    nodes: Mapping[str, Sequence[int]]
    """Nodes that answer the calls of this turn, by role."""
    run: Callable[[int, Mapping[str, Any]], Awaitable[Answer]]
    """Function of (node, arguments of the call) that takes the node's turn."""

    async def answer(self, name: str, call: int, place: int, arguments: Mapping[str, Any]) -> Any:
        """Run a role and return its action.

        Args:
            name: The role.
            call: Number, from 1, of the model call whose answer calls the role.
            place: Position, from 0, among the calls of the role in that answer. `call` and `place` decide
                which instance runs, independent of the order in which calls end.
            arguments: The arguments.

        Raises:
            ToolError: The role failed; the message is the failure's name. Or the model called the role too
                often.
        """
        parallel = self.plans[name].parallel
        if place >= parallel:
            raise ToolError(f"not called: an answer may call {name} {parallel} time{'s' * (parallel > 1)}")
        action, failure = await self.run(self.nodes[name][(call - 1) * parallel + place], arguments)
        if failure is not None:
            raise ToolError(failure.name.value)
        return action


class CallResult(NamedTuple):
    """Result of one tool call, in the form for the model and in the form for the record."""

    message: Message
    """Chat message with the result, for the model."""
    metadata: FunctionCallMetadata
    """Record of the call: the function's `name`, and the `error` if it failed."""


async def call_session(
    functions: Functions, role: str, name: str, arguments: str, seconds: float | None
) -> object:
    """Call a function of another role's tools.

    Args:
        functions: The functions of the tools.
        role: The role whose tools they are, for messages.
        name: The function's name.
        arguments: Its arguments, the JSON of an object.
        seconds: Time limit of the call; None for no limit.

    Raises:
        ToolError: There is no such function, it does not take the arguments, or it fails.
        TimeoutError: The call takes longer than `seconds`.
    """
    if name not in functions:
        existing = f"there is {', '.join(functions) or 'none'}{_hint(name, functions)}"
        raise ToolError(f"the tools of {role} have no function {name!r}; {existing}")
    try:
        parsed: Any = json.loads(arguments)
    except ValueError as error:
        hint = "write a value as {{ … | tojson }}"
        raise ToolError(f"the arguments of {name} are not JSON ({error}); {hint}") from None
    if not isinstance(parsed, dict):
        raise ToolError(f"the arguments of {name} are not the JSON of an object: {arguments[:200]}")
    fields = cast("Mapping[str, Any]", parsed)
    _check_arguments(functions[name], fields)
    return await call_tool(functions[name], fields, seconds)


def _hint(name: str, functions: Functions) -> str:
    hint = did_you_mean(name, functions)
    return f"; {hint}" if hint else ""


async def call_all(
    functions: Functions,
    calls: Sequence[ToolCall],
    seconds: float | None,
    callees: Callees | None = None,
    number: int = 1,
) -> Sequence[CallResult]:
    """Run all tool calls of one answer concurrently, and return their results in order.

    Args:
        functions: The functions that the model may call.
        calls: The model's calls; those beyond `ANSWER_CALLS` are answered with an error.
        seconds: Time limit of each call of a tool; None for no limit. A role has its own limit.
        callees: The roles among the functions.
        number: Number of the model call in its turn, from 1.

    Returns:
        A result for each call, in the same order. Results beyond `TOOL_TEXT` characters in total are errors.

    Raises:
        UserError: A tool found a mistake of the person who runs the workflow.
    """
    calls_by_name, coroutines = Counter[str](), list[Coroutine[Any, Any, CallResult]]()
    for call in calls[: ANSWER_CALLS.most]:
        run: _Run | None = None
        if callees is not None and call.name in callees.plans:
            run = partial(callees.answer, call.name, number, calls_by_name[call.name])
            calls_by_name[call.name] += 1
        coroutines.append(_call(functions, call, seconds, run))
    call_results = await asyncio.gather(*coroutines)
    results, characters_left = list[CallResult](), TOOL_TEXT.most
    for call, result in zip(calls, call_results, strict=False):
        length = len(result.message["content"])
        if length <= characters_left:
            characters_left -= length
        else:
            result = _failed(call, TOOL_TEXT.exceeded("the results of these calls have"))
        results.append(result)
    limit_message = ANSWER_CALLS.exceeded("the answer has")
    return [*results, *(_failed(call, f"not called: {limit_message}") for call in calls[ANSWER_CALLS.most :])]


def result_text(name: str, result: object) -> str:
    """Return a tool's result as text; a value that is not a text is written as JSON.

    Raises ToolError for text that is too long or not valid Unicode, and for values that JSON cannot express.
    """
    try:
        check_recordable(result)
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        if len(text) <= TOOL_TEXT.most:
            text.encode()  # an unpaired surrogate can be sent to no model
            return text
    except UnicodeError:
        raise ToolError(f"{name} gave text that is not valid Unicode") from None
    except ValueError as error:
        raise ToolError(f"{name} gave neither text nor a JSON value: {error}") from None
    raise ToolError(TOOL_TEXT.exceeded(f"{name} gave"))


_Run = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Function that runs a role in place of a tool."""


async def _call(functions: Functions, call: ToolCall, seconds: float | None, run: _Run | None) -> CallResult:
    try:
        function = functions.get(call.name)
        if function is None or call.malformed:
            return _failed(call, _explain_unknown(functions, call))
        _check_arguments(function, call.arguments)
        result = await (call_tool(function, call.arguments, seconds) if run is None else run(call.arguments))
        text = result_text(call.name, result)
    except UserError:
        raise
    except ToolError as error:
        return _failed(call, str(error))
    except TimeoutError:
        return _failed(call, f"{call.name} gave no result {within(seconds)}")
    except FOREIGN_ERRORS as error:  # a tool may be a package's own code
        return _failed(call, describe_error(error))
    return CallResult(result_message(call, text), {"name": call.name})


def within(seconds: float | None) -> str:
    """Format a time limit for the end of a message: `within 5 s`, or `in time` without a limit."""
    return "in time" if seconds is None else f"within {seconds:g} s"


def _failed(call: ToolCall, why: str) -> CallResult:
    return CallResult(result_message(call, f"Error: {why}"), {"name": call.name, "error": why})


def _explain_unknown(functions: Functions, call: ToolCall) -> str:
    written_text, limit = call.malformed, CALL_SHOWN.most
    if len(written_text) > limit:
        written_text = f"{written_text[:limit]}…"
    if not call.name:
        return f"this call cannot be read: {written_text!r}; expected a tool's name, and arguments as JSON"
    if call.name in functions:
        return f"the arguments of {call.name} are not the JSON of an object: {written_text!r}"
    return f"there is no tool {call.name!r}; there is {', '.join(functions)}{_hint(call.name, functions)}"


def _check_arguments(function: Function, arguments: Mapping[str, Any]) -> None:
    """Raise ToolError if arguments do not fit the function's schema.

    Keywords that may take for ever to check (patterns) are left to the tool, and references are not fetched.
    """
    try:
        problem = schema_checker(function.parameters, _UNCHECKED)(dict(arguments), False)
    except TooMuchWork as error:
        raise ToolError(f"{function.name} does not take these arguments: {error}") from None
    except Exception:  # an invalid schema: the tool has to check for itself
        return
    if problem is not None:
        location = "" if problem.path == "$" else f" at {problem.path}"
        message = problem.message[: CALL_SHOWN.most]
        raise ToolError(f"{function.name} does not take these arguments{location}: {message}")


def _accept(validator: object, wanted: object, value: object, around: object) -> Sequence[object]:
    return ()


_UNCHECKED: dict[str, Keyword] = dict.fromkeys(("pattern", "patternProperties", *UNBOUNDED_KEYWORDS), _accept)
"""Keywords of a schema that are not checked here, but left to the tool."""
