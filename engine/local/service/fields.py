"""Numbers and texts that both APIs take, in their bounds: whoever is past one is told which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits import service as limits

T = TypeVar("T")


def _stable(value: float) -> float:
    most = limits.TEMPERATURE.most
    if value and not 1 / most <= value <= most:
        raise ValueError(f"a temperature is 0, or between {1 / most:g} and {limits.TEMPERATURE}")
    return value


def at_most(limit: Limit) -> AfterValidator:
    """A number, and no more than that, of either sign."""
    return _within(limit, abs, "is")


def no_longer(limit: Limit) -> AfterValidator:
    """A text or a list, and no longer than that."""
    return _within(limit, len, "has")


def _within(limit: Limit, size: Callable[[Any], int], verb: str) -> AfterValidator:
    def check(value: T) -> T:
        if size(value) > limit.most:
            raise ValueError(limit.exceeded(verb))
        return value

    return AfterValidator(check)


Name = Annotated[str, no_longer(limits.NAME)]
Count = Annotated[int, Field(ge=0), at_most(limits.NUMBER)]
Seed = Annotated[int, at_most(limits.SEED)]
StopText = Annotated[str, no_longer(limits.STOP_TEXT)]
Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_stable)]
TopK = Annotated[int, Field(ge=-1), at_most(limits.NUMBER)]
"""-1 and 0: all tokens."""
Stop = (
    StopText
    | Annotated[list[StopText], Field(fail_fast=True), no_longer(limits.STOPS)]
    | Annotated[list[Count], Field(fail_fast=True), no_longer(limits.STOPS)]
)
