"""Wires: APIs of providers, each as functions from a request to a chat and from an answer to a response.

Nothing here reads or writes a connection; an invalid body raises pydantic's ValidationError, or ValueError.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict

from rolegraph.engine.prompts.tools import answer_message
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import AgentAnswer, Function

MODEL = "rolegraph"
"""Model name in every response; requests may contain any name."""
Json = dict[str, Any]


class AgentRequest(NamedTuple):
    """Parts of a request that are used; the spec's `sampling` replaces the sampling fields."""

    messages: Sequence[Message]
    functions: Sequence[Function]
    streams: bool
    with_usage: bool = True
    """True if a stream ends with token counts."""


class Wire(NamedTuple):
    """API of one provider."""

    path: str
    """Path of the requests, behind the host."""
    read: Callable[[Mapping[str, Any]], AgentRequest]
    """Function from a request's body to the request."""
    body: Callable[[AgentAnswer], Json]
    """Function from an answer to the response's body."""
    events: Callable[[AgentAnswer, AgentRequest], Iterator[str]]
    """Function from an answer to the events of a stream, as text."""


class Part(BaseModel):
    """Base model of the objects in a request's body; undeclared fields are ignored."""

    model_config = ConfigDict(strict=True)


class Text(Part):
    """Text part of a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


def as_parts(content: object) -> object:
    """Return a message content that is one string as a list with one text part; return other contents
    unchanged.
    """
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Texts = Annotated[list[Text], BeforeValidator(as_parts)]
"""A text, or a list of parts that are text."""


def joined(texts: Sequence[Text]) -> str:
    """Join the texts of text parts, with an empty line between two."""
    return "\n\n".join(part.text for part in texts)


def event(data: Mapping[str, Any]) -> str:
    """Return an event of a stream as text, named by its `type` if it has one."""
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n"


def new_id(prefix: str) -> str:
    """Return a random id that starts with a prefix."""
    return f"{prefix}_{secrets.token_hex(12)}"


def named_calls(answer: AgentAnswer) -> list[Json]:
    """Return the calls of an answer in the form of chat completions.

    Calls without a name are left out, because no API can carry them.
    """
    calls = [call for call in answer.calls if call.name]
    return answer_message("", calls=calls).get("tool_calls", [])
