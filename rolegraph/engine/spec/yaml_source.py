"""YAML text as plain data with the place of every key and value.

Only mappings, lists, strings, numbers, booleans and null are read; duplicate keys are faults; size, depth and
the growth by aliases are limited. Booleans and numbers follow YAML 1.2: `yes`, `no` and `on` are strings.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NoReturn, cast

import yaml

from rolegraph.engine.errors import Suggestion, UsageError
from rolegraph.engine.json_values import walk_paths
from rolegraph.engine.limits.specs import SPEC_BYTES, SPEC_DEPTH, SPEC_DIGITS, SPEC_VALUES
from rolegraph.engine.secrets import without_secrets
from rolegraph.engine.spec.diagnostics import (
    Code,
    Diagnostic,
    Finding,
    Patch,
    Path,
    Place,
    SourceLines,
    place_within,
    rename,
)
from rolegraph.engine.spec.files import has_surrogate, pair_surrogates, read_text, shown_path
from rolegraph.engine.spec.yaml_repairs import explain
from rolegraph.engine.spec.yaml_slips import EXPRESSIONS, slips_in

_DEPTH = SPEC_DEPTH.most


_NAMED: tuple[Path, ...] = (("roles",), ("loops",), ("policies",), ("episode", "metrics"))
"""Mappings whose keys are names that the spec chooses."""
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")


@dataclass(frozen=True, slots=True)
class KeyPosition:
    """File positions of a key (None for list items and the top of the file) and of its value."""

    key: Place | None
    value: Place


KeyPositions = dict[Path, KeyPosition]


@dataclass(slots=True)
class YamlSource:
    """One parsed YAML file: its data, the file positions of keys, and faults."""

    data: dict[str, Any]
    positions: KeyPositions
    faults: list[Diagnostic] = field(default_factory=list[Diagnostic])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Text of each file that was read, by its shown path."""

    @property
    def unreadable(self) -> bool:
        """True if the file could not be parsed: there are faults, but no data."""
        return bool(self.errors) and not self.data

    @property
    def errors(self) -> list[Diagnostic]:
        """Faults without the warnings."""
        return [fault for fault in self.faults if fault.severity == "error"]

    def is_overridden(self, path: Path) -> bool:
        """Return True if the command line set a value, False if a file did."""
        while path not in self.positions:
            path = path[:-1]
        return self.positions[path].value.file not in self.texts

    def overridden(self, path: Path) -> list[Path]:
        """Return the paths at or one key below `path` whose values the command line set."""
        value = value_at(self.data, path)
        keys = [(key,) for key in cast("Mapping[str, object]", value)] if isinstance(value, Mapping) else [()]
        return [(*path, *key) for key in keys if value is not None and self.is_overridden((*path, *key))]

    def diagnostic(self, finding: Finding) -> Diagnostic:
        """Return the diagnostic of a finding at its place in the files that were read."""
        place = finding.place or self._place_of(finding)
        return finding.at(place, self._patch(finding, place))

    def _patch(self, finding: Finding, place: Place) -> Patch | None:
        """Return the patch for a misspelt name; None if the correction is not certain.

        If a role, loop, policy or metric has a name that is used nowhere else, while the other spelling is
        used at several places, the name at its key is the misspelt one.
        """
        hint = finding.hint
        if finding.severity != "error" or not isinstance(hint, Suggestion) or not hint.certain:
            return None
        if finding.at_key and value_at(self.data, (*finding.path[:-1], hint.right)) is not None:
            return None  # the mapping would have the key twice
        if any(value_at(self.data, (*of, hint.wrong)) is not None for of in _NAMED):
            return None  # the name is there, with a fault of its own
        keys = [spot.key for of in _NAMED if (spot := self.positions.get((*of, hint.right)))]
        if keys and keys[0] and self._uses(hint.right) == 1 < self._uses(hint.wrong):
            patch = rename(keys[0], hint.right, hint.wrong)
        else:
            patch = rename(place, hint.wrong, hint.right)
        is_in_file = patch is not None and (patch.file in self.texts or finding.place is not None)
        return patch if is_in_file else None  # the command line is no file

    def _uses(self, name: str) -> int:
        """Return the number of times that a name occurs in the files that were read, outside of comments."""
        texts = (_COMMENT.sub("", text) for text in self.texts.values())
        return sum(len(re.findall(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)) for text in texts)

    def _as_written(self, path: Path) -> Path:
        """Return a path without the index 0 of an item that the file writes without a list around it."""
        written_path: Path = ()
        for key in path:
            if key != 0 or isinstance(value_at(self.data, written_path), list | None):
                written_path = (*written_path, key)
        return written_path

    def _place_of(self, finding: Finding) -> Place:
        path, positions = self._as_written(finding.path), self.positions
        if finding.offset is not None and path in positions:
            value = positions[path].value
            text = self.texts.get(value.file, value.text)
            return place_within(value, text, str(value_at(self.data, path)), finding.offset, finding.word)
        if finding.word:
            # A list in place of a mapping has no keys to point at, only its items.
            is_listed = path not in positions and isinstance(value_at(self.data, path[:-1]), list)
            parent_path = path[:-1] if is_listed else path
            for subpath, value in walk_paths(value_at(self.data, parent_path), parent_path):
                spot = positions.get(subpath)
                if spot is None or subpath == parent_path:
                    continue
                if spot.key is not None and subpath[-1] == finding.word:
                    return spot.key
                if value == finding.word:
                    return spot.value
        at_key = finding.at_key
        while path not in positions:  # missing: its mapping, or the short form
            path = path[:-1]
            at_key = isinstance(value_at(self.data, path), Mapping | list)
        spot = positions[path]
        return spot.key if at_key and spot.key is not None else spot.value


