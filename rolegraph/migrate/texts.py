"""Rewrites of texts: a template is a file that ends in `.j2`, or the text itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from rolegraph.engine.prompts.templates import FILE_LIKE
from rolegraph.migrate.document import Change, Document, Entry, Problem, is_flow, pairs, scalar

_TEXTS = (
    "roles.**.prompt",
    "roles.**.system",
    "roles.**.examples",
    "roles.**.demonstration",
    "train.stages.**.imitation.**",
)
"""Paths of templates."""


def texts(document: Document) -> Iterator[Change | Problem]:
    """Write a text for `{inline: text}`, a file's name for `{file: name}`, and `best` for `{best: true}`.

    A file whose name does not end in `.j2` is a problem.
    """
    for entry in document.entries(*_TEXTS):
        keys = pairs(entry.value)
        if [*keys] == ["best"]:
            yield document.replace(entry.value, "best")
        elif len(keys) == 1 and (keys.keys() <= {"inline", "file"}):
            yield from _unwrapped(document, entry, *next(iter(keys.items())))
        elif isinstance(entry.value, yaml.ScalarNode) and entry.value.value is not None:
            yield from _misnamed(entry.value)


def _misnamed(node: yaml.Node) -> Iterator[Problem]:
    """Yield a problem for a template file whose name does not end in `.j2`."""
    name = scalar(node) or ""
    if FILE_LIKE.fullmatch(name) and not name.endswith(".j2"):
        message = f"a template's file ends in .j2; rename {name} and write its name here"
        yield Problem(node.start_mark.index, message)


def _unwrapped(
    document: Document, entry: Entry, name: str, pair: tuple[yaml.Node, yaml.Node]
) -> Iterator[Change | Problem]:
    """Yield the change that replaces a mapping with a single key by the key's value."""
    key, value = pair
    start, end = document.start(entry.value), document.end(entry.value)
    inner_text = document.text[key.end_mark.index : end - 1 if is_flow(entry.value) else end]
    inner_text = inner_text.lstrip().removeprefix(":").strip().removesuffix(",")
    text = scalar(value) or ""
    if name == "file":
        yield from _misnamed(value)
    elif FILE_LIKE.fullmatch(text) and value.start_mark.index > key.start_mark.index:
        inner_text = f"\"{{{{ '{text}' }}}}\""
    if is_flow(entry.value) or entry.key is None:
        yield Change(start, end, inner_text)
        return
    key_end = entry.key.end_mark.index
    anchor = document.text[entry.value.start_mark.index : start].strip()
    comment = re.search(r"#.*", document.text[key_end : entry.value.start_mark.index])
    first_line, *other_lines = inner_text.split("\n")
    shift = key.start_mark.column - entry.key.start_mark.column
    lines = [line[shift:] if not line[:shift].strip() else line for line in other_lines]
    first_line = " ".join(filter(None, (":", anchor, first_line, comment and f" {comment[0]}")))
    yield Change(key_end, end, "\n".join([first_line, *lines]))
