"""Text of one YAML document with its nodes, and changes of the text.

A rewrite reads the nodes and yields changes of ranges of the text, so that comments, order, quotes, anchors
and line ends stay as the author wrote them. A library that writes the nodes anew (ruamel.yaml 0.19) changed
10 of the 91 specs of this project without any rewrite: anchors, nulls and lists of mappings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple

import yaml

Path = tuple[str, ...]
"""Keys and list positions from the top of a spec; `_` stands for a role's unknown name in a partial text."""
TOP_KEYS = frozenset(
    "rolegraph extends name description data model policies roles loops episode train".split()
)
"""Keys of version 1 at the top of a spec, without `sampling`, which a role may have as well."""
ROLE_KEYS = frozenset(
    "count needs when shows prompt run tool system examples memory parser tools calls reward credit group "
    "estimator signal loss trainable policy weight sampling body on_failure timeout".split()
)
"""Keys of a role in version 1."""
LOOP_KEYS = frozenset("times until env players".split())
"""Keys that a loop has and a role does not."""


_ALIAS = re.compile(r"\s*:\s*\*[^\s,\]}]+")
"""Pattern of an alias as the value of a key, because an alias's node is that of the anchor elsewhere in the
text."""


_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")
"""Pattern of the anchor and tag before a value."""


class Change(NamedTuple):
    """Replacement of a range of a text: positions from 0, the end excluded."""

    start: int
    end: int
    text: str


class Problem(NamedTuple):
    """Construct that cannot be rewritten."""

    position: int
    """Position in the text, from 0."""
    message: str


class Entry(NamedTuple):
    """Key of a mapping with its value, or item of a list."""

    path: Path
    key: yaml.Node | None
    """Node of the key; None for an item of a list, and for an alias."""
    value: yaml.Node
    parent: yaml.Node
    """Mapping or list that holds the value."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path[-1]


@dataclass(frozen=True)
class Document:
    """YAML text: a whole spec, or a part of one, such as a role, a mapping of roles or a loop.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """

    text: str

    @cached_property
    def root(self) -> yaml.Node | None:
        """Node at the top; None for an empty document."""
        return yaml.compose(self.text, Loader=yaml.SafeLoader)  # pyright: ignore[reportUnknownMemberType]

    def source(self, node: yaml.Node) -> str:
        """Return the text of a node as written, without its anchor and tag."""
        return self.text[self.start(node) : self.end(node)]

    def written(self, key: yaml.Node, value: yaml.Node) -> str:
        """Return the text of a key's value as written, with its anchor; for an alias, the alias."""
        alias = _ALIAS.match(self.text, key.end_mark.index)
        if alias is not None:
            return alias[0].lstrip(" :\t\n")
        return self.text[value.start_mark.index : self.end(value)]

    def without(self, mapping: yaml.Node, name: str) -> Change:
        """Return the change that removes a key from a mapping that has further keys."""
        key, value = pairs(mapping)[name]
        start, alias = key.start_mark.index, _ALIAS.match(self.text, key.end_mark.index)
        end = alias.end() if alias else self.end(value)
        line = self.text.rfind("\n", 0, start) + 1
        if not is_flow(mapping) and not self.text[line:start].strip():  # its line, with a comment
            return Change(line, self.text.find("\n", end) + 1 or len(self.text), "")
        if next(iter(pairs(mapping))) == name:
            return Change(start, [*pairs(mapping).values()][1][0].start_mark.index, "")
        return Change(self.text.rfind(",", 0, start) if is_flow(mapping) else start, end, "")

    def start(self, node: yaml.Node) -> int:
        """Return the position at which a node's text starts, after its anchor and tag."""
        properties = _PROPERTIES.match(self.text, node.start_mark.index)
        return properties.end() if properties else node.start_mark.index

    def end(self, node: yaml.Node) -> int:
        """Return the position at which a node's text ends, before white space and comments."""
        if isinstance(node, yaml.CollectionNode) and not is_flow(node) and node.value:
            last_node: yaml.Node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
            if isinstance(node, yaml.MappingNode):
                key: yaml.Node = node.value[-1][0]
                alias = _ALIAS.match(self.text, key.end_mark.index)
                if alias is not None:
                    return alias.end()
            return self.end(last_node)
        return node.start_mark.index + len(self.text[node.start_mark.index : node.end_mark.index].rstrip())

    def replace(self, node: yaml.Node, text: str) -> Change:
        """Return the change that replaces a node by a text; the node's anchor stays."""
        return Change(self.start(node), self.end(node), text)

    def entries(self, *patterns: str) -> Iterator[Entry]:
        """Yield the entries whose dotted path matches one of the patterns, each node once.

        Args:
            patterns: Patterns such as `roles.*.prompt`: `*` is one part of a path, `**` is any text.
        """
        for entry in self.every:
            if any(_regex(pattern).fullmatch(".".join(entry.path)) for pattern in patterns):
                yield entry

    @cached_property
    def every(self) -> list[Entry]:
        """Every entry of the document, outer ones first, each node once."""
        if not isinstance(self.root, yaml.MappingNode):
            return []
        prefix = _prefix(self.root)
        return [] if prefix is None else [*_walk(self.root, prefix, set())]

    def apply(self, changes: Iterable[Change]) -> Document:
        """Return the document after the changes; of overlapping changes, only the first in the text is
        made."""
        parts, copied_to = list[str](), 0
        for change in sorted(set(changes)):
            if change.start >= copied_to:
                parts += [self.text[copied_to : change.start], change.text]
                copied_to = change.end
        return Document("".join([*parts, self.text[copied_to:]]))

    def line(self, position: int) -> int:
        """Return the line number of a position, from 1."""
        return self.text.count("\n", 0, position) + 1


