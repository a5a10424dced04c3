"""Vocabulary item as a spec writes it, before its name is looked up.

A factory makes a vocabulary item; its parameters are the options that a spec may write. `ItemCall.parse`
reads the ways to call a factory in YAML:

    reward: countdown                                   # a name
    parser: {choice: solver}                            # a name and its value (the positional-only parameter)
    parser: {tag: answer, keep_tag: true}               # the first key names it, further keys are options
    data:   {countdown: {numbers: [2, 3], seed: 7}}     # a mapping for a factory without a positional one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema


@dataclass(frozen=True, slots=True)
class ItemCall:
    """Name, value and options of a vocabulary item, as a spec writes them."""

    name: str
    value: Any = None
    """The value beside the name; meaningful only with `has_value`."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_value: bool = False
    is_bare: bool = False
    """True if the spec writes only the value: an expression as a reward."""

    @classmethod
    def parse(cls, raw: object) -> ItemCall:
        """Read a call from its YAML form.

        Args:
            raw: A name, a mapping whose first key is the name, or an `ItemCall`, which is returned unchanged.

        Raises:
            ValueError: `raw` has another form, or an option's name is not text.
        """
        if isinstance(raw, ItemCall):
            return raw
        if isinstance(raw, str) and raw:
            return cls(raw)
        if isinstance(raw, Mapping) and raw:
            items = list(cast("Mapping[Any, Any]", raw).items())
            if not all(isinstance(key, str) for key, _ in items):
                raise ValueError("option names must be text")
            (name, value), *other_items = items
            return cls(name, value, dict(other_items), has_value=True)
        raise ValueError("expected a name, or a mapping whose first key is the name")

    def path_of(self, loc: Sequence[int | str]) -> tuple[int | str, ...]:
        """Return the path of an argument in the YAML form of the call.

        Args:
            loc: The argument's place in pydantic's terms: 0 for the value or an option's name, then keys and
                positions inside of it.
        """
        if self.is_bare:
            return ()
        match loc:
            case (int(), *rest):
                return (self.name, *rest)
            case (str(option), *_) if self.has_value and option not in self.options:
                return (self.name, *loc)
            case _:
                return tuple(loc)

    def dump(self) -> Any:
        """Return the item as a spec's YAML would write it: its name, or a mapping of name, value and
        options."""
        if self.is_bare:
            return self.value
        return {self.name: self.value, **self.options} if self.has_value else self.name


OF_A_TURN = ("action", "response", "thought", "ok", "tokens", "calls", "step")
"""Names that an expression reads of the turn that has ended, besides `task`, `self` and the roles."""
SCORERS = ("math", "exact_match", "f1", "close_to")
"""Rewards that an expression may call as functions of an answer and the right one."""
EXPRESSION = "_expression"
"""Internal name of the reward for an expression; a spec writes only the expression."""


def reward_call(raw: object) -> ItemCall:
    """Read a reward from its YAML form: an item's call, or an expression; raises ValueError as
    `ItemCall.parse` does."""
    if isinstance(raw, bool | int | float):
        raw = str(raw).lower()
    if isinstance(raw, str) and raw and (not raw.isidentifier() or raw in OF_A_TURN):
        return ItemCall(EXPRESSION, raw, has_value=True, is_bare=True)
    return ItemCall.parse(raw)


def metric_call(raw: object) -> ItemCall:
    """Read a metric from its YAML form: an expression, or the call of a function, `{name: role}`.

    Raises ValueError as `ItemCall.parse` does.
    """
    if isinstance(raw, str | bool | int | float):
        return ItemCall(EXPRESSION, str(raw).lower() if isinstance(raw, bool) else str(raw), is_bare=True)
    return ItemCall.parse(raw)


_AS_WRITTEN = PlainSerializer(ItemCall.dump)
_WRITTEN = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
CallField = Annotated[ItemCall, BeforeValidator(ItemCall.parse), _AS_WRITTEN, _WRITTEN]
"""Type of a pydantic field that holds an `ItemCall`.

`Annotated[CallField, registry]` names the registry whose items the field may call."""
RewardField = Annotated[ItemCall, BeforeValidator(reward_call), _AS_WRITTEN, _WRITTEN]
"""Type of a pydantic field that holds a reward: an item's call, or an expression."""
MetricField = Annotated[ItemCall, BeforeValidator(metric_call), _AS_WRITTEN, _WRITTEN]
"""Type of a pydantic field that holds a metric: an expression, or a function's call."""
