"""Base class and bounded field types of request bodies, for the Tinker API and OpenAI's API alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits import service as limits

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
    """Values, besides null, of undeclared fields that ask for nothing; false, 0 and empty values do then."""

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
TopK = Annotated[int, Field(ge=-1), at_most(limits.NUMBER)]
"""-1 and 0 stand for all tokens."""
TopP = Annotated[float, Field(gt=0, le=1)]
Stop = (
    StopText
    | Annotated[list[StopText], Field(fail_fast=True), no_longer(limits.STOPS)]
    | Annotated[list[Count], Field(fail_fast=True), no_longer(limits.STOPS)]
)
