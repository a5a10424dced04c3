"""What calls of /v1 may ask, as OpenAI's API has it. What is not served is refused by name, never ignored.

A field that is here only to be refused takes the values that ask for nothing: OpenAI's clients send some of
them unasked. Any other field is unknown, and refused as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.fields import (
    Count,
    Name,
    Seed,
    Stop,
    Temperature,
    TopK,
    at_most,
    no_longer,
)
from rolegraph.engine.local.service.trainer import RequestError
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function

T = TypeVar("T")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


def _only(*idle: object) -> AfterValidator:
    """A field that is not served, but for the values that ask for nothing."""

    def check(value: T) -> T:
        if value is not None and value not in idle:
            raise ValueError("is not served here" + (f", but for {idle[0]!r}" if idle else ""))
        return value

    return AfterValidator(check)


Positive = Annotated[int, Field(ge=1), at_most(limits.NUMBER)]
Choices = Annotated[int, Field(ge=1), at_most(limits.CHOICES)]
Penalty = Annotated[float | None, _only(0)]


class StreamOptions(_Body):
    """`stream_options`."""

    include_usage: bool | None = None


class SampledBody(_Body):
    """What both kinds of calls may say of how to answer."""

    model: Name | None = None
    """The served model's name, or a `tinker://` path of sampling weights."""
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    """vLLM's."""
    seed: Seed | None = None
    stop: Stop | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    """vLLM's, as its fields `prompt_token_ids` and `token_ids` of a choice."""
    return_prompt_token_ids: bool | None = None
    user: str | None = None
    """Who asks, which changes nothing in an answer."""
    frequency_penalty: Penalty = None
    presence_penalty: Penalty = None
    logit_bias: Annotated[dict[str, float] | None, _only({})] = None

    @model_validator(mode="after")
    def _fits(self) -> SampledBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for answers that are streamed")
        if isinstance(self.stop, list) and any(isinstance(stop, int) for stop in self.stop):
            raise ValueError("stop is a text or a list of them")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(str(stop) for stop in given if stop)

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends by saying how many tokens there were."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def with_prompt_ids(self) -> bool:
        """Whether an answer comes with the prompt's tokens."""
        return bool(self.return_token_ids or self.return_prompt_token_ids)

    def check_length(self, written: int, context: int) -> None:
        """Raises Refused where a text of so many characters is far beyond the context."""
        if written > context * limits.TEXT_PER_TOKEN.most:
            raise RequestError(
                f"the prompt has {written:,} characters; the model's context is {context} tokens "
                f"({limits.TEXT_PER_TOKEN.label})"
            )


class _Part(_Body):
    type: Name
    text: str = ""

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> object:
        kind = (
            str(cast("dict[str, object]", value).get("type", "text"))[:40] if isinstance(value, dict) else ""
        )
        if kind not in ("", "text"):
            raise ValueError(f"a message's part of type {kind!r} is not served here; text is")
        return cast("object", value)


class _Asked(_Body):
    name: Name
    arguments: str = "{}"


class _Call(_Body):
    id: Name | None = None
    type: Literal["function"] = "function"
    function: _Asked
    index: Count | None = None
    """As a stream's pieces have it."""


class BodyMessage(_Body):
    """A message."""

    role: Name
    content: str | Annotated[list[_Part], Field(fail_fast=True)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[_Call], Field(fail_fast=True)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None
    """How an earlier answer was come by, which chat templates leave out of later turns."""
    refusal: Annotated[str | None, _only()] = None
    audio: Annotated[dict[str, Any] | None, _only()] = None
    function_call: Annotated[dict[str, Any] | None, _only()] = None
    annotations: Annotated[list[Any] | None, _only([])] = None

    @model_validator(mode="after")
    def _named(self) -> BodyMessage:
        if self.name and self.role != "tool":
            raise ValueError("the name of who speaks is not served here, but for a tool's")
        return self

    def message(self) -> Message:
        """The turn with its text parts in one."""
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
        """What is said."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _Told(_Body):
    name: Annotated[str, Field(min_length=1), no_longer(limits.NAME)]
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: Annotated[bool | None, _only(False)] = None


class _Tool(_Body):
    type: Literal["function"]
    function: _Told

    def offered(self) -> Function:
        """The function, which whoever asks calls."""
        told = self.function
        return Function(told.name, told.description, told.parameters, _elsewhere)


async def _elsewhere(arguments: Mapping[str, Any]) -> NoReturn:
    raise AssertionError("a tool is called by who offers it")


def _choice(value: object) -> object:
    if value not in (None, "auto", "none"):
        raise ValueError("a `tool_choice` other than auto or none is not served here")
    return value


class ChatBody(SampledBody):
    """chat/completions."""

    messages: Annotated[list[BodyMessage], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, _only(0)] = None
    tools: Annotated[list[_Tool], Field(fail_fast=True)] | None = None
    tool_choice: Annotated[Any, AfterValidator(_choice)] = None
    parallel_tool_calls: Annotated[bool | None, _only(True)] = None
    response_format: Annotated[dict[str, Any] | None, _only({"type": "text"})] = None
    store: Annotated[bool | None, _only(False)] = None
    service_tier: Annotated[str | None, _only("auto", "default")] = None
    modalities: Annotated[list[Any] | None, _only(["text"])] = None

    @property
    def offered(self) -> list[Function]:
        """The tools that may be called."""
        return [] if self.tool_choice == "none" else [tool.offered() for tool in self.tools or ()]

    @property
    def longest(self) -> int | None:
        """The most tokens that an answer may have."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def characters(self) -> int:
        """How long everything is that a chat template may write, and what it is written in."""
        return len(self.model_dump_json(include={"messages", "tools"}, exclude_none=True))


Ids = Annotated[list[Count], Field(fail_fast=True, min_length=1)]


class CompletionBody(SampledBody):
    """completions."""

    prompt: (
        str | Ids | Annotated[list[str], Field(fail_fast=True)] | Annotated[list[Ids], Field(fail_fast=True)]
    )
    max_tokens: Positive | None = None
    logprobs: Annotated[int | None, _only(0)] = None
    """0 gives those of the tokens themselves; more would ask for other tokens' too."""
    echo: Annotated[bool | None, _only(False)] = None
    suffix: Annotated[str | None, _only("")] = None
    best_of: Positive | None = None

    @model_validator(mode="after")
    def _whole(self) -> CompletionBody:
        if self.best_of not in (None, 1, self.n):
            raise ValueError("best_of is not served here, but for n's own number")
        if not self.prompts:
            raise ValueError("prompt: there is none")
        if len(self.prompts) * (self.n or 1) > limits.CHOICES.most:
            raise ValueError(limits.CHOICES.exceeded("n times the prompts is"))
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]
