"""Bodies of requests to /v1, in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import BeforeValidator, Field, model_validator

from rolegraph.engine.limits import service as limits
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function
from rolegraph.local.service.bodies import (
    Count,
    Name,
    Positive,
    RequestBody,
    SamplingFields,
    at_most,
    no_longer,
)
from rolegraph.local.service.errors import RequestError


class StreamOptions(RequestBody):
    """`stream_options`."""

    include_usage: bool | None = None


class SampledBody(SamplingFields):
    """Fields that chats and completions share."""

    ignored = frozenset({"user"})
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "parallel_tool_calls": (True,),
        "response_format": ({"type": "text"},),
        "service_tier": ("auto", "default"),
        "modalities": (["text"],),
    }
    model: Name | None = None
    """The served model's name, or the `tinker://` path of a checkpoint."""
    n: Annotated[int, Field(ge=1), at_most(limits.CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    """vLLM's field: return `prompt_token_ids`, and `token_ids` of each choice."""
    return_prompt_token_ids: bool | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> SampledBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for answers that are streamed")
        if isinstance(self.stop, list) and any(isinstance(stop, int) for stop in self.stop):
            raise ValueError("stop is a text or a list of them")
        return self

    @property
    def with_usage(self) -> bool:
        """True if a stream ends with token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def with_prompt_ids(self) -> bool:
        """True if the response includes the prompt's token ids."""
        return bool(self.return_token_ids or self.return_prompt_token_ids)

    def check_length(self, characters: int, context: int) -> None:
        """Raise RequestError if a text is too long for a context (in tokens) to be worth tokenizing."""
        if characters > context * limits.TEXT_PER_TOKEN.most:
            raise RequestError(
                f"the prompt has {characters:,} characters, longer than the model's context length of "
                f"{context} tokens ({limits.TEXT_PER_TOKEN.label})"
            )


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
    """Reasoning of an earlier answer, which chat templates leave out."""

    @model_validator(mode="after")
    def _check_name(self) -> BodyMessage:
        if self.name and self.role != "tool":
            raise ValueError("name is served for messages of the role tool only")
        return self

    def message(self) -> Message:
        """Return the message with its text parts joined."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.role == "tool":
            named = {"name": self.name, "tool_call_id": self.tool_call_id}
            message |= {key: value for key, value in named.items() if value}
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

    name: Annotated[str, Field(min_length=1), no_longer(limits.NAME)]
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class BodyTool(RequestBody):
    """A tool of a chat."""

    type: Literal["function"]
    function: OfferedFunction

    def as_function(self) -> Function:
        """Return the function; the client, not the service, carries its calls out."""
        offered = self.function
        return Function(offered.name, offered.description, offered.parameters, _never_called)


async def _never_called(arguments: Mapping[str, Any]) -> NoReturn:
    raise AssertionError("a tool is called by the client that offers it")


class ChatBody(SampledBody):
    """Body of chat/completions."""

    messages: Annotated[list[BodyMessage], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    logprobs: bool | None = None
    tools: Annotated[list[BodyTool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none"] | None = None

    @property
    def functions(self) -> list[Function]:
        """The functions that the model may call."""
        return [] if self.tool_choice == "none" else [tool.as_function() for tool in self.tools or ()]

    @property
    def characters(self) -> int:
        """Length of all that the chat template may write, as JSON."""
        return len(self.model_dump_json(include={"messages", "tools"}, exclude_none=True))


Ids = Annotated[list[Count], Field(fail_fast=True, min_length=1)]


def _as_prompts(prompt: Any) -> Any:
    """Return a list of prompts: a single prompt, a text or a list of token ids, becomes a list of one."""
    if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int)):
        return prompt  # pyright: ignore[reportUnknownVariableType]  # pydantic checks it
    return [prompt]


class CompletionBody(SampledBody):
    """Body of completions."""

    prompt: Annotated[list[str | Ids], Field(fail_fast=True, min_length=1), BeforeValidator(_as_prompts)]
    """The prompts, each a text or token ids."""
    max_tokens: Positive | None = None
    logprobs: Literal[0] | None = None
    """0 returns the log-probabilities of the sampled tokens; those of alternatives are not served."""
    best_of: Positive | None = None

    @model_validator(mode="after")
    def _check_counts(self) -> CompletionBody:
        if self.best_of not in (None, 1, self.n):
            raise ValueError("best_of is served only where it equals n")
        if len(self.prompt) * (self.n or 1) > limits.CHOICES.most:
            raise ValueError(limits.CHOICES.exceeded("n times the prompts is"))
        return self
