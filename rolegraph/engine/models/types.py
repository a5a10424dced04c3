"""Requests to models and their answers. Knows no provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from pydantic import TypeAdapter

from rolegraph.engine.limits.records import VALUE_SHOWN
from rolegraph.engine.prompts import ChatFormat, ChatPrefix
from rolegraph.engine.records import CallId, Message
from rolegraph.engine.records.metadata import UsageMetadata
from rolegraph.engine.records.schema import LOGPROBS, TOKEN_IDS, NumberList
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.vocabulary import Function, ToolCall
from rolegraph.engine.vocabulary.foreign import short_repr

NO_USAGE = UsageMetadata()
PROCESS = "process"
"""Key of a session's metadata under which a client on this machine sends its process id."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Settings with which to open a model at an endpoint: reference, key, tokenizer. It holds no client."""

    ref: ModelRef
    """The model; its provider is never `local`, since a local service is a Tinker service."""
    api_key: str | None = None
    """Key that takes precedence over the environment's."""
    tokenizer_dir: Path | None = None
    """The folder of the tokenizer and chat template (tinker); None finds them by the model's name."""
    trusted_url: str | None = None
    """URL that the user gave outside the spec, to which the environment's key may be sent."""
    weight_version: int | None = None
    """Number of updates of the weights if they are in training; else None."""


@dataclass(frozen=True, slots=True)
class LocalService:
    """Address, model name, key and process id of a running local service."""

    base_url: str
    model_name: str
    api_key: str = field(repr=False)
    pid: int


class Request(NamedTuple):
    """One model call to make: messages, tools, sampling settings and the call's identity."""

    messages: Sequence[Message]
    sampling: Sampling
    seed: int | None
    """Seed of this call, derived from the run's; None for a run without a seed."""
    id: CallId
    """Identity of the call, by which a replay finds the answer."""
    tools: Sequence[Function] = ()
    """Functions that the model may call."""
    continues: ChatPrefix | None = None
    """Beginning of the messages as tokens, for models that answer with token ids."""


class Completion(NamedTuple):
    """One answer, with T response tokens; ids and logprobs are empty if the model gives none.

    `text` is the answer without the reasoning that the model marks, which is in `thought`. A model may return
    any values as numbers: `LimitedModel`, through which all calls go, leaves out those that no record can
    hold.
    """

    text: str
    thought: str = ""
    prompt_ids: Sequence[int] = ()
    response_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    """Log-probability of each response token at the sampling temperature, [T]."""
    finish_reason: str = "stop"
    """`stop` or `length`."""
    weight_version: int | None = None
    usage: UsageMetadata = NO_USAGE
    """Tokens and dollars as the endpoint counts them."""
    calls: Sequence[ToolCall] = ()
    """Calls of tools, which are not in `text`."""
    special_tokens: Sequence[str] = ()
    """Special tokens that were sampled within the answer; `text` and `thought` leave them out."""
    unusable_numbers: Sequence[str] = ()
    """Descriptions of numbers that were left out, because they were out of range or of another count than the
    tokens."""

    def checked(self) -> Self:
        """Return the answer with its numbers in arrays, without numbers that no record can hold.

        `unusable_numbers` describes the numbers that are left out.
        """
        unusable = [*self.unusable_numbers]
        prompt_ids = _usable(TOKEN_IDS, self.prompt_ids, "token id", unusable)
        response_ids = _usable(TOKEN_IDS, self.response_ids, "token id", unusable)
        logprobs = _usable(LOGPROBS, self.logprobs, "log-probability", unusable)
        if logprobs and response_ids and len(logprobs) != len(response_ids):
            unusable.append(f"{len(logprobs)} log-probabilities for {len(response_ids)} token ids")
            logprobs = ()
        usage = _COUNTS.validate_python(self.usage) if self.usage else NO_USAGE
        unusable += [_named(name, value) for name, value in self.usage.items() if name not in usage]
        if prompt_ids and response_ids:
            usage = NO_USAGE
        return self._replace(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            logprobs=logprobs,
            usage=usage,
            unusable_numbers=tuple(unusable),
        )


_COUNTS = TypeAdapter(UsageMetadata)


def _usable(numbers: NumberList, values: Sequence[Any], name: str, unusable: list[str]) -> Sequence[Any]:
    """Return `values` in an array; empty if one is out of range, in which case its description is appended to
    `unusable`."""
    if numbers.holds(values):
        return numbers.packed(values)
    unusable.append(_named(name, next(number for number in values if not numbers.holds((number,)))))
    return ()


def _named(name: str, number: object) -> str:
    return f"{name} {short_repr(number)[: VALUE_SHOWN.most]}"


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
    """A model that scores given tokens, and whose chat format turns texts to tokens."""

    @property
    def chat(self) -> ChatFormat:
        """Chat format of the model."""
        ...
