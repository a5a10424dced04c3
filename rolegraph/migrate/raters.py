"""Rewrites of rewards that depend on other roles: `of`, `rated_by`, `same_as`, `agrees_with` and
`weighted`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import yaml

from rolegraph.migrate.document import Change, Document, Entry, Path, Problem, between_keys, pairs, scalar

_RATERS = ("of", "rated_by", "same_as", "agrees_with")
_PLAIN = re.compile(r"(?![-?:] )[\w(.-](?:[^,\[\]{}#:]|:(?! )|(?<! )#)*(?<! )")
_TERM = re.compile(r"(?:(?:weighted|sum)\.[^.]+(?:\.reward)?(?:\.|$))*")
"""Pattern for the path from a reward to one of its terms, at any depth; the path of the reward itself is
empty."""
_VALUE = re.compile(r"[\w.]+(?:\([\w.]+\))?")
"""Pattern of an expression to which a filter applies as a whole without brackets."""


def raters(document: Document) -> Iterator[Change | Problem]:
    """Write an expression for each reward that depends on another role, and `sum` for `weighted`."""
    graph = DocumentRoles.of(document)
    for entry in rewards_in(document):
        keys = pairs(entry.value)
        name = next(iter(keys), "")
        if name == "weighted":
            yield document.replace(keys[name][0], "sum")
        elif name in _RATERS and entry.key is not None:
            rater = _Rater(keys, graph, _owner(entry.path)[-1], len(entry.path) > len(_owner(entry.path)) + 1)
            try:
                text = rater.text(name)
            except ValueError as error:
                yield Problem(keys[name][0].start_mark.index, str(error))
            else:
                right_text = rater.right(name)
                right_key = key_beside(entry, f"right: {quoted(right_text)}" if right_text else "")
                yield document.replace(entry.value, quoted(text) + right_key)


def rewards_in(document: Document) -> Iterator[Entry]:
    """Yield the entries that are rewards of roles, or terms of a sum."""
    for entry in document.entries("roles.**.reward", "roles.**.reward.**"):
        if _TERM.fullmatch(".".join(entry.path[len(_owner(entry.path)) + 1 :])):
            yield entry


def key_beside(entry: Entry, text: str) -> str:
    """Return the text of a further key after the value of an entry; empty for an empty text."""
    if not text or entry.key is None:
        return ""
    return between_keys(entry.parent, entry.key) + text


def quoted(text: str) -> str:
    """Return a text as a YAML scalar, quoted if needed."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return "'" + text.replace("'", "''") + "'"


def _owner(path: Path) -> Path:
    """Return the path of the role whose reward contains an entry."""
    return path[: path.index("reward")]


