"""A vocabulary item as a spec writes it, before anybody knows whether there is such an item.

A vocabulary item is made by a factory: a function whose parameters are the options a spec may write. In YAML
it is called in one of three ways, and `ItemCall.parse` reads them all:

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
    """A vocabulary item as written in a spec: its name, its value if any, and its options."""

    name: str
    value: Any = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_value: bool = False

    @classmethod
    def parse(cls, raw: object) -> ItemCall:
        """Read the YAML form; raises ValueError with what was expected."""
        if isinstance(raw, ItemCall):
            return raw
        if isinstance(raw, str) and raw:
            return cls(raw)
        if isinstance(raw, Mapping) and raw:
            items = list(cast("Mapping[Any, Any]", raw).items())
            if not all(isinstance(key, str) for key, _ in items):
                raise ValueError("option names must be text")
            (name, value), *rest = items
            return cls(name, value, dict(rest), has_value=True)
        raise ValueError("expected a name, or a mapping whose first key is the name")

    def path_of(self, loc: Sequence[int | str]) -> tuple[int | str, ...]:
        """Where an argument stands in the YAML form; `loc` is pydantic's: 0 for the value, or an option."""
        match loc:
            case (int(), *rest):
                return (self.name, *rest)
            case (str(option), *_) if self.has_value and option not in self.options:
                return (self.name, *loc)
            case _:
                return tuple(loc)

    def dump(self) -> Any:
        """The YAML form again."""
        return {self.name: self.value, **self.options} if self.has_value else self.name


CallField = Annotated[
    ItemCall,
    BeforeValidator(ItemCall.parse),
    PlainSerializer(ItemCall.dump),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]
"""An `ItemCall` as a field of a pydantic model.

`Annotated[CallField, registry]` says whose items it may name."""
