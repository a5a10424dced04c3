"""Tools in the chat format of OpenAI's API: descriptions, calls and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rolegraph.engine.prompts.call_forms import tool_call
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function, ToolCall


def described(functions: Sequence[Function]) -> list[dict[str, Any]]:
    """Return the `tools` of a request for a list of functions."""
    entries = (
        {"name": it.name, "description": it.description, "parameters": dict(it.parameters)}
        for it in functions
    )
    return [{"type": "function", "function": entry} for entry in entries]


def answer_message(text: str, thought: str = "", calls: Sequence[ToolCall] = ()) -> Message:
    """Return the assistant message of a model's answer."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning"] = thought
    if calls:
        message["tool_calls"] = [
            call_entry(call, call.malformed or json.dumps(call.arguments, ensure_ascii=False))
            for call in calls
        ]
    return message


def call_entry(call: ToolCall, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as an item of a message's `tool_calls`, with its arguments in the given form."""
    function = {"name": call.name, "arguments": arguments}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """Return the tool calls of an assistant message."""
    written: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    parts = ((call["function"], call.get("id") or "") for call in written)
    return tuple(tool_call(function["name"], function["arguments"], id) for function, id in parts)


def result_message(call: ToolCall, text: str) -> Message:
    """Return the tool message with the result of a call."""
    message = {"role": "tool", "content": text}
    if call.name:
        message["name"] = call.name
    if call.id:
        message["tool_call_id"] = call.id
    return message
