"""Rewrites of parsers: `as` for the kind of text, `fence` for `code`, and the last match as the default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml

from rolegraph.migrate.document import Change, Document, Entry, Problem, bases, between_keys, pairs, scalar

_FIRST_UNLESS_LAST = ("tag", "choice", "regex")
"""Parsers of version 1 that returned the first match unless the spec set an option."""
_Options = Mapping[str, tuple[yaml.Node, yaml.Node]]


def parsers(document: Document) -> Iterator[Change | Problem]:
    """Write `as` for the kind of text at a place, `fence` for `code`, and a schema as the value of `json`."""
    for entry in document.entries("roles.*.parser"):
        name, options = _read(entry.value)
        which = options.get("which")
        if which is not None and scalar(which[1]) == "first":
            yield Problem(
                which[0].start_mark.index,
                "`which` is gone, and the last match counts; for the first write "
                r"`{regex: PATTERN}` with all before it in the pattern, such as `^\D*(\d+)`",
            )
        elif name == "code":
            yield document.replace(entry.value, _flow(document, options, "code", fence="any"))
        elif name == "number" and "tag" in options:
            inner = {key: pair for key, pair in options.items() if key == "fractions"}
            place = {
                "tag": document.written(*options["tag"]),
                "as": f"{{number: {_flow(document, inner)}}}" if inner else "number",
            }
            yield document.replace(entry.value, _flow(document, options, "number", "fractions", **place))
        elif name == "json" and isinstance(entry.value, yaml.MappingNode):
            yield from _schema(document, entry, *options["json"])
        else:
            if name != "one_of" and "one_of" in options:
                yield document.replace(options["one_of"][0], "as")
            if which is not None:
                yield _without_which(document, entry.value, name)


def last_matches(document: Document) -> Iterator[Problem]:
    """Find the parsers that returned the first match in version 1 and return the last match in version 2."""
    for entry in document.entries("roles.*.parser"):
        name, options = _read(entry.value)
        if name in _FIRST_UNLESS_LAST and not (
            "which" in options or isinstance(entry.value, yaml.ScalarNode)
        ):
            message = f"of several matches `{name}` takes the last now, and took the first"
            yield Problem(entry.value.start_mark.index, message)


def _keys(mapping: yaml.Node) -> _Options:
    """Return the keys of a mapping, with those that it merges (`<<`)."""
    tables = [pairs(it) for it in (*reversed(bases(mapping)), mapping)]
    return {name: it for table in tables for name, it in table.items() if name != "<<"}


def _read(parser: yaml.Node) -> tuple[str, _Options]:
    """Return (name, options) of a parser; the options include those in the mapping beside the name."""
    keys = _keys(parser)
    name = scalar(parser) or next(iter(keys), "")
    nested = pairs(keys[name][1]) if name in ("number", "code") and keys else {}
    return name, {**nested, **keys}


def _flow(document: Document, options: _Options, *without: str, **first: str) -> str:
    """Return a mapping on one line: the keys of `first`, then the remaining options.

    Args:
        document: The document.
        options: Options of the old mapping.
        *without: Options to leave out.
        **first: New keys with their texts, written first.
    """
    left_out = {*without, *first, "which"}
    rest = {key: document.written(*pair) for key, pair in options.items() if key not in left_out}
    return "{" + ", ".join(f"{key}: {text}" for key, text in {**first, **rest}.items()) + "}"


def _schema(document: Document, entry: Entry, key: yaml.Node, value: yaml.Node) -> Iterator[Change]:
    """Yield the change that replaces the options of `json` by their schema, and adds `default` after it."""
    options = pairs(value)
    if options.keys().isdisjoint(("schema", "default")):
        return
    text = document.written(*options["schema"]) if "schema" in options else "{}"
    if "schema" in options and "\n" in text:
        shift = options["schema"][1].start_mark.column - value.start_mark.column
        text = "\n".join(line[shift:] if not line[:shift].strip() else line for line in text.split("\n"))
    if "default" in options:
        text += f"{between_keys(entry.value, key)}default: {document.written(*options['default'])}"
    between = document.text[key.end_mark.index : value.start_mark.index]
    is_block = "schema" in options and "\n" in document.written(*options["schema"])
    if "\n" in between and "#" not in between and not is_block:
        yield Change(key.end_mark.index, document.end(value), f": {text}")
    else:
        yield document.replace(value, text)


def _without_which(document: Document, parser: yaml.Node, name: str) -> Change:
    keys = _keys(parser)
    inner = keys[name][1]
    if "which" not in pairs(inner):
        key = keys["which"][0]
        merged = [it for it in (parser, *(value for _, value in pairs(parser).values())) if _has(it, key)]
        return document.without(merged[0], "which")
    if len(pairs(inner)) > 1:
        return document.without(inner, "which")
    return document.replace(*((parser, name) if len(keys) == 1 else (inner, "{}")))


def _has(mapping: yaml.Node, key: yaml.Node) -> bool:
    return any(node is key for node, _ in pairs(mapping).values())
