"""What a spec may write for a vocabulary item, read off its factory: for messages, lists, schema and docs."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `type` as Python writes it, `line` its description, where its annotation has one."""

    name: str
    type: str
    default: Any = None
    required: bool = False
    line: str = ""


def takes_value(factory: Callable[..., Any]) -> bool:
    """Whether an item has a value of its own beside its name, as in `{tag: answer}`."""
    return any(p.kind is p.POSITIONAL_ONLY for p in inspect.signature(factory).parameters.values())


def options_of(factory: Callable[..., Any]) -> list[Option]:
    """The keyword parameters of a factory."""
    hints = typing.get_type_hints(factory, include_extras=True)
    return [
        Option(
            name=parameter.name,
            type=_shown(hints.get(parameter.name, Any)),
            default=None if parameter.default is parameter.empty else parameter.default,
            required=parameter.default is parameter.empty,
            line=_line(hints.get(parameter.name)),
        )
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind is not parameter.POSITIONAL_ONLY
    ]


def _shown(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    plain = isinstance(hint, type) and not typing.get_args(hint)
    return hint.__name__ if plain else str(hint).replace("typing.", "")


def _line(hint: Any) -> str:
    """The `Field(description=…)` of an annotation."""
    described = (part.description for part in typing.get_args(hint) if isinstance(part, FieldInfo))
    return next((text for text in described if text), "")