class DocumentRoles:
    """Roles of a document: the number of a role's instances on another's branch, and the roles that may be
    skipped."""

    def __init__(self, roles: Mapping[str, Mapping[str, yaml.Node]], measured: frozenset[str]) -> None:
        self.roles, self.measured = roles, measured

    @classmethod
    def of(cls, document: Document) -> DocumentRoles:
        """Read the roles of a document."""
        roles = {
            entry.name: {key: value for key, (_, value) in pairs(entry.value).items()}
            for entry in document.entries("roles.*")
        }
        entries = document.entries("episode.correct**", "episode.**correct", "roles.**.reward**.agrees_with")
        measured = [scalar(entry.value) or "" for entry in entries]
        is_whole_spec = document.root is not None and "rolegraph" in pairs(document.root)
        if is_whole_spec and not any(document.entries("episode.correct")):  # the last one decided
            measured += [name for name, role in roles.items() if "reward" in role and "tool" not in role][-1:]
        return cls(roles, frozenset(measured))

    def is_several(self, reader: str, other: str) -> bool:
        """Return True if more than one instance of `other` may lie on the branch of `reader`."""
        many_roles = {name for name in self._single(other) if self._count(name) != "1"}
        return bool(many_roles - self._single(reader))

    def is_many(self, name: str) -> bool:
        """Return True if a role may have more than one instance."""
        return any(self._count(role) != "1" for role in self._single(name))

    def may_be_skipped(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Return True if a role has a condition or is not in the document, or if this holds for a role above
        it."""
        if name in seen:
            return False
        role = self.roles.get(name)
        return (
            role is None
            or "when" in role
            or any(self.may_be_skipped(other, seen | {name}) for other in self._single(name) - {name})
        )

    def reads_all(self, reader: str, other: str) -> bool:
        """Return True if a role needs all instances of another, in their order."""
        needs = self.roles.get(reader, {}).get("needs")
        if isinstance(needs, yaml.SequenceNode):
            return other in map(scalar, needs.value)
        return needs is not None and other in pairs(needs) and scalar(pairs(needs)[other][1]) == "all"

    def words(self, name: str) -> frozenset[str] | None:
        """Return the words that a role's parser returns; None if the parser may return any text."""
        parser = self.roles.get(name, {}).get("parser")
        keys = pairs(parser) if parser is not None else {}
        if "one_of" not in keys or not isinstance(keys["one_of"][1], yaml.SequenceNode):
            return None
        default = [scalar(keys["default"][1]) or ""] if "default" in keys else []
        return frozenset([*(scalar(word_node) or "" for word_node in keys["one_of"][1].value), *default])

    def gives_numbers(self, name: str) -> bool:
        """Return True if a role's parser returns typed values, as `number` and `json` do."""
        parser = self.roles.get(name, {}).get("parser")
        parser_name = scalar(parser) if parser is not None else None
        return bool({"number", "json"} & {parser_name, *(pairs(parser) if parser is not None else ())})

    def _count(self, name: str) -> str:
        count = self.roles.get(name, {}).get("count")
        return "1" if count is None else scalar(count) or ""

    def _single(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Return the roles of which exactly one instance is on the branch of each instance of a role."""
        single_roles, needs = {name}, self.roles.get(name, {}).get("needs")
        for key, (_, value) in (pairs(needs) if needs is not None else {}).items():
            edge_pairs = pairs(value)
            join = scalar(edge_pairs["join"][1] if "join" in edge_pairs else value)
            other = (scalar(edge_pairs["of"][1]) if "of" in edge_pairs else None) or key
            if join in ("each", "branch") and other not in seen:
                single_roles |= self._single(other, seen | {name})
        return single_roles


class _Rater:
    """Reward of version 1 that depends on another role, as it is written in a spec."""

    def __init__(
        self,
        keys: Mapping[str, tuple[yaml.Node, yaml.Node]],
        graph: DocumentRoles,
        reader: str,
        is_term: bool,
    ) -> None:
        self.options = {name: value for name, (_, value) in keys.items()}
        self.graph, self.reader, self.is_term = graph, reader, is_term

    def text(self, name: str) -> str:
        """Return the expression of the reward.

        Raises:
            ValueError: No expression has the same meaning.
        """
        other = scalar(self.options[name]) or ""
        is_several = self.graph.is_several(self.reader, other)
        if name == "agrees_with":
            right_text, wrong_text = self._option("right", "correct"), self._option("wrong", "incorrect")
            condition = f"all({other}.right)" if is_several else f"{other}.right"
            text = f"action == ({json.dumps(right_text)} if {condition} else {json.dumps(wrong_text)})"
        elif name == "same_as":
            text = f"action == {other}.action" if not is_several else f"{other}.action == action"
            if self._option("equal", "text") == "math":
                text = f"math(action, {other}.action)"
        else:
            text = f"{other}.reward" if name == "of" else self._rating(other)
        if is_several and name != "agrees_with":
            text = f"mean({text})"
        return self._or_else(self._scaled(text), other, is_several, is_bool=name == "agrees_with")

    def right(self, name: str) -> str:
        """Return the expression for the role's `right`; empty if nothing reads it."""
        other = scalar(self.options[name]) or ""
        is_read = name == "of" and not self.is_term and self.reader in self.graph.measured
        if not is_read or self._number("scale", 1) <= 0:
            return ""
        return f"all({other}.right)" if self.graph.is_several(self.reader, other) else f"{other}.right"

    def _option(self, name: str, otherwise: str) -> str:
        return scalar(self.options[name]) or "" if name in self.options else otherwise

    def _number(self, name: str, otherwise: float) -> float:
        return float(self._option(name, str(otherwise)) or otherwise)

    def _rating(self, other: str) -> str:
        text, path = f"{other}.action", self._option("path", "")
        for key in path.split(".") if path else ():
            if key == "*" and not self.graph.reads_all(other, self.reader):
                raise ValueError(f"`*` in a path is gone: write the place of {self.reader} in that list")
            index_text = key if key.isdecimal() else json.dumps(key)
            text += f".{key}" if key.isidentifier() else f"[{'self.index - 1' if key == '*' else index_text}]"
        if "map" not in self.options:
            return text if self.graph.gives_numbers(other) else f"number({text})"
        words = self.graph.words(other)
        values = {word: scalar(value) or "" for word, (_, value) in pairs(self.options["map"]).items()}
        if words is None or not words >= values.keys():
            text, values = f"{text} | trim | lower", {word.lower(): number for word, number in values.items()}
        elif words == values.keys() and sorted(map(float, values.values())) == [0] * (len(values) - 1) + [1]:
            return f"{text} == {json.dumps(max(values, key=lambda word: float(values[word])))}"
        return f"{{{', '.join(f'{json.dumps(word)}: {number}' for word, number in values.items())}}}[{text}]"

    def _scaled(self, text: str) -> str:
        """Return an expression after applying the options `scale` and `offset`."""
        factor = f"({text})" if "==" in text else text
        schedule = pairs(self.options["scale"]) if "scale" in self.options else {}
        scale, offset = 1.0 if schedule else self._number("scale", 1), self._number("offset", 0)
        if schedule:
            ramp_arguments = (scalar(schedule[key][1]) or "" for key in ("from", "to", "steps"))
            text = f"ramp({', '.join(ramp_arguments)}) * {factor}"
        elif scale == -1:
            return f"{offset:g} - {factor}" if offset else f"-{factor}"
        elif scale != 1:
            text = f"{scale:g} * {factor}"
        return f"{text} {'+' if offset > 0 else '-'} {abs(offset):g}" if offset else text

    def _or_else(self, text: str, other: str, several: bool, *, is_bool: bool) -> str:
        """Return an expression after applying the option `else`; in a sum, 0 if the other role was
        skipped."""
        default = self._option("else", "")
        skips_term = not default and self.is_term and self.graph.may_be_skipped(other)
        if default in ("mask", "null") or not (default or skips_term):
            return text
        if skips_term and not several:
            return f"({text} if {other}.ran else 0)"
        value = {"0": "false", "1": "true"}.get(default, default) if is_bool else default or "0"
        return f"{text if _VALUE.fullmatch(text) else f'({text})'} | default({value})"
