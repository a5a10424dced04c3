"""Requests to models and their answers. Knows no provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from rolegraph.engine.prompts import ChatFormat, ChatPrefix
from rolegraph.engine.records import CallId, Message
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.vocabulary import Function, ToolCall

NO_USAGE: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Settings with which a model at an endpoint is opened: reference, key, tokenizer. It holds no client."""

    ref: ModelRef
    """The model; its provider is never `local`, since a local service is a Tinker service."""
    api_key: str | None = None
    """Takes precedence over the environment's key."""
    tokenizer_dir: Path | None = None
    """The folder of the tokenizer and chat template (tinker); None finds them by the model's name."""
    trusted_url: str | None = None
    """URL that the person gave outside the spec: the environment's key may be sent there."""
    weight_version: int | None = None
    """Number of updates of weights in training; None for other weights."""


class Request(NamedTuple):
    """One model call to make: messages, tools, sampling settings and the call's identity."""

    messages: Sequence[Message]
    sampling: Sampling
    seed: int | None
    """This call's own seed, derived from the run's; None where the run has none."""
    id: CallId
    """Identity of the call, by which a replay finds the answer."""
    tools: Sequence[Function] = ()
    """Functions that the model may call."""
    continues: ChatPrefix | None = None
    """Beginning of the messages as tokens, for models that answer with token ids."""


class Completion(NamedTuple):
    """One answer. T response tokens; ids and logprobs are empty where the model gives none.

    `text` is the answer without the reasoning that the model marks; that is in `thought`.
    """

    text: str
    thought: str = ""
    prompt_ids: Sequence[int] = ()
    response_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    """Natural logs at the sampling temperature, length T."""
    finish_reason: str = "stop"
    """`stop` or `length`."""
    weight_version: int | None = None
    usage: Mapping[str, int] = NO_USAGE
    """`prompt_tokens` and `completion_tokens` as the endpoint counts them, where it gives no ids."""
    calls: Sequence[ToolCall] = ()
    """Calls of tools, which are not in `text`."""
    special_tokens: Sequence[str] = ()
    """Special tokens that were sampled within the answer; `text` and `thought` leave them out."""


class Model(Protocol):
    """Protocol of a model that answers requests, such as an OpenAI endpoint, a Tinker service or a replay."""

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises ModelError."""
        ...

    async def aclose(self) -> None:
        """Close the model's connections."""
        ...


@runtime_checkable
class LogprobScorer(Protocol):
    """A model that scores given tokens."""

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        """Return the log-probabilities of the response tokens, [T], at temperature 1; raises ModelError."""
        ...


@runtime_checkable
class TextScorer(LogprobScorer, Protocol):
    """A model that scores given tokens, and whose chat format makes tokens of texts."""

    @property
    def chat(self) -> ChatFormat:
        """Chat format of the model."""
        ...
