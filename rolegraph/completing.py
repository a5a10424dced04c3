"""What may come next in a word that changes a spec: its keys, its own names, the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from rolegraph.engine.errors import UserError
from rolegraph.engine.spec import load_spec

Schema = Mapping[str, Any]
REFERENCE = "#/$defs/"
NAMES_ROLES = frozenset({"needs", "correct", "players", "roles"})
"""Keys whose value is a role, or several, where it is no mapping."""


class CompletionItem(NamedTuple):
    """A word as it may go on, and what it means."""

    word: str
    meaning: str = ""


def completions(spec: str | None, word: str) -> list[CompletionItem]:
    """How an override of a spec may go on: `roles.so` by names and keys, `roles.solver.parser=` by values.

    A key that has keys below it ends in a dot, another in `=`. A spec that cannot be read has no names.
    """
    from rolegraph.engine.spec.schema import json_schema

    whole = json_schema()
    written = _written(spec)
    path, equals, _ = word.partition("=")
    if equals:
        keys = path.split(".")
        found = _values(_at(whole, keys), whole, _roles(written, keys[-1]))
        rows = [row._replace(word=f"{path}={row.word}") for row in found]
    else:
        *above, _ = path.split(".")
        prefix = "".join(f"{key}." for key in above)
        inside: Any = written
        for key in above:
            inside = cast("Schema", inside).get(key, {}) if isinstance(inside, Mapping) else {}
        rows = [row._replace(word=prefix + row.word) for row in _keys(_at(whole, above), whole, inside)]
    rows = [row for row in dict.fromkeys(rows) if row.word.startswith(word)]
    return sorted({row.word: row for row in reversed(rows)}.values())


def _written(spec: str | None) -> Schema:
    """The spec as it is written, extended; nothing where there is none."""
    try:
        return load_spec(spec).data if spec else {}
    except UserError:
        return {}


def _roles(written: Schema, key: str) -> Iterable[str]:
    roles: object = written.get("roles") if key in NAMES_ROLES else None
    return map(str, cast("Schema", roles)) if isinstance(roles, Mapping) else ()


def _forms(schema: Schema, whole: Schema) -> Iterator[Schema]:
    """All that a schema lets stand there, without references."""
    if (name := schema.get("$ref")) is not None:
        yield from _forms(whole["$defs"][name.removeprefix(REFERENCE)], whole)
        return
    parts: list[Schema] = [part for key in ("anyOf", "allOf", "oneOf") for part in schema.get(key, ())]
    for part in parts:
        yield from _forms(part, whole)
    yield schema


def _at(whole: Schema, keys: Iterable[str]) -> list[Schema]:
    """What may stand at a path."""
    found: list[Schema] = [{"$ref": f"{REFERENCE}Spec"}]
    for key in keys:
        below: list[Schema] = []
        for form in (form for schema in found for form in _forms(schema, whole)):
            named, others = form.get("properties", {}).get(key), form.get("additionalProperties")
            below += [part for part in (named or others,) if isinstance(part, Mapping)]
        found = below
    return found


def _keys(schemas: Iterable[Schema], whole: Schema, inside: object) -> Iterator[CompletionItem]:
    for form in (form for schema in schemas for form in _forms(schema, whole)):
        for name, part in form.get("properties", {}).items():
            yield from (
                CompletionItem(f"{name}{end}", part.get("description", "")) for end in _ends(part, whole)
            )
        others = form.get("additionalProperties")
        if isinstance(others, Mapping) and isinstance(inside, Mapping):
            for name in cast("Mapping[object, object]", inside):
                yield from (CompletionItem(f"{name}{end}") for end in _ends(cast("Schema", others), whole))


def _ends(schema: Schema, whole: Schema) -> str:
    """A dot where one would write a key below it, `=` where a value."""
    if _of_items(schema):
        return "="
    forms = [*_forms(schema, whole)]
    values = any({"const", "enum"} & form.keys() or _is_scalar(form) for form in forms)
    below = any("properties" in f or isinstance(f.get("additionalProperties"), Mapping) for f in forms)
    return f"{'.' if below else ''}{'=' if values or not below else ''}"


def _is_scalar(form: Schema) -> bool:
    return form.get("type") in ("string", "integer", "number", "boolean", "array")


def _values(schemas: Iterable[Schema], whole: Schema, roles: Iterable[str]) -> Iterator[CompletionItem]:
    for role in roles:
        yield CompletionItem(role, "a role of the spec")
    for schema in schemas:
        for form in _forms(schema, whole):
            meaning = form.get("description", "")
            yield from (CompletionItem(_scalar(value), meaning) for value in form.get("enum", ()))
            if "const" in form:
                yield CompletionItem(_scalar(form["const"]), meaning)
            if form.get("type") == "boolean":
                yield from (CompletionItem("true", meaning), CompletionItem("false", meaning))
            if "default" in form and not isinstance(form["default"], Mapping):
                yield CompletionItem(_scalar(form["default"]), "the default")
        if _of_items(schema):
            for form in _forms(schema, whole):
                if form.get("type") == "object" and form.get("required"):
                    yield CompletionItem(form["required"][0], form.get("description", ""))


def _of_items(schema: Schema) -> bool:
    """Whether a schema is that of the items of a part of the vocabulary."""
    references = [schema, *schema.get("anyOf", ())]
    return any(part.get("$ref", "").startswith(f"{REFERENCE}rolegraph.") for part in references)


def _scalar(value: object) -> str:
    words = {True: "true", False: "false", None: "null"}
    return words[value] if isinstance(value, bool | None) else str(value)
