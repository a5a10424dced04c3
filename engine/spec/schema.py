"""The language as JSON Schema, for an editor that completes and checks a spec while it is written.

Derived from the models, whose lines under the fields are its descriptions, and from what the registries know
of their items. It is as strict as a schema can be and never stricter than the loader: that the first key of
an item is its name, and whether a role exists, it cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rolegraph.engine.spec.models import Spec
from rolegraph.engine.vocabulary import SUFFIXES, ItemCall, Option, Registry, datasets, registry_of
from rolegraph.engine.vocabulary.registry import NAMES_ITEMS_OF

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The one that every editor knows."""
REFERENCE = "#/$defs/"
LAID_OVER = " that extends"
"""Ends the name of a definition's other shape: that in a spec with `extends`."""
EXTENDS = {"type": "string", "description": "The spec that this one is laid over."}

Schema = dict[str, Any]


def json_schema() -> Schema:
    """The JSON Schema of a spec, with all items of the vocabulary that this process knows.

    A spec that extends another has a shape of its own: it may leave out what the other has, and `null`
    removes.
    """
    whole = TypeAdapter(Spec).json_schema(schema_generator=_Generator)
    language: dict[str, Schema] = whole.pop("$defs")
    language["Spec"] = whole
    over = {f"{name}{LAID_OVER}": _laid_over(schema, language) for name, schema in language.items()}
    over[f"Spec{LAID_OVER}"]["properties"]["extends"] = EXTENDS
    definitions = {**language, **over}
    while missing := [group for group in _named(definitions) if group not in definitions]:
        definitions |= _items(missing[0])
    return {
        "$schema": DIALECT,
        "title": "A spec of Rolegraph",
        "if": {"required": ["extends"]},
        "then": {"$ref": f"{REFERENCE}Spec{LAID_OVER}"},
        "else": {"$ref": f"{REFERENCE}Spec"},
        "$defs": _linked(definitions),
    }


