"""Chats in the form of OpenAI's API, as a server receives them: messages, functions, and how to answer.

A body that does not fit raises pydantic's ValidationError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rolegraph.engine.limits import Limit
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function
from rolegraph.engine.vocabulary.tool import never_called
from rolegraph.serving import limits

T = TypeVar("T")
HINTS = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "store", "strict", "user"}
)
"""Fields that are accepted without effect: no answer depends on them, or a model may ignore them."""


class RequestBody(BaseModel):
    """A JSON body, or an object within one.

    A field that is not declared is refused by its name, unless its value is null, false, 0 or empty, or the
    field is in `ignored` or `neutral`: clients send such values unasked.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Undeclared fields that are accepted without effect, a part of `HINTS`."""
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Undeclared fields, each with the values besides null that request nothing; all other values are
    refused."""

    @model_validator(mode="after")
    def _refuse_unserved(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            neutral_values = self.neutral.get(name)
            has_effect = value not in neutral_values if neutral_values else bool(value)
            if has_effect and value is not None and name not in self.ignored:
                raise ValueError(f"{name[:40]} is not served here")
        return self


def without_effect(body: RequestBody) -> set[str]:
    """Return the names of the fields in a body, and in objects within it, that are accepted without
    effect."""
    names = {name for name, value in (body.model_extra or {}).items() if value and name in body.ignored}
    if isinstance(body, BodyMessage) and body.name and body.role != "tool":
        names.add("name")
    for name in type(body).model_fields:
        value: Any = getattr(body, name)
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        names |= {field for item in values if isinstance(item, RequestBody) for field in without_effect(item)}
    return names


def at_most(limit: Limit) -> AfterValidator:
    """Return a validator of a number whose absolute value is within a limit."""
    return _within(limit, abs, "is")


def no_longer(limit: Limit) -> AfterValidator:
    """Return a validator of a text or list whose length is within a limit."""
    return _within(limit, len, "has")


def _within(limit: Limit, size: Callable[[Any], int], verb: str) -> AfterValidator:
    def check(value: T) -> T:
        if size(value) > limit.most:
            raise ValueError(limit.exceeded(verb))
        return value

    return AfterValidator(check)


Name = Annotated[str, no_longer(limits.NAME)]
Count = Annotated[int, Field(ge=0), at_most(limits.NUMBER)]


class StreamOptions(RequestBody):
    """`stream_options`."""

    include_usage: bool | None = None


class StreamFields(RequestBody):
    """Fields by which a client asks for a stream."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def with_usage(self) -> bool:
        """True if a stream ends with token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(RequestBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: str = ""


class CalledFunction(RequestBody):
    """Name and arguments of a call in a message."""

    name: Name
    arguments: str = "{}"


class BodyToolCall(RequestBody):
    """A call in a message; `index` is its number where it comes from a stream."""

    id: Name | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Count | None = None


class BodyMessage(RequestBody):
    """A message of a chat."""

    role: Name
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[BodyToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None
    """Reasoning of an earlier answer, which is not passed on to the chat template."""

    def message(self) -> Message:
        """Return the message with its text parts joined."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.role == "tool":
            optional_fields = {"name": self.name, "tool_call_id": self.tool_call_id}
            message |= {key: value for key, value in optional_fields.items() if value}
        if self.tool_calls:
            calls = [call.model_dump(exclude_none=True, exclude={"index"}) for call in self.tool_calls]
            message["tool_calls"] = calls
        return message

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class OfferedFunction(RequestBody):
    """A function that the model may call."""

    ignored = HINTS
    name: Annotated[str, Field(min_length=1), no_longer(limits.NAME)]
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class BodyTool(RequestBody):
    """A tool of a chat."""

    type: Literal["function"]
    function: OfferedFunction

    def as_function(self) -> Function:
        """Return the function; its calls run at the client, not at the service."""
        function = self.function
        return Function(function.name, function.description, function.parameters, never_called)


class ChosenName(RequestBody):
    """Name of a function in `tool_choice`."""

    name: Name


class ChosenFunction(RequestBody):
    """A `tool_choice` of one function."""

    type: Literal["function"]
    function: ChosenName


class ChatFields(RequestBody):
    """The chat of a request, and the functions that the model may call."""

    messages: Annotated[list[BodyMessage], Field(fail_fast=True, min_length=1)]
    tools: Annotated[list[BodyTool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenFunction | None = None
    """`required` and a function force a call, where the server can hold the model to it."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        names = [tool.function.name for tool in self.tools or ()]
        if self.is_forced and not names:
            raise ValueError("tool_choice forces a call, and tools has no function")
        if self.chosen_name not in (None, *names):
            raise ValueError(f"tool_choice names {self.chosen_name!r}; tools has {', '.join(names)}")
        return self

    @property
    def chosen_name(self) -> str | None:
        """Name of the only function that the answer may call; None where it may call any."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, ChosenFunction) else None

    @property
    def is_forced(self) -> bool:
        """True if the answer must be a call."""
        return self.tool_choice == "required" or self.chosen_name is not None

    @property
    def functions(self) -> list[Function]:
        """The functions that the model may call."""
        return [] if self.tool_choice == "none" else [tool.as_function() for tool in self.tools or ()]
