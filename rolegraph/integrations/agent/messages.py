"""Wire of Anthropic's Messages API: requests to chats, answers to responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rolegraph.engine.prompts.call_forms import tool_call
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import AgentAnswer, Function
from rolegraph.engine.vocabulary.tool import never_called
from rolegraph.integrations.agent.wire import (
    MODEL,
    AgentRequest,
    Json,
    Part,
    Text,
    Texts,
    Wire,
    as_parts,
    event,
    joined,
    named_calls,
    new_id,
)

UNREADABLE = "INVALID_JSON"
"""Key in the `input` of a call with unreadable arguments that holds their text, as Anthropic names it."""
_ATTRIBUTION = "x-anthropic-billing-header:"
"""Beginning of a block of Claude Code's `system` that serves accounting.

The block differs between the calls of a chat, so it is removed from the model's prompt.
"""
_CHARACTERS = 4
"""Characters per token, for estimates."""


class _Thinking(Part):
    type: Literal["thinking", "redacted_thinking"]


class _ToolUse(Part):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(Part):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list[Text])


_Block = Annotated[Text | _Thinking | _ToolUse | _ToolResult, Field(discriminator="type")]


class _Turn(Part):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[_Block], BeforeValidator(as_parts)]


class _OfferedTool(Part):
    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None
    """JSON Schema of the arguments; None for a tool that Anthropic's servers would run."""


class _FunctionChoice(Part):
    type: Literal["auto", "none"]


class _MessagesBody(Part):
    messages: Annotated[list[_Turn], Field(min_length=1)]
    system: Texts = Field(default_factory=list[Text])
    tools: list[_OfferedTool] = Field(default_factory=list[_OfferedTool])
    tool_choice: _FunctionChoice | None = None
    stream: bool = False


def read(given: Mapping[str, Any]) -> AgentRequest:
    """Parse the body of a Messages request.

    Tools that the provider's own servers run, reasoning of earlier answers and cache marks are left out.
    """
    body = _MessagesBody.model_validate(given)
    system_blocks = [block for block in body.system if not block.text.startswith(_ATTRIBUTION)]
    messages: list[Message] = [{"role": "system", "content": joined(system_blocks)}] if system_blocks else []
    for turn in body.messages:
        messages += _messages(turn)
    offered_tools = body.tools if body.tool_choice is None or body.tool_choice.type == "auto" else []
    functions = [
        Function(tool.name, tool.description, tool.input_schema, never_called)
        for tool in offered_tools
        if tool.input_schema is not None
    ]
    return AgentRequest(messages, functions, body.stream)


def _messages(turn: _Turn) -> Iterator[Message]:
    """Yield the messages of a turn: one for each tool result, and one for all texts together."""
    text_blocks = [block for block in turn.content if isinstance(block, Text)]
    if turn.role == "assistant":
        tool_uses = [block for block in turn.content if isinstance(block, _ToolUse)]
        calls = [tool_call(block.name, json.dumps(block.input), block.id) for block in tool_uses]
        yield answer_message(joined(text_blocks), calls=calls)
        return
    tool_results = [block for block in turn.content if isinstance(block, _ToolResult)]
    for result in tool_results:
        yield {"role": "tool", "content": joined(result.content), "tool_call_id": result.tool_use_id}
    if text_blocks or not tool_results:
        yield {"role": turn.role, "content": joined(text_blocks)}


def write(answer: AgentAnswer) -> Json:
    """Return an answer as the body of a Messages response."""
    return {**_head(answer), "content": _blocks(answer), "stop_reason": _reason(answer)}


def events(answer: AgentAnswer, request: AgentRequest) -> Iterator[str]:
    """Yield the events of a streamed response: the message's head, each block as one piece, the reason of its
    end."""
    head = _head(answer)
    yield event({"type": "message_start", "message": {**head, "content": [], "stop_reason": None}})
    for index, block in enumerate(_blocks(answer)):
        no_content: Json = {"text": ""} if block["type"] == "text" else {"input": {}}
        if block["type"] == "text":
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield event({"type": "content_block_start", "index": index, "content_block": {**block, **no_content}})
        yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    message_delta = {"stop_reason": _reason(answer), "stop_sequence": None}
    yield event({"type": "message_delta", "delta": message_delta, "usage": head["usage"]})
    yield event({"type": "message_stop"})


def estimate(given: Mapping[str, Any]) -> Json:
    """Return the body of the response to a token-count request: an estimate from the number of characters."""
    request = read(given)
    counted_content = [[*request.messages], [function[:3] for function in request.functions]]
    return {"input_tokens": -(-len(json.dumps(counted_content, ensure_ascii=False)) // _CHARACTERS)}


def _head(answer: AgentAnswer) -> Json:
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.answer_tokens}
    head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": MODEL}
    return {**head, "stop_sequence": None, "usage": usage}


def _blocks(answer: AgentAnswer) -> list[Json]:
    text_blocks = [{"type": "text", "text": answer.text}] if answer.text else []
    calls = (call for call in answer.calls if call.name)
    return text_blocks + [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": {UNREADABLE: call.malformed} if call.malformed else call.arguments,
        }
        for call in calls
    ]


def _reason(answer: AgentAnswer) -> str:
    if named_calls(answer):
        return "tool_use"
    return "max_tokens" if answer.is_cut else "end_turn"


MESSAGES = Wire("/v1/messages", read, write, events)