Rewrite = Callable[[Document], Iterable[Change | Problem]]
"""Rewrite of one construct. It yields no changes for a text without the construct."""


def scalar(node: yaml.Node) -> str | None:
    """Return the text of a scalar; None for a mapping or list."""
    return node.value if isinstance(node, yaml.ScalarNode) else None


def pairs(node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Return the key node and value node of each scalar key of a mapping, by the key's text; empty for other
    nodes."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def is_flow(node: yaml.Node) -> bool:
    """Return True for a mapping or list in brackets."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def between_keys(mapping: yaml.Node, key: yaml.Node) -> str:
    """Return the text between two keys of a mapping, one of which is given."""
    return ", " if is_flow(mapping) else "\n" + " " * key.start_mark.column


def bases(mapping: yaml.Node) -> list[yaml.Node]:
    """Return the mappings that a mapping merges by `<<`, in their order of precedence."""
    merge_pair = pairs(mapping).get("<<")
    if merge_pair is None:
        return []
    base_nodes = merge_pair[1].value if isinstance(merge_pair[1], yaml.SequenceNode) else [merge_pair[1]]
    return [*chain.from_iterable((base, *bases(base)) for base in base_nodes)]


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*"))


def _prefix(root: yaml.MappingNode) -> Path | None:
    """Return the path at which a mapping would stand in a spec; None if it is no part of a spec."""
    keys = pairs(root)
    if TOP_KEYS & keys.keys():
        return ()
    if LOOP_KEYS & keys.keys():
        return ("loops", "_")
    if ROLE_KEYS & keys.keys():
        return ("roles", "_")
    inner_keys = [pairs(value).keys() for _, value in keys.values()]
    if inner_keys and all(LOOP_KEYS & names for names in inner_keys):
        return ("loops",)
    return ("roles",) if inner_keys and all(ROLE_KEYS & names for names in inner_keys) else None


def _walk(node: yaml.Node, path: Path, seen: set[int]) -> Iterator[Entry]:
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield Entry((*path, str(index)), None, item, node)
            yield from _walk(item, (*path, str(index)), seen)
        return
    for key, value in node.value:
        name = scalar(key) or ""
        if name == "<<":
            for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _walk(base, path, seen)
        elif id(value) not in seen and (path or not name.startswith("x-")):
            is_alias = value.start_mark.index < key.start_mark.index
            yield Entry((*path, name), None if is_alias else key, value, node)
            yield from _walk(value, (*path, name), seen)