class _Loader(yaml.SafeLoader):
    """SafeLoader with the plain scalars of YAML 1.2 and limits on depth and size."""

    yaml_implicit_resolvers = {}  # pyyaml fills it per class
    depth = 0
    composed = 0

    def refuse(self, problem: str) -> NoReturn:
        """Raise MarkedYAMLError with a problem at the position up to which the text was read."""
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a value; raises MarkedYAMLError if the file is nested too deeply or has too many values."""
        self.depth += 1
        self.composed += 1
        if self.depth > _DEPTH:
            self.refuse(SPEC_DEPTH.exceeded("values are inside one another in"))
        # Keys of mappings are composed, too.
        if self.composed > 2 * SPEC_VALUES.most:
            self.refuse(SPEC_VALUES.exceeded("the spec has"))
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        """Compose a scalar, in which an emoji that JSON escapes as two surrogates is one character.

        PyYAML reads the two escapes as two characters.
        """
        node = super().compose_scalar_node(anchor)
        node.value = pair_surrogates(node.value)
        return node

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:
        """Open a flow list or mapping, with a depth limit of its own: the scanner runs ahead of
        `compose_node`."""
        if self.flow_level > _DEPTH:
            self.refuse(SPEC_DEPTH.exceeded("brackets are inside one another in"))
        super().fetch_flow_collection_start(TokenClass)  # pyright: ignore[reportUnknownMemberType]


_PREFIX = "tag:yaml.org,2002:"
_SCALARS: Mapping[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "bool": (re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), lambda text: text.lower() == "true"),
    "null": (re.compile(r"^(?:~|null|Null|NULL|)$"), lambda _: None),
    "int": (re.compile(r"^[-+]?[0-9]+$"), int),
    "float": (
        re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|nan)$"),
        lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
    ),
    "merge": (re.compile(r"^(?:<<)$"), str),
}
"""(pattern of the scalars, conversion of their text) by YAML tag."""
for _tag, (_pattern, _) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"{_PREFIX}{_tag}", _pattern, None)  # pyright: ignore[reportUnknownMemberType]  # untyped in the stubs


def _scalar(tag: str, text: str) -> object:
    """Return the value of a scalar with a tag; raise ValueError with the expected form."""
    if has_surrogate(text):
        raise ValueError("text without unpaired surrogates")
    kind = tag.removeprefix(_PREFIX)
    if kind == "str":
        return text
    if kind not in _SCALARS:
        raise ValueError("a plain value")
    pattern, read_scalar = _SCALARS[kind]
    if kind in ("int", "float") and len(text) > SPEC_DIGITS.most:
        raise ValueError(f"a number of at most {SPEC_DIGITS}")
    if not pattern.match(text):
        raise ValueError(f"{'nothing' if kind == 'null' else kind}, as its tag requires")
    return read_scalar(text)


FOR_ANCHORS = "x-"
"""Prefix of the top-level keys that are ignored: their values hold anchors for the rest of the file."""
FORMER_VERSION = 1
"""Version of the language that is refused with a hint at `rolegraph migrate`."""
A_SPEC = ("a spec is a mapping", "keys such as rolegraph, name and roles")


def read_yaml(path: FilePath, mapping: tuple[str, str] = A_SPEC) -> YamlSource:
    """Read and parse one file as `parse_yaml` does; a file that is too large or not text is a fault.

    Raises:
        UsageError: The file is missing or cannot be read.
    """
    file = shown_path(path)
    try:
        return parse_yaml(read_text(path, SPEC_BYTES), file, mapping)
    except UnicodeDecodeError:
        return unreadable_source(Place(file, 1, 1, ""), "not valid YAML: not UTF-8 text")
    except OSError as error:
        if error.errno == errno.EFBIG:
            return unreadable_source(Place(file, 1, 1, ""), error.strerror or "")
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def parse_yaml(text: str, file: str, mapping: tuple[str, str] = A_SPEC) -> YamlSource:
    """Parse one file; the result has the faults, and the data of the valid parts.

    Args:
        text: Text of the file.
        file: Path of the file, as messages show it.
        mapping: Message and expected value for a file that does not hold a mapping.
    """
    lines = SourceLines(file, text)
    first_place = lines.place(0)
    if len(text.encode(errors="surrogatepass")) > SPEC_BYTES.most:
        return unreadable_source(first_place, SPEC_BYTES.exceeded("the file has"))
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mistake = explain(text, error)
        place = lines.place(mistake.position, mistake.width)
        message = f"not valid YAML: {mistake.message}"
        return unreadable_source(place, message, "", mistake.hint)
    except yaml.reader.ReaderError as error:
        place = lines.place(error.position)
        return unreadable_source(place, f"not valid YAML: character U+{error.character:04X} is not allowed")
    reader = _Reader(lines, text)
    if not isinstance(node, yaml.MappingNode):
        return unreadable_source(reader.place(node) if node else first_place, *mapping)
    try:
        data = reader.mapping(node, ())
    except _TooLarge as error:
        limits = f"at most {SPEC_DEPTH}, and {SPEC_VALUES} in all"
        place = reader.place(error.args[0])
        return unreadable_source(place, "nested too deeply, or aliases that grow too large", limits)
    reader.positions[()] = KeyPosition(None, first_place)
    if data.get("rolegraph") == FORMER_VERSION:
        message, hint = "this file is of version 1 of the language", f"rewrite it: rolegraph migrate {file}"
        return unreadable_source(
            reader.positions["rolegraph",].value, message, "rolegraph: 2", hint, code="version"
        )
    data = {key: value for key, value in data.items() if not key.startswith(FOR_ANCHORS)}
    return YamlSource(data, reader.positions, reader.faults, {file: text})


def unreadable_source(
    place: Place, message: str, expected: str = "", hint: str = "", code: Code = "yaml"
) -> YamlSource:
    """Return the source of a file that cannot be read, with one fault."""
    top = Place(place.file, 1, 1, place.text if place.line == 1 else "")
    return YamlSource(
        {}, {(): KeyPosition(None, top)}, [Diagnostic(message, place, expected, hint, code=code)]
    )


def value_at(value: Any, path: Path) -> object:
    """Return the part of a value at a path; None for a missing part."""
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return None
    return value


_PLAIN_TAGS = {f"{_PREFIX}{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null")}


class _TooLarge(Exception):
    """Raised to stop reading a file with too many or too deeply nested values; its argument is the YAML
    node."""


class _Reader:
    """Converter of composed nodes to data, positions and faults."""

    def __init__(self, lines: SourceLines, text: str) -> None:
        self.lines = lines
        self.text = text
        self.positions: KeyPositions = {}
        self.faults: list[Diagnostic] = []
        self.visited = 0
        self.open: list[yaml.Node] = []
        """Mapping nodes around the value that is being read."""

    def place(self, node: yaml.Node) -> Place:
        start, end = node.start_mark.index, node.end_mark.index
        return self.lines.place(start, end - start)

    def value(self, node: yaml.Node, path: Path, key: yaml.Node | None = None) -> Any:
        """Convert a YAML node to data, and record the file positions of the value and its key under
        `path`."""
        self.positions[path] = KeyPosition(key and self.place(key), self.place(node))
        if node in self.open:
            self.fault_of_cycle(key or node)
            return None
        self.visited += 1
        if self.visited > SPEC_VALUES.most or len(path) > _DEPTH:
            raise _TooLarge(node)
        last_key = path[-1] if path else None
        if node.tag not in _PLAIN_TAGS:
            hint = "write `not` for `!`" if node.tag[0] == "!" and last_key in EXPRESSIONS else ""
            self.fault(
                f"the tag {node.tag!r} is not allowed", node, "a plain value, or a text in quotes", hint
            )
            return None
        for slip in slips_in(node, last_key, self.text):
            place = self.lines.place(slip.start, slip.end - slip.start)
            message, hint = map(without_secrets, (slip.message, slip.hint))
            self.faults.append(Diagnostic(message, place, "", hint, slip.severity))
            if slip.severity == "error":
                self.positions[path] = KeyPosition(key and self.place(key), place)
        if self.faults and self.faults[-1].place == self.positions[path].value:
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
        try:
            return _scalar(node.tag, node.value)
        except ValueError as error:
            self.fault("this value cannot be read", node, str(error))
            return None

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self.open.append(node)
        key_nodes = self.pairs(node).items()
        data = {key: self.value(value, (*path, key), key_node) for key, (key_node, value) in key_nodes}
        self.open.pop()
        return data

    def pairs(self, node: yaml.MappingNode, merges: int = 0) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return (key node, value node) by key for a mapping, including keys merged by `<<`.

        The mapping's own keys override merged keys, and earlier merges override later ones. `merges` is the
        depth of nested merges, which is limited, since they cost work without adding data.
        """
        self.visited += len(node.value) + 1 if merges else 0
        if self.visited > SPEC_VALUES.most or merges > _DEPTH:
            raise _TooLarge(node)
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key: Any = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or has_surrogate(key):
                self.fault("not a key that a spec can have", key_node, "a name")
            elif key in lines:
                hint = f"first written in line {lines[key]}"
                self.fault(f"duplicate key {key!r}", key_node, "each key once", hint)
            else:
                lines[key] = self.place(key_node).line
                if not key_node.tag.endswith("merge"):
                    pairs[key] = key_node, value_node
                    continue
                for base in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    if base in self.open:
                        self.fault_of_cycle(key_node)
                    elif isinstance(base, yaml.MappingNode):
                        pairs = {**pairs, **self.pairs(base, merges + 1), **pairs}
                    else:
                        expected = "a mapping's alias, as in `<<: *base`, or a list of them"
                        self.fault("`<<` merges mappings", base, expected)
        return pairs

    def fault_of_cycle(self, node: yaml.Node) -> None:
        message = "an alias of the mapping that the alias stands in, which would have no end"
        self.fault(message, node, "an alias of a mapping that has ended: is the line indented too far?")

    def fault(self, message: str, node: yaml.Node, expected: str, hint: str = "") -> None:
        self.faults.append(Diagnostic(message, self.place(node), expected, hint))
