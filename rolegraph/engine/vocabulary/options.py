"""Options of a vocabulary item, read from its factory's signature: for messages, lists, schema and docs.

A factory's positional-only parameter is the item's value; its other parameters are options. An option that is
a keyword of Python, such as `else`, is written with an underscore at its end in the factory. The factory's
docstring describes a parameter in a line of its own, `name: text`. A `**` parameter takes options that only
the factory knows.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any, cast

from pydantic import PydanticUserError, TypeAdapter

from rolegraph.engine.vocabulary.call import ItemCall

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of an item's option or of its value: name, type, default and description."""

    name: str
    hint: Any
    """Type annotation of the parameter."""
    default: Any = None
    required: bool = False
    line: str = ""
    """Description in the factory's docstring; empty without a description."""
    is_value: bool = field(default=False, compare=False)
    """True for the item's value, which a spec writes beside the item's name; False for an option."""

    @property
    def type(self) -> str:
        """Accepted values in words, such as `a whole number from 1 to 10`."""
        return self.type_at(())

    def type_at(self, path: Sequence[int | str]) -> str:
        """Return the accepted values at a path inside the option, in words."""
        return _words(*self._schema_at(path))

    def keys_at(self, path: Sequence[int | str]) -> list[str]:
        """Return the keys that a mapping at a path inside the option may have; empty if any key is
        allowed."""
        return [key for a in _alternatives(*self._schema_at(path)) for key in a.get("properties", ())]

    def _schema_at(self, path: Sequence[int | str]) -> tuple[Schema, Schema]:
        """Return (JSON Schema at a path inside the option, definitions that it refers to)."""
        try:
            schema: Schema = TypeAdapter(self.hint).json_schema()
        except PydanticUserError:  # a package's own class has no JSON Schema
            return {}, {}
        models = schema.get("$defs", {})
        for key in path:
            inner_schemas = [_member(alternative, key) for alternative in _alternatives(schema, models)]
            schema = next((alternative for alternative in inner_schemas if alternative), cast("Schema", {}))
        return schema, models

    @property
    def written(self) -> str:
        """The option's default as YAML; `…` for a required option or a default that YAML cannot write."""
        try:
            default_text = json.dumps(self.default, ensure_ascii=False, default=ItemCall.dump)
        except (TypeError, AttributeError):
            return "…"
        return "…" if self.required else default_text


def written_name(parameter: str) -> str:
    """Return the name that a spec writes for a parameter of a factory: `else` for `else_`."""
    name = parameter.removesuffix("_")
    return name if iskeyword(name) else parameter


def takes_extra_options(factory: Callable[..., Any]) -> bool:
    """Return True if a factory accepts any further options, by a `**` parameter."""
    parameters = inspect.signature(factory).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def value_option_of(factory: Callable[..., Any]) -> Option | None:
    """Return the Option for the value that a spec writes beside the item's name; None if the item has no
    value."""
    return next((option for option in _options(factory) if option.is_value), None)


def options_of(factory: Callable[..., Any], context: Collection[str] = ()) -> list[Option]:
    """Return the options that a spec may write, in the factory's order.

    Args:
        factory: A factory, or any other function or class.
        context: Parameters that the engine passes, and a spec cannot.
    """
    return [option for option in _options(factory) if not option.is_value and option.name not in context]


def _options(factory: Callable[..., Any]) -> Iterator[Option]:
    hints = typing.get_type_hints(factory, include_extras=True)
    lines = dict(re.findall(r"^(\w+): (.+(?:\n +.+)*)", inspect.getdoc(factory) or "", re.MULTILINE))
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        is_required = parameter.default is parameter.empty
        option_name = written_name(name)
        yield Option(
            option_name,
            hints.get(name, Any),
            default=None if is_required else parameter.default,
            required=is_required,
            line=" ".join(lines.get(option_name, "").split()),
            is_value=parameter.kind is parameter.POSITIONAL_ONLY,
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
"""Types of JSON Schema in words, singular and plural."""


def _alternatives(schema: Schema, models: Schema) -> list[Schema]:
    """Return the alternatives of a schema: references are resolved and `anyOf` is split; a value must meet
    one of them."""
    match schema:
        case {"$ref": str(path)}:
            return _alternatives(models[path.rpartition("/")[2]], models)
        case {"anyOf": [*choices]}:
            return [a for choice in choices for a in _alternatives(cast("Schema", choice), models)]
        case _:
            return [schema]


def _member(schema: Schema, key: int | str) -> Schema:
    """Return the JSON Schema of a mapping's key or a list's item; empty if any value is allowed."""
    match schema:
        case {"properties": {**fields}}:
            return cast("Schema", fields.get(str(key), {}))
        case {"items": {**items}} | {"additionalProperties": {**items}}:
            return cast("Schema", items)
        case _:
            return {}


def _words(schema: Schema, models: Schema, many: bool = False) -> str:
    """Describe the values that a JSON Schema accepts, such as `a whole number, or text`."""
    return ", or ".join(_words_of_one(a, models, many) for a in _alternatives(schema, models))


def _words_of_one(schema: Schema, models: Schema, many: bool) -> str:
    match schema:
        case {"enum": [*choices]}:
            return " or ".join(map(str, choices))
        case {"const": choice}:
            return str(choice)
        case {"properties": {**fields}}:
            return f"{{{', '.join(fields)}}}"
        case {"type": str(kind)} if kind in _KINDS:
            return _KINDS[kind][many] + _inside(schema, models)
        case _:
            return "anything"


def _inside(schema: Schema, models: Schema) -> str:
    """Return the words after a type: `of …` for the members of a list or mapping, or a number's bounds."""
    match schema:
        case {"items": {**items}} if items:
            return f" of {_words(items, models, many=True)}"
        case {"additionalProperties": {**values}} if values:
            return f" of names to {_words(values, models, many=True)}"
        case _:
            bounds = tuple(key for key in ("minimum", "exclusiveMinimum", "maximum") if key in schema)
            values = (schema[key] for key in bounds)
            return _BOUNDS.get(bounds, "").format(
                *(f"{v:,}" if isinstance(v, int) else f"{v:,.9g}" for v in values)
            )


_BOUNDS: Mapping[tuple[str, ...], str] = {
    ("minimum",): " of at least {}",
    ("exclusiveMinimum",): " above {}",
    ("maximum",): " of at most {}",
    ("minimum", "maximum"): " from {} to {}",
    ("exclusiveMinimum", "maximum"): " above {}, at most {}",
}
"""Phrases for the bounds of a number, by the keywords of a schema."""