class _Generator(GenerateJsonSchema):
    """Pydantic's, with the lines under the fields, and the short forms of models that have one."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A model's, and what may be written in short for it."""
        made = super().model_schema(schema)
        model = cast("type[BaseModel]", schema["cls"])
        short = getattr(model, "SHORT", None)
        if short is None:
            return made
        return {"anyOf": [TypeAdapter(short).json_schema(schema_generator=_Generator), made]}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """A mapping's: a name that does not fit is a fault, where pydantic lets its value be anything."""
        made = super().dict_schema(schema)
        if patterns := made.pop("patternProperties", None):
            ((pattern, values),) = patterns.items()
            made |= {"propertyNames": {"pattern": pattern}, "additionalProperties": values}
        return made

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """A field's: only a default that a person would write is worth being shown."""
        made = self.generate_inner(schema["schema"])
        default = schema.get("default")
        if isinstance(default, ItemCall):
            default = default.dump()
        return {**made, "default": default} if isinstance(default, str | int | float) else made

    def get_title_from_name(self, name: str) -> str:
        """Nothing is said by a key's name in capitals."""
        return name

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No field has a title beside its key."""
        return False


def _laid_over(schema: Any, language: Mapping[str, Schema]) -> Any:
    """The same shape in a spec that extends another: nothing is required, and null removes any key."""
    if isinstance(schema, list):
        return [_laid_over(part, language) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    over: Schema = {}
    for key, part in cast("Schema", schema).items():
        if key == "properties":
            over[key] = {name: _or_null(_laid_over(value, language)) for name, value in part.items()}
        elif key == "additionalProperties" and isinstance(part, dict):
            over[key] = _or_null(_laid_over(part, language))
        elif key == "$ref" and part.removeprefix(REFERENCE) in language:
            over[key] = f"{part}{LAID_OVER}"
        elif key not in ("required", "minProperties", "if", "then", "else"):
            over[key] = _laid_over(part, language)
    return over


def _or_null(schema: Schema) -> Schema:
    shown = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    return {"anyOf": [schema, {"type": "null"}], **shown}


def _named(schema: Any) -> Iterator[str]:
    """The entry-point groups whose items a schema names."""
    if isinstance(schema, dict):
        if NAMES_ITEMS_OF in schema:
            yield cast("Schema", schema)[NAMES_ITEMS_OF]
        for part in cast("Schema", schema).values():
            yield from _named(part)
    elif isinstance(schema, list):
        for part in cast("list[Any]", schema):
            yield from _named(part)


def _linked(schema: Any) -> Any:
    """A schema in which what names an item refers to the definition of all items of the group."""
    if isinstance(schema, list):
        return [_linked(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    linked = {key: _linked(part) for key, part in cast("Schema", schema).items()}
    if (group := linked.pop(NAMES_ITEMS_OF, None)) is not None:
        linked.pop("anyOf")
        linked["$ref"] = f"{REFERENCE}{group}"
    return linked


def _items(group: str) -> dict[str, Schema]:
    """The definition of all that may be written for an item of a group, and those that it refers to."""
    registry, definitions = registry_of(group), dict[str, Schema]()
    forms = [form for name in registry.names() for form in _calls(registry, name, definitions)]
    if registry is datasets:
        forms += _files(definitions)
    return {**definitions, group: {"anyOf": forms}}


def _calls(registry: Registry[Any], name: str, definitions: dict[str, Schema]) -> Iterator[Schema]:
    """How an item is written: its name alone where it needs no more, or a mapping that has it as a key."""
    described = {"description": registry.summary(name)}
    value, options = registry.value(name), registry.options(name)
    needed = [option.name for option in (value, *options) if option is not None and option.required]
    if not needed:
        yield {"const": name, **described}
    prefix = f"{registry.group}.{name}."
    keys = {option.name: _option(option, prefix, definitions) for option in options}
    more = registry.takes_extra_options(name)
    first = _option(value, prefix, definitions) if value else _inside(keys, more=more)
    if value and not value.required and value.default is None:  # its options may stand there, too
        first = {"anyOf": [first, _inside(keys, more=more)]}
    beside = [option.name for option in options if option.required and value is not None]
    yield {
        "type": "object",
        "properties": {**keys, name: first},
        "required": [name, *beside],
        "additionalProperties": more,
        **described,
    }


def _inside(keys: Mapping[str, Schema], *, more: bool) -> Schema:
    """What stands beside the name of an item without a value: its options once more, or nothing."""
    options = {"type": "object", "properties": keys, "additionalProperties": more}
    return {"anyOf": [options, {"enum": [None, True]}]}


def _files(definitions: dict[str, Schema]) -> Iterator[Schema]:
    """A file of tasks, by its name; as a mapping's first key, it has the options of the dataset `file`."""
    endings = "|".join(ending.replace(".", r"\.") for ending in SUFFIXES)
    pattern, described = f"({endings})$", {"description": datasets.summary("file")}
    yield {"type": "string", "pattern": pattern, **described}
    prefix = f"{datasets.group}.file."
    keys = {option.name: _option(option, prefix, definitions) for option in datasets.options("file")}
    named = {pattern: _inside(keys, more=False)}
    yield {
        "type": "object",
        "properties": keys,
        "patternProperties": named,
        "additionalProperties": False,
        **described,
    }


def _option(option: Option, prefix: str, definitions: dict[str, Schema]) -> Schema:
    """What may be written for an option, or as an item's value; anything, where its type says no more.

    What it refers to is added to the definitions, under a prefix.
    """
    try:
        made = TypeAdapter(option.hint).json_schema(
            schema_generator=_Generator, ref_template=f"{REFERENCE}{prefix}{{model}}"
        )
    except PydanticUserError:
        made = Schema()
    definitions |= {f"{prefix}{name}": part for name, part in made.pop("$defs", {}).items()}
    return {**made, **({"description": option.line} if option.line else {})}
