"""JSON Schema of the language, for completion and checks in an editor.

Derived from the models and from the registries of items. It is never stricter than the loader, and cannot
express that the first key of an item is its name, or that a role exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rolegraph.engine.spec.models import Spec
from rolegraph.engine.spec.sources import ModelRef
from rolegraph.engine.spec.teacher import Teacher, TeacherChoice
from rolegraph.engine.spec.yaml_source import FOR_ANCHORS
from rolegraph.engine.vocabulary import (
    OF_A_TURN,
    SUFFIXES,
    ItemCall,
    Option,
    Registry,
    datasets,
    metrics,
    registry_of,
    rewards,
    signals,
)
from rolegraph.engine.vocabulary.registry import NAMES_ITEMS_OF

DIALECT = "http://json-schema.org/draft-07/schema#"
"""Dialect that every editor supports."""
REFERENCE = "#/$defs/"
LAID_OVER = " that extends"
"""Suffix of the name of a definition's second form, for specs with `extends`."""
EXTENDS = {"type": "string", "description": "File name of the spec that this one extends."}

Schema = dict[str, Any]

TEACHER = "teacher"
"""Option of a signal whose form is part of the language, not of the signal."""


def json_schema() -> Schema:
    """Return the JSON Schema of a spec, with all items that are registered in this process.

    A spec that extends another has a second form: no key is required, and `null` removes one.
    """
    whole = TypeAdapter(Spec).json_schema(schema_generator=_Generator)
    language: dict[str, Schema] = whole.pop("$defs")
    whole["patternProperties"] = {f"^{FOR_ANCHORS}": {"description": "Values for anchors; not read itself."}}
    language["Spec"] = whole
    partial_models = {f"{name}{LAID_OVER}": _laid_over(schema, language) for name, schema in language.items()}
    partial_models[f"Spec{LAID_OVER}"]["properties"]["extends"] = EXTENDS
    groups: set[str] = set()
    definitions = _linked({**language, **partial_models}, groups)
    while missing_names := groups - definitions.keys():
        definitions |= _linked(_items(min(missing_names)), groups)
    return {
        "$schema": DIALECT,
        "title": "A spec of Rolegraph",
        "if": {"required": ["extends"]},
        "then": {"$ref": f"{REFERENCE}Spec{LAID_OVER}"},
        "else": {"$ref": f"{REFERENCE}Spec"},
        "$defs": definitions,
    }


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with the short forms of models, plain defaults and no titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model, or of its short form."""
        model_schema = super().model_schema(schema)
        model = cast("type[BaseModel]", schema["cls"])
        short_form = getattr(model, "SHORT", None)
        if short_form is None:
            return model_schema
        return {"anyOf": [TypeAdapter(short_form).json_schema(schema_generator=_Generator), model_schema]}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Return the schema of a mapping, which unlike pydantic's rejects keys that do not match."""
        dict_schema = super().dict_schema(schema)
        if patterns := dict_schema.pop("patternProperties", None):
            ((pattern, values),) = patterns.items()
            dict_schema |= {"propertyNames": {"pattern": pattern}, "additionalProperties": values}
        return dict_schema

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return a field's schema, with its default only if a spec writes the default as a single scalar."""
        made = self.generate_inner(schema["schema"])
        default = schema.get("default")
        if isinstance(default, ItemCall):
            default = default.dump()
        return {**made, "default": default} if isinstance(default, str | int | float) else made

    def get_title_from_name(self, name: str) -> str:
        """Return the name unchanged."""
        return name

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: a title would repeat the key."""
        return False


def _laid_over(schema: Any, language: Mapping[str, Schema]) -> Any:
    """Return a JSON Schema changed for specs with `extends`: no key is required, and any key may be null."""
    if isinstance(schema, list):
        return [_laid_over(part, language) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    overlay: Schema = {}
    for key, part in cast("Schema", schema).items():
        if key == "properties":
            overlay[key] = {name: _or_null(_laid_over(value, language)) for name, value in part.items()}
        elif key == "additionalProperties" and isinstance(part, dict):
            overlay[key] = _or_null(_laid_over(part, language))
        elif key == "$ref" and part.removeprefix(REFERENCE) in language:
            overlay[key] = f"{part}{LAID_OVER}"
        elif key not in ("required", "minProperties", "if", "then", "else"):
            overlay[key] = _laid_over(part, language)
    return overlay


def _or_null(schema: Schema) -> Schema:
    shown_keys = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    return {"anyOf": [schema, {"type": "null"}], **shown_keys}


def _linked(schema: Any, groups: set[str]) -> Any:
    """Return a JSON Schema in which the value of a field for vocabulary items is a reference to the
    definition of these items.

    The entry-point groups of these items are added to `groups`.
    """
    if isinstance(schema, list):
        return [_linked(part, groups) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    linked_schema = {key: _linked(part, groups) for key, part in cast("Schema", schema).items()}
    if (group := linked_schema.pop(NAMES_ITEMS_OF, None)) is not None:
        groups.add(group)
        linked_schema.pop("anyOf")
        linked_schema["$ref"] = f"{REFERENCE}{group}"
    return linked_schema


_EXPRESSIONS: Sequence[Schema] = (
    {"type": "string", "pattern": r"[^A-Za-z0-9_]|^[0-9]", "description": "Expression over the episode."},
    {"enum": [*OF_A_TURN], "description": "Value of the turn."},
    {"type": ["number", "boolean"], "description": "The same reward for every answer."},
)
"""JSON Schemas of an expression as a reward."""


def _items(group: str) -> dict[str, Schema]:
    """Return JSON Schema definitions by name: of a group's items, and of all types that the items refer
    to."""
    registry, definitions = registry_of(group), dict[str, Schema]()
    forms = [form for name in registry.names() for form in _calls(registry, name, definitions)]
    if registry is datasets:
        forms += _files(definitions)
    if registry is rewards:
        forms += _EXPRESSIONS
    if registry is metrics:
        forms.append({"type": ["string", "number", "boolean"], "description": "Expression over the episode."})
    return {**definitions, group: {"anyOf": forms}}


def _calls(registry: Registry[Any], name: str, definitions: dict[str, Schema]) -> Iterator[Schema]:
    """Yield the JSON Schemas of the forms of an item in a spec: its name alone if allowed, and a mapping."""
    description = {"description": registry.summary(name)}
    value, options = registry.value(name), registry.options(name)
    if not any(option.required for option in (value, *options) if option is not None):
        yield {"const": name, **description}
    keys, takes_more = _keys(registry, name, definitions), registry.takes_extra_options(name)
    first = _inside(keys, more=takes_more)
    if value:
        value_schema = _option(value, f"{registry.group}.{name}.", definitions)
        may_nest = not value.required and value.default is None  # its options may be nested there
        first = {"anyOf": [value_schema, first]} if may_nest else value_schema
    beside = [option.name for option in options if option.required and value is not None]
    yield {**_mapping({**keys, name: first}, more=takes_more), "required": [name, *beside], **description}


def _keys(registry: Registry[Any], name: str, definitions: dict[str, Schema]) -> dict[str, Schema]:
    """Return the JSON Schema of each option of an item, by the option's name."""
    prefix = f"{registry.group}.{name}."
    options = registry.options(name)
    if registry is signals:
        forms = Teacher | TeacherChoice | ModelRef
        options = [replace(option, hint=forms) if option.name == TEACHER else option for option in options]
    return {option.name: _option(option, prefix, definitions) for option in options}


