"""JSON values in a model's text, and checks of these against a JSON Schema from a spec.

Both are untrusted. A value that could not be written again (invalid Unicode, a number that is not finite,
nested too deeply) is treated as missing. A schema is checked when it is compiled; it fetches nothing, and the
work of a check is bounded. All functions raise ValueError with a sentence for the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol, cast

from rolegraph.engine.limits.answers import JSON_DEPTH, JSON_READ, JSON_STARTS
from rolegraph.engine.limits.records import VALUE_SHOWN
from rolegraph.engine.records import check_plain
from rolegraph.engine.vocabulary.schemas import (
    UNBOUNDED_KEYWORDS,
    TooMuchWork,
    check_schema,
    keywords_in,
    schema_checker,
)
from rolegraph.roles.fences import fenced_blocks
from rolegraph.roles.patterns import Pattern, TooMuchText, compile_pattern, pay

_BRACKET = re.compile(r"[\[{]")

_REFUSED = {
    "patternProperties": "properties",
    **dict.fromkeys(UNBOUNDED_KEYWORDS, "additionalProperties or items"),
}
"""Keywords whose work cannot be limited, each with the keywords to use instead."""

ITEMS_MADE_UP = 8
"""Largest number of items of a list in an example, even if a schema asks for more."""

_LANGUAGES = ("json", "json5", "jsonc")


class Check(Protocol):
    """Check of a value against a schema."""

    def __call__(self, value: Any, *, further: bool = False) -> None:
        """Raise ValueError unless a value fits the schema.

        Args:
            value: The value.
            further: True to count the work together with that of the previous check, for another candidate of
                the same text.
        """
        ...


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path of keys and list positions, such as `scores.0`.

    Raises:
        LookupError: There is no value at the path.
    """
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value)[key]
        elif isinstance(value, list) and key.isdecimal():
            value = cast("list[Any]", value)[int(key)]
        else:
            raise LookupError(key)
    return value


def find_json(text: str, check: Check | None = None) -> Any:
    """Find the JSON value of a text: the first candidate that passes the check.

    Candidates are the whole text, fenced blocks of JSON, objects and lists in these, blocks without a
    language, and objects and lists in the text; of each kind, the last is tried first.

    Args:
        text: The text; the limits `json_starts` and `json_read` bound the search.
        check: Check against a schema; None accepts any value.

    Raises:
        ValueError: The text has no JSON that could be written again, or none that passes; the message is
            about the first candidate.
    """
    reason: ValueError | None = None
    further = False
    for value in _candidates(text):
        try:
            check_plain(value)
            if check is not None:
                begun, further = further, True
                check(value, further=begun)
        except ValueError as error:
            reason = reason or error
            if isinstance(error, TooMuchWork | TooMuchText):
                break
        else:
            return value
    raise reason or ValueError("the answer holds no JSON")


WAYS = 3
"""Number of different made-up examples for a number or a JSON value; with several, a preview takes different
branches."""


def example_of(schema: Mapping[str, Any], depth: int = 0, way: int = 0, like: object = None) -> Any:
    """Return a made-up value of the types that a schema asks for; most other keywords are ignored.

    Args:
        schema: The JSON Schema.
        depth: The level of recursion.
        way: Number of the example, from 0; other numbers give other words, and false instead of true.
        like: A value with the types of the parts that the schema leaves open; None without it.
    """
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][way % len(schema[key])]
    if depth > JSON_DEPTH.most:
        return None

    def inner(part: Any, like: object = None) -> Any:
        if isinstance(part, Mapping):
            return example_of(cast("Mapping[str, Any]", part), depth + 1, way, like)
        if isinstance(like, bool):
            return way % 2 == 0
        return "…" if like is None or isinstance(like, str) else like

    match schema.get("type"):
        case "string":
            return "…"
        case "number" | "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return way % 2 == 0
        case "array":
            items, least = schema.get("items"), schema.get("minItems", 1)
            words = cast("Mapping[str, Any]", items).get("enum") if isinstance(items, Mapping) else None
            if isinstance(words, list) and len(cast("list[Any]", words)) > least:  # each opens another branch
                listed_values = cast("list[Any]", words)
                first_index = way % len(listed_values)
                rotated = [*listed_values[first_index:], *listed_values[:first_index]]
                return rotated[: min(int(schema.get("maxItems", ITEMS_MADE_UP)), ITEMS_MADE_UP)]
            item = inner(items)
            # Lists in lists have one item each, or a schema of a few levels would fill the memory.
            return [item] * (1 if isinstance(item, list | dict) else min(max(int(least), 1), ITEMS_MADE_UP))
        case "object" | None if "properties" in schema or "required" in schema:
            properties = cast("Mapping[str, Any]", schema.get("properties") or {})
            names = dict.fromkeys([*properties, *cast("Iterable[str]", schema.get("required", ()))])
            like_parts = cast("Mapping[str, Any]", like if isinstance(like, Mapping) else {})
            return {name: inner(properties.get(name), like_parts.get(name)) for name in names}
        case "null":
            return None
        case _:
            return {}


def required_keys(schema: object) -> Iterator[str]:
    """Yield the keys that a JSON Schema requires, also in list items and in required mappings."""
    if isinstance(schema, Mapping):
        keywords = cast("Mapping[str, Any]", schema)
        properties: Mapping[str, Any] = keywords.get("properties", {})
        for key in keywords.get("required", ()):
            yield key
            yield from required_keys(properties.get(key))
        yield from required_keys(keywords.get("items"))


