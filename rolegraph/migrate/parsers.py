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
        which_match = options.get("which")
        if which_match is not None and scalar(which_match[1]) == "first":
            yield Problem(
                which_match[0].start_mark.index,
                "`which` is gone, and the last match counts; for the first write "
                r"`{regex: PATTERN}` with all before it in the pattern, such as `^\D*(\d+)`",
            )
        elif name == "code":
            yield document.replace(entry.value, _flow(document, options, "code", fence="any"))
        elif name == "number" and "tag" in options:
            kept_options = {key: pair for key, pair in options.items() if key == "fractions"}
            place = {
                "tag": document.written(*options["tag"]),
                "as": f"{{number: {_flow(document, kept_options)}}}" if kept_options else "number",
            }
            yield document.replace(entry.value, _flow(document, options, "number", "fractions", **place))
        elif name == "json" and isinstance(entry.value, yaml.MappingNode):
            yield from _schema(document, entry, *options["json"])
        else:
            if name != "one_of" and "one_of" in options:
                yield document.replace(options["one_of"][0], "as")
            if which_match is not None:
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
    tables = [pairs(pair_table) for pair_table in (*reversed(bases(mapping)), mapping)]
    return {name: pair_table for table in tables for name, pair_table in table.items() if name != "<<"}


def _read(parser: yaml.Node) -> tuple[str, _Options]:
    """Return (name, options) of a parser; the options include those in the mapping beside the name."""
    keys = _keys(parser)
    name = scalar(parser) or next(iter(keys), "")
    inner_options = pairs(keys[name][1]) if name in ("number", "code") and keys else {}
    return name, {**inner_options, **keys}


def _flow(document: Document, options: _Options, *without: str, **first: str) -> str:
    """Return a mapping on one line: the keys of `first`, then the remaining options.

    Args:
        document: The document.
        options: Options of the old mapping.
        *without: Options to leave out.
        **first: New keys with their texts, written first.
    """
    omitted_keys = {*without, *first, "which"}
    other_texts = {key: document.written(*pair) for key, pair in options.items() if key not in omitted_keys}
    return "{" + ", ".join(f"{key}: {text}" for key, text in {**first, **other_texts}.items()) + "}"


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
    gap = document.text[key.end_mark.index : value.start_mark.index]
    is_block = "schema" in options and "\n" in document.written(*options["schema"])
    if "\n" in gap and "#" not in gap and not is_block:
        yield Change(key.end_mark.index, document.end(value), f": {text}")
    else:
        yield document.replace(value, text)


def _without_which(document: Document, parser: yaml.Node, name: str) -> Change:
    option_nodes = _keys(parser)
    parser_value = option_nodes[name][1]
    if "which" not in pairs(parser_value):
        key = option_nodes["which"][0]
        holders = [it for it in (parser, *(value for _, value in pairs(parser).values())) if _has(it, key)]
        return document.without(holders[0], "which")
    if len(pairs(parser_value)) > 1:
        return document.without(parser_value, "which")
    return document.replace(*((parser, name) if len(option_nodes) == 1 else (parser_value, "{}")))


def _has(mapping: yaml.Node, key: yaml.Node) -> bool:
    return any(node is key for node, _ in pairs(mapping).values())
