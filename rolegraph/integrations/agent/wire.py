"""Wires: APIs of providers, each as functions from a request to a chat and from an answer to a response.

Nothing here reads or writes a connection; a body that does not fit raises pydantic's ValidationError, or
ValueError.
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
"""Name of the model in responses; requests may name any."""
Json = dict[str, Any]


class AgentRequest(NamedTuple):
    """The parts of a request that count; the spec's `sampling` has the place of all others."""

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
    """An object of a body; fields that are not declared have no effect."""

    model_config = ConfigDict(strict=True)


class Text(Part):
    """A part of a content that is text."""

    type: Literal["text", "input_text", "output_text"]
    text: str


def as_parts(content: object) -> object:
    """Return a content that is one text as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Texts = Annotated[list[Text], BeforeValidator(as_parts)]
"""A text, or a list of parts that are text."""


def joined(texts: Sequence[Text]) -> str:
    """Return the text of a content."""
    return "\n\n".join(part.text for part in texts)


def event(data: Mapping[str, Any]) -> str:
    """Return an event of a stream as text, named by its `type` if it has one."""
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n"


def new_id(prefix: str) -> str:
    """Return a random id that starts with a prefix."""
    return f"{prefix}_{secrets.token_hex(12)}"


def named_calls(answer: AgentAnswer) -> list[Json]:
    """Return an answer's calls in the form of chat completions, without those that have no name.

    No API has a call without a name.
    """
    calls = [call for call in answer.calls if call.name]
    return answer_message("", calls=calls).get("tool_calls", [])
