"""Rewrites of keys and words that have other names in version 2 of the language."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from rolegraph.migrate.document import Change, Document, Entry, Problem, between_keys, is_flow, pairs, scalar

_KEYS = (
    ("data.examples.shows", "sees"),
    ("roles.*.shows", "sees"),
    ("roles.**.signal.**.shows", "sees"),
    ("roles.*.tool", "callable"),
    ("roles.*.calls", "max_calls"),
    ("roles.*.tool.arguments.*.describe", "description"),
    ("roles.*.tool.arguments.*.one_of", "enum"),
    ("roles.*.run.call", "function"),
)
"""Keys with a new name: (pattern of the path, new name)."""
_SCHEDULED = ("weight", "coefficient", "temperature")
"""Keys whose number may be a schedule in version 1."""


def words(document: Document) -> Iterator[Change]:
    """Yield changes that rename keys, and that write `previous` for the value `last` of a round."""
    for pattern, name in _KEYS:
        for entry in document.entries(pattern):
            if entry.key is not None:
                yield document.replace(entry.key, name)
    for entry in document.entries("roles.*.needs.*", "roles.*.needs.*.round"):
        if isinstance(entry.parent, yaml.MappingNode) and scalar(entry.value) == "last":
            yield document.replace(entry.value, "previous")


def argument_types(document: Document) -> Iterator[Change]:
    """Write `type: string` into an argument without a type, because in JSON Schema a missing type allows all
    types."""
    for entry in document.entries("roles.*.tool.arguments.*"):
        keys = pairs(entry.value)
        if keys and "type" not in keys:
            first_key, _ = next(iter(keys.values()))
            start, separator = first_key.start_mark.index, between_keys(entry.value, first_key)
            yield Change(start, start, f"type: string{separator}")


def bodies(document: Document) -> Iterator[Change | Problem]:
    """Write a role's `body` as the `body` of its model."""
    for entry in document.entries("roles.*.body"):
        if entry.key is None:
            continue
        if {"model", "policy", "<<"} & pairs(entry.parent).keys():
            message = "`body` of a role is gone; write it in the `model` of the role, or of its policy"
            yield Problem(entry.key.start_mark.index, message)
            continue
        start, end = entry.key.start_mark.index, document.end(entry.value)
        text, indent = document.text[start:end], " " * entry.key.start_mark.column
        indented_text = "\n  ".join(text.split("\n"))
        model = f" {{{text}}}" if is_flow(entry.value) else f"\n{indent}  {indented_text}"
        yield Change(start, end, f"model:{model}")


def short_forms(document: Document) -> Iterator[Change]:
    """Write chunks, a discounted return and a role's own conversation in the one form that version 2 has."""
    for entry in document.entries("roles.**.needs.**.join"):
        if "chunks" in pairs(entry.value):
            yield Change(
                entry.key.start_mark.index if entry.key is not None else document.start(entry.value),
                document.end(entry.value),
                f"chunks: {document.source(pairs(entry.value)['chunks'][1])}",
            )
    for entry in document.entries("roles.**.needs.**.join", "roles.**.memory.chat"):
        alias = "each" if entry.name == "join" else "own"
        sibling_pairs = pairs(entry.parent)
        if scalar(entry.value) == alias and entry.key is not None:
            if alias == "own" and len(sibling_pairs) == 1:
                yield document.replace(entry.parent, "chat")
            elif alias == "own" or "chunks" in sibling_pairs:
                yield document.without(entry.parent, entry.name)
    for entry in document.entries("roles.**.credit"):
        keys = pairs(entry.value)
        if "kind" in keys:
            kind, discount = keys["kind"][1], keys.get("discount")
            new_form = f"{{return: {document.source(discount[1])}}}" if discount else document.source(kind)
            yield as_scalar(document, entry, new_form)


def verdicts(document: Document) -> Iterator[Change]:
    """Write `.right` for the verdict of a turn in templates, as in expressions."""
    for entry in document.every:
        text = scalar(entry.value) or ""
        if ".is_correct" in text and ("{{" in text or "{%" in text):
            yield document.replace(entry.value, document.source(entry.value).replace(".is_correct", ".right"))


def numbers(document: Document) -> Iterator[Change | Problem]:
    """Write `ramp(…)` for a schedule, and report expressions that read the step, which counts from 0 in
    version 2."""
    for entry in document.every:
        keys = pairs(entry.value)
        if entry.name in _SCHEDULED and {"from", "to", "steps"} <= keys.keys():
            values = [
                document.source(keys[key][1]) for key in ("from", "to", "steps", "after") if key in keys
            ]
            yield as_scalar(document, entry, f'"ramp({", ".join(values)})"')
        elif entry.name in ("value", "expr", "gate") and re.search(r"\bstep\b", scalar(entry.value) or ""):
            message = "`step` counts from 0, and is the last step outside of training; it was 1 more, or 0"
            yield Problem(entry.value.start_mark.index, message)


def as_scalar(document: Document, entry: Entry, text: str) -> Change:
    """Return the change that replaces a mapping by a text on the line of its key."""
    if entry.key is None or is_flow(entry.value):
        return document.replace(entry.value, text)
    return Change(entry.key.end_mark.index, document.end(entry.value), f": {text}")