def _mapping(keys: Mapping[str, Schema], *, more: bool) -> Schema:
    return {"type": "object", "properties": keys, "additionalProperties": more}


def _inside(keys: Mapping[str, Schema], *, more: bool) -> Schema:
    """Return the JSON Schema of the mapping after the name of an item without a value: its options, null or
    true."""
    return {"anyOf": [_mapping(keys, more=more), {"enum": [None, True]}]}


def _files(definitions: dict[str, Schema]) -> Iterator[Schema]:
    """Yield the JSON Schemas of a data file in a spec: its file name, and a mapping with its options."""
    endings = "|".join(ending.replace(".", r"\.") for ending in SUFFIXES)
    pattern, description = f"({endings})$", {"description": datasets.summary("file")}
    yield {"type": "string", "pattern": pattern, **description}
    keys = _keys(datasets, "file", definitions)
    by_name = {pattern: _inside(keys, more=False)}
    yield {**_mapping(keys, more=False), "patternProperties": by_name, **description}


def _option(option: Option, prefix: str, definitions: dict[str, Schema]) -> Schema:
    """Return the JSON Schema of an option; definitions that it refers to are added to `definitions`.

    A type without a JSON Schema allows any value.
    """
    try:
        template = f"{REFERENCE}{prefix}{{model}}"
        made = TypeAdapter(option.hint).json_schema(schema_generator=_Generator, ref_template=template)
    except PydanticUserError:
        made = Schema()
    definitions |= {f"{prefix}{name}": part for name, part in made.pop("$defs", {}).items()}
    return {**made, **({"description": option.line} if option.line else {})}
