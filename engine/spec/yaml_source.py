"""YAML text to plain data plus the place of every key and value.

Safe by construction: only mappings, lists, text, numbers, booleans and null; duplicate keys are faults;
size, depth and the growth that aliases cause are capped. Booleans and numbers follow YAML 1.2, so that
`yes`, `no` and `on` are text. Knows nothing of what a spec means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from engine.spec.diagnostics import Diagnostic, Path, Place

MAX_BYTES = 1_000_000
MAX_DEPTH = 40
MAX_NODES = 50_000
"""Values after aliases are followed."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a path was written: its key (None for list items and the top) and its value."""

    key: Place | None
    value: Place


Spots = dict[Path, Spot]


@dataclass(slots=True)
class Source:
    """One parsed file."""

    data: dict[str, Any]
    spots: Spots
    faults: list[Diagnostic] = field(default_factory=list[Diagnostic])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """The text of each file that was read."""


class _Loader(yaml.SafeLoader):
    """A SafeLoader whose plain scalars are YAML 1.2's."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # pyyaml fills it per class


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    (
        "float",
        r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|nan)$",
        "-+0123456789.",
    ),
    ("merge", r"^(?:<<)$", "<"),
):
    _Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]  # untyped in the stubs
        f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first)
    )


def parse_yaml(text: str, file: str) -> Source:
    """Parse one file. What is wrong with it is in `faults`; the rest is still read."""
    lines = text.splitlines() or [""]
    top = Place(file, 1, 1, lines[0])
    spot = Spot(None, top)
    if len(text.encode()) > MAX_BYTES:
        return Source({}, {(): spot}, [Diagnostic(f"the file is larger than {MAX_BYTES:,} bytes", top)])
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        return Source({}, {(): spot}, [Diagnostic(message, _place(file, lines, mark) if mark else top)])
    except yaml.reader.ReaderError as error:
        message = (
            f"not valid YAML: character U+{ord(error.character):04X} is not allowed"
            if isinstance(error.character, str)
            else "not valid YAML: not UTF-8 text"
        )
        return Source({}, {(): spot}, [Diagnostic(message, top)])
    except RecursionError:
        return Source({}, {(): spot}, [Diagnostic("nested too deeply", top)])
    reader = _Reader(file, lines, loader)
    if not isinstance(node, yaml.MappingNode):
        fault = Diagnostic(
            "a spec is a mapping",
            reader.place(node) if node else top,
            "keys such as rolegraph, name and roles",
        )
        return Source({}, {(): spot}, [fault])
    try:
        data = reader.mapping(node, ())
    except _TooLarge as error:
        return Source(
            {}, {(): spot}, [Diagnostic("nested too deeply, or aliases that grow too large", error.place)]
        )
    reader.spots[()] = spot
    return Source(data, reader.spots, reader.faults, {file: text})


def paths_of(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """A value and everything in it, each with its path, in the order of writing."""
    yield path, value
    inside: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        inside = enumerate(cast("list[Any]", value))
    for key, inner in inside:
        yield from paths_of(inner, (*path, key))


_PLAIN_TAGS = tuple(
    f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null")
)


class _TooLarge(Exception):
    """The values are too many or too deep."""

    def __init__(self, place: Place) -> None:
        self.place = place


class _Reader:
    """Walks the node graph once."""

    def __init__(self, file: str, lines: list[str], loader: _Loader) -> None:
        self.file, self.lines, self.loader = file, lines, loader
        self.spots: Spots = {}
        self.faults: list[Diagnostic] = []
        self.visited = 0

    def place(self, node: yaml.Node) -> Place:
        start, end = node.start_mark, node.end_mark
        place = _place(self.file, self.lines, start)
        width = end.column - start.column if end.line == start.line else len(place.text) - start.column
        return Place(place.file, place.line, place.column, place.text, max(1, width))

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.visited += 1
        if self.visited > MAX_NODES or len(path) > MAX_DEPTH:
            raise _TooLarge(self.place(node))
        if not node.tag.startswith(_PLAIN_TAGS):
            fault = Diagnostic(f"the tag {node.tag!r} is not allowed", self.place(node), "a plain value")
            self.faults.append(fault)
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            items: list[Any] = []
            for index, child in enumerate(node.value):
                self.spots[*path, index] = Spot(None, self.place(child))
                items.append(self.value(child, (*path, index)))
            return items
        try:
            return self.loader.construct_object(node)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except (yaml.YAMLError, ValueError):
            self.faults.append(Diagnostic("this value cannot be read", self.place(node)))
            return None

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self.place(key_node)
            key: Any = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or key_node.tag.endswith("merge"):
                self.faults.append(Diagnostic("not a key that a spec can have", place, "a name"))
                continue
            if key in data:
                first = self.spots[*path, key].key
                hint = f"first written in line {first.line}" if first else ""
                self.faults.append(Diagnostic(f"duplicate key {key!r}", place, "each key once", hint))
                continue
            self.spots[*path, key] = Spot(place, self.place(value_node))
            data[key] = self.value(value_node, (*path, key))
        return data


def _place(file: str, lines: list[str], mark: yaml.Mark) -> Place:
    line = min(mark.line, len(lines) - 1)
    return Place(file, line + 1, mark.column + 1 if line == mark.line else len(lines[line]) + 1, lines[line])
