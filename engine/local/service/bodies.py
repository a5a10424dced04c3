"""Base class and bounded field types of request bodies, for the Tinker API and OpenAI's API alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.sampling import SampleRequest

T = TypeVar("T")


class RequestBody(BaseModel):
    """A JSON body, or an object within one.

    A value of an undeclared field is refused by the field's name, unless the value is null, false, 0 or
    empty, or listed below: clients send such values unasked.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Undeclared fields on which no response depends."""
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Undeclared fields with the values, besides null, that ask for nothing; all other values are refused."""

    @model_validator(mode="after")
    def _refuse_unserved(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            neutral = self.neutral.get(name)
            asks = value not in neutral if neutral else bool(value)
            if asks and value is not None and name not in self.ignored:
                raise ValueError(f"{name[:40]} is not served here")
        return self


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


def _check_temperature(value: float) -> float:
    most = limits.TEMPERATURE.most
    if value and not 1 / most <= value <= most:
        raise ValueError(f"a temperature is 0, or between {1 / most:g} and {limits.TEMPERATURE}")
    return value


Name = Annotated[str, no_longer(limits.NAME)]
Count = Annotated[int, Field(ge=0), at_most(limits.NUMBER)]
Positive = Annotated[int, Field(ge=1), at_most(limits.NUMBER)]
Seed = Annotated[int, at_most(limits.SEED)]
StopText = Annotated[str, no_longer(limits.STOP_TEXT)]
Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_check_temperature)]
Rate = Annotated[float, Field(allow_inf_nan=False), at_most(limits.RATE)]
Beta = Annotated[float, Field(ge=0, lt=1)]
TopK = Annotated[int, Field(ge=-1), at_most(limits.NUMBER)]
"""-1 and 0 stand for all tokens."""
TopP = Annotated[float, Field(gt=0, le=1)]
Stop = (
    StopText
    | Annotated[list[StopText], Field(fail_fast=True), no_longer(limits.STOPS)]
    | Annotated[list[Count], Field(fail_fast=True), no_longer(limits.STOPS)]
)


class TinkerBody(RequestBody):
    """A JSON body of the Tinker API."""

    ignored = frozenset({"type", "user_metadata", "tags", "sdk_version", "project_id", "display_name"})


class AdamSettings(TinkerBody):
    """Settings of one step of AdamW, with the SDK's defaults; a `grad_clip_norm` of 0 does not clip."""

    learning_rate: Rate = 1e-4
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: Annotated[Rate, Field(ge=0)] = 1e-12
    weight_decay: Rate = 0.0
    grad_clip_norm: Rate = 0.0


class SamplingFields(RequestBody):
    """Sampling parameters under the names that both APIs share; null stands for the default."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """A field of vLLM in OpenAI's API."""
    seed: Seed | None = None
    stop: Stop | None = None

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in given if stop and isinstance(stop, str))

    def requests(
        self,
        prompt: Sequence[int],
        context: int,
        *,
        max_tokens: int | None,
        stop_ids: frozenset[int],
        count: int,
        first: int = 0,
    ) -> list[SampleRequest]:
        """Return sequences to sample after one prompt.

        Args:
            prompt: the prompt's token ids.
            context: tokens that the model's context holds.
            max_tokens: longest answer; None for all that the context holds.
            stop_ids: token ids that end an answer.
            count: the number of sequences.
            first: number of the first sequence; sequences of one seed differ by their numbers.

        Raises:
            RequestError: the prompt leaves no room in the context.
        """
        room = context - len(prompt)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens; the model's context is {context} with the answer"
            )
        seed = None if self.seed is None else self.seed % (limits.SEED.most + 1)
        return [
            SampleRequest(
                prompt,
                max_tokens=min(max_tokens or room, room),
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=self.top_p or 1.0,
                top_k=self.top_k or -1,
                seed=None if seed is None else (seed, number),
                stop_ids=stop_ids,
                stop_texts=self.stop_texts,
            )
            for number in range(first, first + count)
        ]
