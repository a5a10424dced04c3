"""What a spec may write for a vocabulary item, read off its factory: for messages, lists, schema and docs.

A factory's positional-only parameter is the item's value, its other parameters are options. A parameter has
its line in the factory's docstring, a line of its own: `name: what it means`. What `**` gathers are options
that only the factory knows.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import PydanticUserError, TypeAdapter


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or an item's value."""

    name: str
    hint: Any
    """The parameter's type, as Python has it."""
    default: Any = None
    required: bool = False
    line: str = ""
    """What it means; empty where the docstring does not say."""

    @property
    def type(self) -> str:
        """What may be written for it, in words: `a whole number from 1 to 10`."""
        return self.type_at(())

    def type_at(self, path: Sequence[int | str]) -> str:
        """The same for what stands at a path inside of it."""
        return _words(*self._schema_at(path))

    def keys_at(self, path: Sequence[int | str]) -> list[str]:
        """The names that a mapping at a path inside of it may have; none where any will do."""
        return _keys(*self._schema_at(path))

    def _schema_at(self, path: Sequence[int | str]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """JSON's schema of what stands at a path inside of it, and the definitions that it refers to."""
        try:
            schema: Mapping[str, Any] = TypeAdapter(self.hint).json_schema()
        except PydanticUserError:  # a type of a package's own, which JSON has no word for
            return {}, {}
        models = schema.get("$defs", {})
        for key in path:
            schema = _within(schema, models, key)
        return schema, models

    @property
    def written(self) -> str:
        """The default as YAML; `…` where there is none."""
        try:
            return "…" if self.required else json.dumps(self.default, ensure_ascii=False)
        except TypeError:
            return "…"


def takes_value(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether an item has a value of its own beside its name, as in `{tag: answer}`."""
    return any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters.values())


def takes_extra_options(factory: Callable[..., Any]) -> bool:
    """Whether it has options that only it knows, gathered by `**`."""
    parameters = inspect.signature(factory).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def value_option_of(factory: Callable[..., Any]) -> Option | None:
    """What stands beside the item's name, if anything does."""
    return next((option for is_value, option in _options(factory) if is_value), None)


def options_of(factory: Callable[..., Any], context: Collection[str] = ()) -> list[Option]:
    """The options in the factory's order, without those that the engine gives."""
    return [option for is_value, option in _options(factory) if not is_value and option.name not in context]


def _options(factory: Callable[..., Any]) -> typing.Iterator[tuple[bool, Option]]:
    hints = typing.get_type_hints(factory, include_extras=True)
    lines = dict(re.findall(r"^(\w+): (.+(?:\n +.+)*)", inspect.getdoc(factory) or "", re.MULTILINE))
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        required = parameter.default is parameter.empty
        yield (
            parameter.kind is parameter.POSITIONAL_ONLY,
            Option(
                name,
                hints.get(name, Any),
                default=None if required else parameter.default,
                required=required,
                line=" ".join(lines.get(name, "").split()),
            ),
        )


_KINDS = {
    "string": ("text", "texts"),
    "integer": ("a whole number", "whole numbers"),
    "number": ("a number", "numbers"),
    "boolean": ("true or false", "true or false"),
    "null": ("null", "null"),
    "array": ("a list", "lists"),
    "object": ("a mapping", "mappings"),
}
"""JSON Schema's types, one and many."""


def _within(schema: Mapping[str, Any], models: Mapping[str, Any], key: int | str) -> Mapping[str, Any]:
    """The JSON Schema of what a value holds at a key; that of anything where it does not say."""
    match schema:
        case {"$ref": str(path)}:
            return _within(models[path.rpartition("/")[2]], models, key)
        case {"anyOf": [*choices]}:
            inner = [_within(cast("Mapping[str, Any]", choice), models, key) for choice in choices]
            return next((schema for schema in inner if schema), inner[-1])
        case {"properties": {**fields}}:
            return cast("Mapping[str, Any]", fields.get(str(key), {}))
        case {"items": {**items}} | {"additionalProperties": {**items}}:
            return cast("Mapping[str, Any]", items)
        case _:
            return {}


def _keys(schema: Mapping[str, Any], models: Mapping[str, Any]) -> list[str]:
    match schema:
        case {"$ref": str(path)}:
            return _keys(models[path.rpartition("/")[2]], models)
        case {"anyOf": [*choices]}:
            return [key for choice in choices for key in _keys(cast("Mapping[str, Any]", choice), models)]
        case {"properties": {**fields}}:
            return list(cast("Mapping[str, Any]", fields))
        case _:
            return []


def _words(schema: Mapping[str, Any], models: Mapping[str, Any], many: bool = False) -> str:
    """A JSON Schema in words; `models` are its definitions."""
    match schema:
        case {"$ref": str(path)}:
            return _words(models[path.rpartition("/")[2]], models, many)
        case {"enum": [*choices]}:
            return " or ".join(map(str, choices))
        case {"const": choice}:
            return str(choice)
        case {"anyOf": [*choices]}:
            return ", or ".join(_words(cast("Mapping[str, Any]", choice), models, many) for choice in choices)
        case {"properties": {**fields}}:
            return f"{{{', '.join(fields)}}}"
        case {"type": str(kind)} if kind in _KINDS:
            return _KINDS[kind][many] + _inside(schema, models)
        case _:
            return "anything"


def _inside(schema: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """What a value holds, or between which bounds it lies."""
    match schema:
        case {"items": {**items}} if items:
            return f" of {_words(items, models, many=True)}"
        case {"additionalProperties": {**values}} if values:
            return f" of names to {_words(values, models, many=True)}"
        case {"minimum": low, "maximum": high}:
            return f" from {_bound(low)} to {_bound(high)}"
        case {"exclusiveMinimum": low, "maximum": high}:
            return f" above {_bound(low)}, at most {_bound(high)}"
        case {"minimum": low}:
            return f" of at least {_bound(low)}"
        case {"exclusiveMinimum": low}:
            return f" above {_bound(low)}"
        case {"maximum": high}:
            return f" of at most {_bound(high)}"
        case _:
            return ""


def _bound(value: float) -> str:
    """A bound in digits where it is whole, with thousands apart."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.9g}"
