"""Wire of OpenAI's Responses API: requests to chats, answers to responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field

from rolegraph.engine.prompts.tools import call_entry
from rolegraph.engine.vocabulary import AgentAnswer, Function, ToolCall
from rolegraph.engine.vocabulary.tool import never_called
from rolegraph.integrations.agent.wire import (
    MODEL,
    AgentRequest,
    Json,
    Part,
    Texts,
    Wire,
    event,
    joined,
    named_calls,
    new_id,
)

_KEPT = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to data kept by the provider: a chat, or a template."""


class _MessageItem(Part):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts


class _CallItem(Part):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _ResultItem(Part):
    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class _ReasoningItem(Part):
    type: Literal["reasoning"]


def _as_items(given: object) -> object:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    items = cast("list[object]", given)
    return [{"type": "message", **cast("Json", item)} if isinstance(item, dict) else item for item in items]


_InputItem = Annotated[_MessageItem | _CallItem | _ResultItem | _ReasoningItem, Field(discriminator="type")]


class _Tool(Part):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _ResponsesBody(Part):
    input: Annotated[list[_InputItem], BeforeValidator(_as_items), Field(min_length=1)]
    instructions: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    stream: bool | None = None


def read(given: Mapping[str, Any]) -> AgentRequest:
    """Parse the body of a Responses request, without reasoning and without tools that are not functions.

    Raises:
        ValueError: The body refers to a chat or a template that the provider keeps, or is invalid.
    """
    for name in _KEPT:
        if given.get(name):
            raise ValueError(f"{name} is not served here: nothing is kept, so each request sends its chat")
    body = _ResponsesBody.model_validate(given)
    functions = [
        Function(tool.name, tool.description or "", tool.parameters or {"type": "object"}, never_called)
        for tool in body.tools or ()
        if tool.type == "function" and body.tool_choice != "none"
    ]
    return AgentRequest(_messages(body), functions, bool(body.stream))


def _messages(body: _ResponsesBody) -> list[Json]:
    """Convert the input items of a request's body to chat messages.

    The items of one answer become one message, and so do consecutive system messages: many chat templates
    accept only one, at the beginning.
    """
    messages: list[Json] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    for item in body.input:
        last_message: Json = messages[-1] if messages else {"role": ""}
        match item:
            case _MessageItem():
                role = "system" if item.role == "developer" else item.role
                if role == last_message["role"] == "system":
                    last_message["content"] += f"\n\n{joined(item.content)}"
                else:
                    messages.append({"role": role, "content": joined(item.content)})
            case _CallItem():
                if last_message["role"] != "assistant":
                    messages.append(last_message := {"role": "assistant", "content": ""})
                call = call_entry(ToolCall(item.name, {}, item.call_id), item.arguments)
                last_message["tool_calls"] = [*last_message.get("tool_calls", ()), call]
            case _ResultItem():
                result = {"role": "tool", "content": joined(item.output), "tool_call_id": item.call_id}
                messages.append(result)
            case _ReasoningItem():
                pass
    return messages


def write(answer: AgentAnswer) -> Json:
    """Return an answer as the body of a Responses response."""
    return _response(answer, _head(), _items(answer))


def events(answer: AgentAnswer, request: AgentRequest) -> Iterator[str]:
    """Yield the events of a streamed response: the response's head, each item as one piece, the whole
    response."""
    response_head, items = _head(), _items(answer)
    sequence_numbers = count()

    def numbered(type: str, **fields: object) -> str:
        return event({"type": f"response.{type}", "sequence_number": next(sequence_numbers), **fields})

    yield numbered("created", response=response_head)
    yield numbered("in_progress", response=response_head)
    for index, item in enumerate(items):
        item_location: Json = {"output_index": index, "item_id": item["id"]}
        unfinished_item = {**item, "status": "in_progress"}
        if item["type"] == "message":
            (text_part,) = item["content"]
            part_location = {**item_location, "content_index": 0}
            yield numbered("output_item.added", output_index=index, item={**unfinished_item, "content": []})
            yield numbered("content_part.added", **part_location, part={**text_part, "text": ""})
            yield numbered("output_text.delta", **part_location, delta=text_part["text"], logprobs=[])
            yield numbered("output_text.done", **part_location, text=text_part["text"], logprobs=[])
            yield numbered("content_part.done", **part_location, part=text_part)
        else:
            arguments, name = item["arguments"], item["name"]
            yield numbered("output_item.added", output_index=index, item={**unfinished_item, "arguments": ""})
            yield numbered("function_call_arguments.delta", **item_location, delta=arguments)
            yield numbered("function_call_arguments.done", **item_location, arguments=arguments, name=name)
        yield numbered("output_item.done", output_index=index, item=item)
    response = _response(answer, response_head, items)
    yield numbered(response["status"], response=response)


def _head() -> Json:
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "model": MODEL,
        "status": "in_progress",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "store": False,
    }


def _response(answer: AgentAnswer, head: Json, items: list[Json]) -> Json:
    is_cut = answer.is_cut and not named_calls(answer)
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.answer_tokens,
    }
    return {
        **head,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": items,
        "usage": usage,
    }


def _items(answer: AgentAnswer) -> list[Json]:
    calls = named_calls(answer)
    text_part: Json = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
    message: Json = {"type": "message", "id": new_id("msg"), "role": "assistant", "content": [text_part]}
    functions: list[Json] = [
        {"type": "function_call", "id": new_id("fc"), "call_id": call["id"], **call["function"]}
        for call in calls
    ]
    items = [message, *functions] if answer.text or not calls else functions
    return [{**item, "status": "completed"} for item in items]


RESPONSES = Wire("/v1/responses", read, write, events)
