"""Bodies of requests to /v1, in the form of OpenAI's API."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from rolegraph.local import limits
from rolegraph.local.service.batcher import SampleJob
from rolegraph.local.service.bodies import Positive, SamplingFields, context_exceeded
from rolegraph.local.service.local_model import LocalModel
from rolegraph.serving.chat_bodies import (
    HINTS,
    ChatFields,
    Count,
    Name,
    RequestBody,
    StreamFields,
    at_most,
)

OWNER = "/v1"
"""Owner of all requests of /v1, which have no session: together they take turns with the sessions."""
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""
Top = Annotated[int, Field(ge=0), at_most(limits.CHOICE_TOP)]


class SampledBody(StreamFields, SamplingFields):
    """Fields that chats and completions share."""

    ignored = HINTS
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "parallel_tool_calls": (True,),
        "response_format": ({"type": "text"},),
        "service_tier": ("auto", "default"),
        "modalities": (["text"],),
        "repetition_penalty": (1.0,),
        "length_penalty": (1.0,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "add_generation_prompt": (True,),
    }
    model: Name | None = None
    """The served model's name, or the `tinker://` path of a checkpoint."""
    n: Annotated[int, Field(ge=1), at_most(limits.CHOICES)] | None = None
    return_token_ids: bool | None = None
    """vLLM's field: return `prompt_token_ids`, and `token_ids` of each choice."""
    return_prompt_token_ids: bool | None = None
    prompt_logprobs: Top | None = None
    """vLLM's field: number of likeliest tokens at each position of the prompt whose log-probabilities are
    returned, with the prompt's own tokens."""

    @model_validator(mode="after")
    def _check_fields(self) -> SampledBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for answers that are streamed")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs is not served in a stream")
        if isinstance(self.stop, list) and any(isinstance(stop, int) for stop in self.stop):
            raise ValueError("stop is a text or a list of them")
        return self

    @property
    def with_prompt_ids(self) -> bool:
        """True if the response includes the prompt's token ids."""
        return bool(self.return_token_ids or self.return_prompt_token_ids)

    def check_length(self, characters: int, context: int) -> None:
        """Raise RequestError if a text is too long for a context (in tokens) to be worth tokenizing."""
        if characters > context * limits.TEXT_PER_TOKEN.most:
            size_text = f"{characters:,} characters ({limits.TEXT_PER_TOKEN.label})"
            raise context_exceeded(size_text, context, self.prompt_field)

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """Largest number of tokens of an answer; None for as many as the context holds."""

    @property
    @abstractmethod
    def top(self) -> int:
        """Number of likeliest tokens to return at each position of an answer."""

    @property
    def prompt_top(self) -> int | None:
        """Number of likeliest tokens to compute at each position of a prompt; None if the prompt is not
        scored."""
        return self.prompt_logprobs

    @property
    def constraints(self) -> list[str]:
        """Names of the fields that restrict the tokens of an answer."""
        return []

    def job(
        self,
        prompt: Sequence[int],
        model: LocalModel,
        path: str | None,
        stop_ids: frozenset[int],
        first: int = 0,
    ) -> SampleJob:
        """Return the SampleJob of the `n` answers to one prompt.

        Args:
            prompt: The prompt's token ids.
            model: The model.
            path: Checkpoint with the weights; None for the base model.
            stop_ids: Token ids that end an answer.
            first: Number of the first answer; answers of one seed differ by their numbers.

        Raises:
            RequestError: The prompt leaves no room in the context.
        """
        count, top = self.n or 1, min(self.top, model.vocabulary)
        return SampleJob(
            path,
            self.requests(prompt, model.context, self.limit, stop_ids, count=count, first=first, top=top),
            want_prompt_logprobs=self.prompt_top is not None,
            prompt_top=min(self.prompt_top or 0, model.vocabulary),
            owner=OWNER,
        )


class JsonSchema(RequestBody):
    """`json_schema` of a `response_format`; answers always keep to it, whatever `strict` is."""

    name: Name | None = None
    description: str | None = None
    strict: bool | None = None
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(RequestBody):
    """Form of an answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError(f"response_format of the type {self.type!r}: json_schema missing or unexpected")
        return self

    @property
    def schema_of_text(self) -> dict[str, Any] | None:
        """JSON Schema of the answer's text; None if any text is allowed."""
        if self.json_schema is not None:
            return self.json_schema.json_schema
        return {"type": "object"} if self.type == "json_object" else None


class ChatBody(ChatFields, SampledBody):
    """Body of chat/completions."""

    response_format: ResponseFormat | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    prompt_field = "messages"

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def limit(self) -> int | None:
        """Largest number of tokens of an answer; None for as many as the context holds."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def top(self) -> int:
        """Number of likeliest tokens to return at each position of an answer."""
        return self.top_logprobs or 0

    @property
    def characters(self) -> int:
        """Number of characters that the chat template may write, as JSON."""
        return len(self.model_dump_json(include={"messages", "tools"}, exclude_none=True))

    @property
    def schema_of_text(self) -> dict[str, Any] | None:
        """JSON Schema of the answer's text; None if any text is allowed."""
        return self.response_format.schema_of_text if self.response_format else None

    @property
    def may_be_text(self) -> bool:
        """True if the answer may be any text, False if it must be a call or fit a schema."""
        return self.schema_of_text is None and not self.is_forced

    @property
    def constraints(self) -> list[str]:
        """Names of the fields that restrict the tokens of an answer."""
        field_restricts = {
            "response_format": self.schema_of_text is not None,
            "tool_choice": self.is_forced,
            "parallel_tool_calls": self.parallel_tool_calls is False and bool(self.functions),
        }
        return [name for name, restricts in field_restricts.items() if restricts]


Ids = Annotated[list[Count], Field(fail_fast=True, min_length=1)]


def _as_prompts(prompt: Any) -> Any:
    """Return a list of prompts; a single prompt, which is a text or a list of token ids, becomes a list with
    one item."""
    if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int)):
        return prompt  # pyright: ignore[reportUnknownVariableType]  # pydantic checks it
    return [prompt]


class CompletionBody(SampledBody):
    """Body of completions."""

    prompt: Annotated[list[str | Ids], Field(fail_fast=True, min_length=1), BeforeValidator(_as_prompts)]
    """The prompts, each a text or token ids."""
    max_tokens: Count | None = None
    """Largest number of tokens of an answer; 0 scores the prompts without sampling."""
    logprobs: Top | None = None
    """Number of likeliest tokens to return beside each token, with their log-probabilities."""
    echo: bool | None = None
    """Return each prompt before its answer, with log-probabilities if `logprobs` is set."""
    best_of: Positive | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _check_counts(self) -> CompletionBody:
        if self.best_of not in (None, 1, self.n):
            raise ValueError("best_of is served only where it equals n: all sampled answers are returned")
        if self.suffix:
            raise ValueError(
                "suffix is not served here: the model continues a text and cannot fill a gap in it"
            )
        if len(self.prompt) * (self.n or 1) > limits.CHOICES.most:
            raise ValueError(limits.CHOICES.exceeded("n times the prompts is"))
        return self

    @property
    def limit(self) -> int:
        """Largest number of tokens of an answer."""
        return _DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def top(self) -> int:
        """Number of likeliest tokens to return at each position of an answer."""
        return self.logprobs or 0

    @property
    def prompt_top(self) -> int | None:
        """Number of likeliest tokens to compute at each position of a prompt; None if the prompt is not
        scored."""
        counts = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in counts if count is not None), default=None)
