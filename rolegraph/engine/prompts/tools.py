"""Tools in the chat format of OpenAI's API: descriptions, calls and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rolegraph.engine.prompts.call_forms import tool_call
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function, ToolCall

TOOLS_TEXT = (
    "You can call these functions, given as JSON:\n{functions}\n"
    "To call one, write\n"
    '<tool_call>\n{{"name": "its name", "arguments": {{"argument": "value"}}}}\n</tool_call>\n'
    "and end your answer there. Its result follows in <tool_response></tool_response>."
)
"""Text before the first message that lists the functions, for a chat template that takes no tools."""


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
    """Return a call as an item of a message's `tool_calls`, with `arguments` as its arguments."""
    function = {"name": call.name, "arguments": arguments}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """Return the tool calls of an assistant message."""
    written_calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    call_parts = ((call["function"], call.get("id") or "") for call in written_calls)
    return tuple(tool_call(function["name"], function["arguments"], id) for function, id in call_parts)


def result_message(call: ToolCall, text: str) -> Message:
    """Return the tool message with `text`, the result of a call."""
    message = {"role": "tool", "content": text}
    if call.name:
        message["name"] = call.name
    if call.id:
        message["tool_call_id"] = call.id
    return message


def in_messages(
    turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Write tools, calls and results into the texts of messages, for a chat template that takes no tools.

    Args:
        turns: Messages in the form that chat templates take, with arguments of calls as mappings.
        tools: The `tools` of a request.

    Returns:
        Messages without `tool_calls` and without the role `tool`. The first begins with the list of tools;
        consecutive results become one message.
    """
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    written_messages: list[dict[str, Any]] = []
    for is_result, group in groupby(turns, lambda turn: turn["role"] == "tool"):
        if is_result:
            results = (f"<tool_response>\n{turn['content']}\n</tool_response>" for turn in group)
            written_messages.append({"role": "user", "content": "\n".join(results)})
        else:
            written_messages += [_with_calls(turn) for turn in group]
    first, *later = written_messages
    return [{**first, "content": f"{TOOLS_TEXT.format(functions=functions)}\n\n{first['content']}"}, *later]


def _with_calls(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its calls written after its text."""
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in turn.get("tool_calls", ())
    ]
    other_fields = {key: value for key, value in turn.items() if key != "tool_calls"}
    return {**other_fields, "content": "\n".join(text for text in (turn["content"], *calls) if text)}
