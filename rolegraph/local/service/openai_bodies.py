"""Bodies of requests to /v1, in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from rolegraph.engine.limits import service as limits
from rolegraph.engine.prompts.chat_bodies import HINTS, ChatFields, Count, Name, StreamFields, at_most
from rolegraph.local.service.bodies import Positive, SamplingFields
from rolegraph.local.service.errors import RequestError


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

    @model_validator(mode="after")
    def _check_fields(self) -> SampledBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for answers that are streamed")
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
            raise RequestError(
                f"the prompt has {characters:,} characters, longer than the model's context length of "
                f"{context} tokens ({limits.TEXT_PER_TOKEN.label})"
            )


class ChatBody(ChatFields, SampledBody):
    """Body of chat/completions."""

    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    logprobs: bool | None = None

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
