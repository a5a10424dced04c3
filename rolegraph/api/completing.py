"""Completion of an override: keys of the language, names of the spec, and items of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

from rolegraph.api.workflow import json_schema
from rolegraph.engine import vocabulary
from rolegraph.engine.errors import UserError
from rolegraph.engine.spec import load_spec
from rolegraph.engine.vocabulary import Registry

ROLE_KEYS = frozenset({"needs", "correct", "players", "roles"})
"""Keys whose value is a role or a list of roles, unless it is a mapping."""
VOCABULARY = "rolegraph."
"""Prefix of the names of the schema's definitions for the items of a registry."""
Schema = Mapping[str, Any]


class CompletionItem(NamedTuple):
    """A word in a shell's list of completions."""

    word: str
    meaning: str = ""
    """Description beside the word; empty without a description."""


def completions(spec: str | None, word: str) -> list[CompletionItem]:
    """Complete an override of a spec, such as `roles.solver.pa`.

    Args:
        spec: Path of a spec file or name of a shipped spec, whose roles and other names are completed; None,
            or a spec that cannot be read, adds no names.
        word: The override so far: `roles.so` is completed by keys, `roles.solver.parser=` by values.

    Returns:
        The words that begin with `word`, sorted; a key ends in `.` or, before a value, in `=`.
    """
    spec_data: Schema = {}
    with suppress(UserError):
        spec_data = load_spec(spec).data if spec else {}
    path, equals, _ = word.partition("=")
    *parent_keys, key = path.split(".")
    definitions = json_schema()["$defs"]
    schemas: list[Schema] = [definitions["Spec"]]
    spec_part: object = spec_data
    for name in parent_keys:
        schemas = [form for schema in schemas for form in _forms(_value(schema, name), definitions)]
        spec_part = _mapping(spec_part).get(name)
    if equals:
        roles = _mapping(spec_data.get("roles")) if key in ROLE_KEYS else ()
        items = [CompletionItem(role, "a role of the spec") for role in roles]
        for schema in schemas:
            items += _words(_value(schema, key), definitions)
        prefix = f"{path}="
    else:
        items = [item for schema in schemas for item in _keys(schema, _mapping(spec_part), definitions)]
        prefix = path.removesuffix(key)
    items_by_word = {item.word: item._replace(word=prefix + item.word) for item in reversed(items)}
    return sorted(item for item in items_by_word.values() if item.word.startswith(word))


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _value(schema: Schema, key: str) -> Schema:
    """Return the JSON Schema of the value of `key` in a mapping's schema; empty for an unknown key."""
    return _mapping(schema.get("properties")).get(key) or _mapping(schema.get("additionalProperties"))


def _forms(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    """Yield a schema's alternatives except null; references are followed, except those to vocabulary
    items."""
    reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if reference and not reference.startswith(VOCABULARY):
        yield from _forms(definitions[reference], definitions)
    elif "anyOf" in schema:
        for alternative in schema["anyOf"]:
            yield from _forms(alternative, definitions)
    elif schema.get("type") != "null":
        yield schema


def _keys(schema: Schema, written: Schema, definitions: Schema) -> Iterator[CompletionItem]:
    names = [*_mapping(schema.get("properties"))]
    if isinstance(schema.get("additionalProperties"), Mapping):
        names += written
    for name in names:
        value = _value(schema, name)
        is_nested = [form.get("type") == "object" for form in _forms(value, definitions)]
        if any(is_nested):
            yield CompletionItem(f"{name}.", value.get("description", ""))
        if not all(is_nested):
            yield CompletionItem(f"{name}=", value.get("description", ""))


def _words(schema: Schema, definitions: Schema) -> Iterator[CompletionItem]:
    """Yield completions for a value: names of vocabulary items, allowed words, and the default."""
    for form in _forms(schema, definitions):
        if "$ref" in form:
            registry: Registry[Any] = getattr(vocabulary, form["$ref"].rpartition(".")[2])
            yield from (CompletionItem(name, registry.summary(name)) for name in registry.names())
        words = ["true", "false"] if form.get("type") == "boolean" else form.get("enum", [])
        yield from (CompletionItem(str(word)) for word in words)
        if "const" in form:
            yield CompletionItem(str(form["const"]))
    default = schema.get("default")
    if isinstance(default, str | int | float) and not isinstance(default, bool):
        yield CompletionItem(str(default), "the default")