def _candidates(text: str) -> Iterator[Any]:
    blocks = fenced_blocks(text, glued=True)[0][: JSON_STARTS.most]
    fenced_texts = [block.text for block in blocks if block.language in _LANGUAGES]
    yield from _whole([text])
    yield from _last_first(_whole(fenced_texts))
    yield from _last_first(_inside(fenced_texts))
    yield from _last_first(_whole([block.text for block in blocks if not block.language]))
    yield from _last_first(_inside([text]))


def _last_first(values: Iterator[Any]) -> Iterator[Any]:
    return reversed([*values])


def _whole(texts: Sequence[str]) -> Iterator[Any]:
    """Yield the parsed value of each text that is entirely JSON; other texts are skipped."""
    for text in texts:
        with suppress(ValueError, RecursionError):
            yield _DECODER.decode(text.strip())


def _inside(texts: Sequence[str]) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists found inside texts; raise ValueError at the limit
    `json_read`."""
    start_count = characters_read = 0
    for text in texts:
        position = 0
        while start_count < JSON_STARTS.most and (bracket := _BRACKET.search(text, position)):
            start_count, start, position = start_count + 1, bracket.start(), bracket.end()
            try:
                value, position = _DECODER.raw_decode(text, start)
            except json.JSONDecodeError as error:
                characters_read += error.pos - start
            except (ValueError, RecursionError):
                characters_read += len(text) - start
            else:
                yield value
            if characters_read > JSON_READ.most:
                raise ValueError(f"the answer holds no JSON that is found by reading {JSON_READ}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return key-value pairs as a dict; raise ValueError for a repeated key, whose intended value is
    unclear."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)


def schema_check(schema: dict[str, Any]) -> Check:
    """Return a function that raises ValueError for a value that does not fit a JSON Schema (2020-12).

    Args:
        schema: The schema. References may only lead into the schema itself.

    Raises:
        ValueError: The schema is invalid, or has a keyword whose work cannot be limited.
    """
    # Imported here, because they are slow to load; as Any, because their types are partial.
    library: Any = import_module("jsonschema")
    referencing: Any = import_module("referencing")
    specification: Any = import_module("referencing.jsonschema").DRAFT202012
    unresolvable: type[Exception] = referencing.exceptions.Unresolvable
    registry = referencing.Registry().with_resource("", specification.create_resource(schema))
    patterns: dict[str, Pattern] = {}
    try:
        if "default" in schema:
            raise ValueError("a JSON Schema has no keyword 'default' here; write it beside the schema")
        try:
            check_schema(schema)
        except ValueError as error:
            raise ValueError(f"schema is not a JSON Schema: {error}") from error
        for keyword, value in keywords_in(schema, {*_REFUSED, "$ref", "$dynamicRef", "pattern"}):
            if keyword in _REFUSED:
                raise ValueError(f"a schema's {keyword} are not supported; use {_REFUSED[keyword]}")
            if not isinstance(value, str):
                continue
            if keyword == "pattern":
                patterns[value] = compile_pattern(value)
            elif not value.startswith("#"):
                raise ValueError(f"a schema may only refer to itself (#/$defs/…), not to {value!r}")
            elif keyword == "$ref":
                try:
                    registry.resolver().lookup(value)
                except (unresolvable, ValueError, TypeError, AttributeError, LookupError) as error:
                    shown_value = value[: VALUE_SHOWN.most]
                    raise ValueError(
                        f"the schema refers to a place that it does not have: {shown_value}"
                    ) from error
    except (unresolvable, TypeError, AttributeError, LookupError) as error:
        raise ValueError("the schema has a reference that cannot be resolved") from error
    except RecursionError as error:
        raise ValueError("the schema is nested too deeply") from error

    def pattern(validator: Any, wanted: str, instance: Any, around: Any) -> Iterator[Any]:
        nonlocal work_done
        if not isinstance(instance, str):
            return
        work_done = pay(patterns[wanted], instance, work_done)
        if patterns[wanted].search(instance) is None:
            yield library.ValidationError(f"{instance[:40]!r} does not match {wanted!r}")

    def unique(validator: Any, wanted: bool, instance: Any, around: Any) -> Iterator[Any]:
        if wanted and isinstance(instance, list):
            items = cast("list[Any]", instance)
            # jsonschema compares each pair. As text, 1 is not true, but 1 and 1.0 count as different.
            if len({json.dumps(item, sort_keys=True) for item in items}) < len(items):
                yield library.ValidationError(f"{str(items)[:40]} has non-unique elements")

    work_done = 0
    find_problem = schema_checker(schema, {"pattern": pattern, "uniqueItems": unique})

    def check(value: Any, *, further: bool = False) -> None:
        nonlocal work_done
        work_done = work_done if further else 0
        try:
            problem = find_problem(value, further)
        except (unresolvable, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
            is_bounded = isinstance(error, TooMuchWork | TooMuchText)
            reason = str(error) if is_bounded else "it is beyond what the schema can check"
            kind = TooMuchWork if is_bounded else ValueError
            raise kind(f"the JSON does not fit the schema: {reason}") from error
        if problem is not None:
            raise ValueError(f"the JSON does not fit the schema at {problem.path}: {problem.message[:200]}")

    return check
