"""Wire of OpenAI's chat completions API: requests to chats, answers to responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import model_validator

from rolegraph.engine.vocabulary import AgentAnswer
from rolegraph.integrations.agent.wire import MODEL, AgentRequest, Json, Wire, event, named_calls, new_id
from rolegraph.serving.chat_bodies import ChatFields, StreamFields


class _ChatBody(ChatFields, StreamFields):
    @model_validator(mode="after")
    def _refuse_force(self) -> _ChatBody:
        if self.is_forced:
            raise ValueError("tool_choice: a call cannot be forced here")
        return self


def read(given: Mapping[str, Any]) -> AgentRequest:
    """Parse the body of a chat completions request."""
    body = _ChatBody.model_validate({name: given[name] for name in _ChatBody.model_fields if name in given})
    messages = [message.message() for message in body.messages]
    return AgentRequest(messages, body.functions, bool(body.stream), body.with_usage)


def write(answer: AgentAnswer) -> Json:
    """Return an answer as the body of a chat completions response."""
    choice = {"index": 0, "message": _message(answer), "finish_reason": _reason(answer)}
    return {**_head("chat.completion"), "choices": [choice], "usage": _usage(answer)}


def events(answer: AgentAnswer, request: AgentRequest) -> Iterator[str]:
    """Yield the events of a streamed response: the whole message, the reason of its end, the token counts."""
    head, message = _head("chat.completion.chunk"), _message(answer)
    if "tool_calls" in message:
        message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
    yield event({**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]})
    yield event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _reason(answer)}]})
    if request.with_usage:
        yield event({**head, "choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def _message(answer: AgentAnswer) -> Json:
    calls = named_calls(answer)
    return {"role": "assistant", "content": answer.text, **({"tool_calls": calls} if calls else {})}


def _reason(answer: AgentAnswer) -> str:
    if named_calls(answer):
        return "tool_calls"
    return "length" if answer.is_cut else "stop"


def _usage(answer: AgentAnswer) -> Json:
    total = answer.prompt_tokens + answer.answer_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.answer_tokens,
        "total_tokens": total,
    }


def _head(kind: str) -> Json:
    return {"id": new_id("chatcmpl"), "object": kind, "created": int(time.time()), "model": MODEL}


CHAT_COMPLETIONS = Wire("/v1/chat/completions", read, write, events)
