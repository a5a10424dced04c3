"""Tools in a chat: what a model is told of them, its calls read from its text, and both as messages.

Messages have the form of OpenAI's API. In a chat template's text a call is what Hermes made of it, and Qwen
and many others took over: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

from engine.records import Message
from engine.vocabulary import Function, ToolCall

BEGIN, END = "<tool_call>", "</tool_call>"
_CALL = re.compile(f"{BEGIN}(.*?)(?:{END}|\\Z)", re.DOTALL)


def described(functions: Sequence[Function]) -> list[dict[str, Any]]:
    """What a model is told of functions."""
    return [
        {
            "type": "function",
            "function": {
                "name": function.name,
                "description": function.description,
                "parameters": dict(function.parameters),
            },
        }
        for function in functions
    ]


def find_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """What a text says beside its calls, and the calls; one that cannot be read stays in the text, too."""
    bodies: list[str] = _CALL.findall(text)
    if not bodies:
        return text, ()
    calls = tuple(map(_read, bodies))
    each = iter(calls)
    return _CALL.sub(lambda found: "" if next(each).name else found[0], text).strip(), calls


def _read(body: str) -> ToolCall:
    with suppress(ValueError):
        value = _json(body)
        if isinstance(value, dict):
            call = cast("dict[str, Any]", value)
            name, arguments = call.get("name"), call.get("arguments", {})
            if isinstance(name, str) and name:
                return tool_call(name, arguments if isinstance(arguments, str) else json.dumps(arguments))
    return ToolCall("", {}, unread=body.strip())


def tool_call(name: str, written: str, id: str = "") -> ToolCall:
    """A call with its arguments as the model wrote them: the JSON of an object."""
    try:
        value = _json(written or "{}")
    except ValueError:
        value = None
    if name and isinstance(value, dict):
        return ToolCall(name, cast("dict[str, Any]", value), id)
    return ToolCall(name, {}, id, unread=written)


def _json(text: str) -> object:
    """A value that can be written out again; raises ValueError."""
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def answer_message(text: str, thought: str = "", calls: Sequence[ToolCall] = ()) -> Message:
    """A model's answer as a turn of the chat."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning"] = thought
    if calls:
        message["tool_calls"] = [_written(call) for call in calls]
    return message


def _written(call: ToolCall) -> dict[str, Any]:
    arguments = call.unread or json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """The calls in an answer's message."""
    written: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    return tuple(
        tool_call(call["function"]["name"], call["function"]["arguments"], call.get("id") or "")
        for call in written
    )


def result_message(call: ToolCall, text: str) -> Message:
    """What came of a call, as a turn of the chat."""
    message = {"role": "tool", "content": text}
    if call.name:
        message["name"] = call.name
    if call.id:
        message["tool_call_id"] = call.id
    return message
