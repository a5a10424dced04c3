"""Checks of values that actions cannot have, and of words that prompts never mention. Pure.

Actions are known from the JSON Schema of their parser or tool; nothing is found where it gives none. A prompt
mentions a word that it writes itself, or that it may pass on: from the task, an environment, a tool, or
another role whose prompt mentions the word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import NamedTuple, cast

import networkx as nx

from rolegraph.engine.compile.chats import turns_read
from rolegraph.engine.compile.names import ResolvedNames
from rolegraph.engine.compile.policies import samplings_of
from rolegraph.engine.compile.role_plan import ResolvedRole
from rolegraph.engine.compile.structure import RoleGraph, ancestors, graph_of
from rolegraph.engine.errors import RolegraphError, did_you_mean
from rolegraph.engine.prompts import Template
from rolegraph.engine.spec import Finding
from rolegraph.engine.vocabulary import ACTION_OF, ActionRead, Shape, with_word

_KINDS = {"string": "text", "number": "a number", "integer": "a number", "boolean": "true or false"}


class _Obstacle(NamedTuple):
    """Reason why a value cannot be read, as the end of a sentence, and a hint."""

    reason: str
    hint: str
    is_sure: bool = True


def read_findings(names: ResolvedNames) -> Iterator[Finding]:
    """Find values that a reward or a tool reads from an action that cannot have them."""
    shapes: dict[str, Shape] = {}
    for name, role in names.roles.items():
        role_spec, tool = role.spec, role.run.tool if role.run else None
        reading = (f"the reward of {name}", "reward", role.reward and role.reward.facts, role_spec.reward)
        for reader, key, item, call in (reading, (name, "run", tool, role_spec.run)):
            for action_read in dict.fromkeys(item.reads if item else ()):
                source = action_read.role or name
                if key == "run" and source not in role_spec.needs:
                    continue
                read_role = (role_spec.needs[source].of if source in role_spec.needs else None) or source
                obstacle = _obstacle(shape_of(names, read_role, shapes), action_read)
                if obstacle is not None and call is not None:
                    wanted_value = action_read.path or "a number"
                    message = f"{reader} reads {wanted_value} in the action of {read_role}, {obstacle.reason}"
                    severity = "error" if obstacle.is_sure and action_read.role else "warning"
                    path = ("roles", name, key, *call.path_of(action_read.place))
                    yield Finding(path, message, "", obstacle.hint, severity, action_read.path or read_role)


def _obstacle(shape: Shape, read: ActionRead) -> _Obstacle | None:
    """Return the reason why no action of this JSON Schema can hold the value that `read` asks for; None if an
    action can."""
    subject, keys = "which", read.path.split(".") if read.path else []
    for index, key in enumerate(keys):
        properties, most_items = inside(shape, "properties"), shape.get("maxItems", inf)
        if shape.get("type") == "array":
            if not key.isdecimal():
                return _Obstacle(f"{subject} is a list", "name a position in it, from 0")
            if int(key[:10]) >= most_items:
                return _Obstacle(f"{subject} is a list of at most {most_items}", "positions count from 0")
            shape = inside(shape, "items")
        elif shape.get("type") in (*_KINDS, "null") or "enum" in shape:
            return _Obstacle(f"{subject} is {described(shape)}", "leave the path out, or let it give JSON")
        elif properties and key not in properties:
            hint = did_you_mean(key, properties) or f"it has {', '.join(properties)}"
            is_closed = shape.get("additionalProperties") is False
            return _Obstacle(f"{subject} is {described(shape)}", hint, is_closed)
        else:
            shape = inside(properties, key)
        subject = f"where {'.'.join(keys[: index + 1])}"
    if not read.is_number or _may_be_number(shape):
        return None
    return _Obstacle(f"{subject} is {described(shape)}", "read a part of it, by its path")


def _may_be_number(shape: Shape) -> bool:
    """Return True if a value of this JSON Schema can be a number, also if it is written as text."""
    kind = shape.get("type")
    values = shape.get("enum", (True, False) if kind == "boolean" else None)
    if kind in ("object", "array", "null"):
        return False
    return values is None or any(not isinstance(v, str) or any(map(str.isdigit, v)) for v in values)


def described(shape: Shape) -> str:
    """Describe the values of a JSON Schema, such as `text` or `one of yes, no`."""
    if "enum" in shape:
        return f"one of {', '.join(map(str, shape['enum']))}"
    properties = ", ".join(inside(shape, "properties"))
    kinds = {**_KINDS, "array": "a list", "null": "null"}
    return kinds.get(str(shape.get("type")), f"a mapping of {properties}" if properties else "a mapping")


def inside(shape: Shape, key: str) -> Shape:
    """Return the mapping at `key` of a JSON Schema; empty where the key has no mapping."""
    value = shape.get(key)
    return cast("Shape", value) if isinstance(value, Mapping) else {}


def shape_of(names: ResolvedNames, name: str, shapes: dict[str, Shape]) -> Shape:
    """Return the JSON Schema of a role's actions, empty if unknown; keep it in the cache `shapes`."""
    if name in shapes or name not in names.roles:
        return shapes.get(name, {})
    shapes[name] = {}  # a role that passes on its own action, in a loop, is unknown
    role = names.roles[name]
    needs, parser = role.spec.needs, role.parser if role.spec.parses else None
    item = parser or (role.run and role.run.tool)

    def resolved(shape: Shape) -> Shape:
        if ACTION_OF in shape:
            keys = [key for key in needs if shape[ACTION_OF] in (key, None)]
            first_shape, *more = [shape_of(names, needs[key].of or key, shapes) for key in keys] or [{}]
            return first_shape if all(other_shape == first_shape for other_shape in more) else {}
        return {**shape, "items": resolved(inside(shape, "items"))} if "items" in shape else shape

    shapes[name] = with_word(resolved(item.gives), parser and parser.default) if item else {}
    return shapes[name]


_SHOWN = 6
"""Number of words that a message lists."""


def instruction_findings(names: ResolvedNames) -> Iterator[Finding]:
    """Warn of roles whose prompts never mention the words that their parser looks for, such as `<answer>`."""
    passed_graph = _passed_on(names)
    for name, role in names.roles.items():
        for words in role.parser.expects if role.parser and role.spec.run is None else ():
            if not _Mentions(names, passed_graph, words).may_show(name):
                shown_words = [*words[:_SHOWN], *(["…"] if len(words) > _SHOWN else [])]
                words_text = " or ".join(shown_words)
                message = f"the prompt of {name} does not mention {words_text}, which its parser looks for"
                hint = "say it in the prompt: answers without it are the failure malformed_output"
                word = words[0].strip("<>")
                roles_before = {name, *ancestors(passed_graph, name)}.intersection(names.roles)
                rests_on = tuple(
                    ("roles", r, key) for r in roles_before for key in ("prompt", "system", "needs")
                )
                path = ("roles", name, "parser")
                yield Finding(path, message, "", hint, "warning", word, rests_on=rests_on)


def stop_findings(names: ResolvedNames) -> Iterator[Finding]:
    """Warn of each stop text (`sampling.stop`) that cuts off a mark which the role's parser needs to find."""
    for name, role in names.roles.items():
        samplings = dict(samplings_of(names.spec, name, names.counts[name], "stop")) if role.parser else {}
        for path, sampling in samplings.items():
            for stop_text, mark in product(sampling.stop, role.parser.marks if role.parser else ()):
                if _cuts(stop_text, mark):
                    message = f"an answer of {name} ends before {stop_text!r}, and its parser needs {mark!r}"
                    hint = f"remove it: without {mark!r} every answer is the failure malformed_output"
                    yield Finding(path, message, "", hint, "warning", stop_text)
                    break


def default_findings(names: ResolvedNames) -> Iterator[Finding]:
    """Warn of a default that earns a reward and by which another role is asked, so that an unreadable answer
    is paid."""
    deciding = {
        mentioned_role.partition(".")[0]: router
        for router, role in names.roles.items()
        if role.when is not None
        for mentioned_role in role.when.mentions
    }
    for name, role in names.roles.items():
        on_failure, default = role.spec.on_failure, role.parser.default if role.parser else ""
        is_paid = on_failure.then == "reward" or (on_failure.reward or 0) > 0
        if name in deciding and is_paid and default not in (None, ""):
            consequence = f"counts as {default!r}, by which {deciding[name]} is asked, and is paid"
            message = f"an unreadable answer of {name} {consequence}"
            hint = "leave `on_failure` out: an unreadable answer then earns 0"
            yield Finding(("roles", name, "parser"), message, "", hint, "warning", "default")


def _cuts(stop: str, mark: str) -> bool:
    """Return True if ending an answer before the text `stop` may cut off `mark`, or a part of it."""
    stripped_stop = stop.strip() or stop
    overlaps = (stripped_stop.endswith(mark[:size]) for size in range(2, len(mark)))
    return stripped_stop in mark or mark in stripped_stop or any(overlaps)


def _passed_on(names: ResolvedNames) -> RoleGraph:
    """Return a graph with an edge to each role from every role whose words its prompts may repeat.

    The edge attribute `strips` has the texts that the source's parser removes before its words are passed on.
    """
    read_turns = turns_read(names.spec)
    graph = graph_of({name: read_turns.get(name, ()) for name in names.roles})
    for name, role in names.roles.items():
        does_choose = role.run is not None and role.run.tool.choose is not None
        needed_roles = [n for key, n, _ in role.spec.edges if does_choose or key in role.mentions]
        needed_roles += names.spec.callers_of(name) if "self.arguments" in role.mentions else []
        quotes = any(re.search(r"\b(?:response|thought)\b", template.source) for template in _templates(role))
        for n in {*needed_roles} & names.roles.keys() - graph.pred[name].keys():
            parser = None if quotes else names.roles[n].parser
            graph.add_edge(n, name, strips=parser.strips if parser else ())
    return graph


def _templates(role: ResolvedRole) -> list[Template]:
    """Return the templates of a role's prompts, and the templates of its signal."""
    demonstration = role.signal.demonstration if role.signal else None
    return role.templates + ([demonstration] if demonstration else [])


@dataclass(frozen=True, slots=True)
class _Mentions:
    """Search for any of some words in all texts that a role's prompts may contain."""

    names: ResolvedNames
    passed_on: RoleGraph
    words: Sequence[str]

    def may_show(self, name: str) -> bool:
        """Return True if the role's prompts, or texts of other roles that they pass on, may contain one of
        the words."""
        words, edges = {*self.words}, self.passed_on.edges

        def passes(before: str, after: str) -> bool:
            return not words.issubset(edges[before, after].get("strips", ()))

        passed_graph = nx.subgraph_view(self.passed_on, filter_edge=passes)
        return self.may_write(name) or any(map(self.may_write, ancestors(passed_graph, name)))

    def may_write(self, name: str) -> bool:
        """Return True if the role's own prompts contain one of the words, or a part that is unknown before a
        run."""
        role = self.names.roles[name]
        return bool(
            not (role.run.value or role.run.tool.source is None if role.run else role.prompt)  # has a fault
            or self.mentioned_in([text for template in _templates(role) for text in template.literals()])
            or (role.run and (role.run.tool.permissions or role.run.session))  # a service, or a program
            or "self.observation" in role.mentions
            or ("task" in role.mentions and self.in_rows(role.spec.sees))
        )

    def in_rows(self, sees: Sequence[str]) -> bool:
        """Return True if the first row of any data split has one of the words in its visible fields, or if a
        split cannot be read.

        `sees` are the hidden fields to count as visible; without data the result is True as well.
        """
        hidden_fields = self.names.hidden - {*sees}
        try:
            rows = [row for data in self.names.data.values() for row in data.rows(1)]
        except RolegraphError:
            return True
        cells = [str(value) for row in rows for key, value in row.items() if key not in hidden_fields]
        return not rows or self.mentioned_in(cells)

    def mentioned_in(self, texts: Sequence[str]) -> bool:
        """Return True if any of the texts contains one of the words that are searched for."""
        return any(_mentions(texts, word) for word in self.words)


def _mentions(texts: Sequence[str], word: str) -> bool:
    """Return True if texts mention a word as a whole; `<x>` is mentioned by a tag's name, too."""
    joined_text = " ".join(" ".join(texts).split())
    name = word.strip("<>")
    whole_word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    if name == word:
        return whole_word.search(joined_text) is not None
    if re.search(rf"</?{re.escape(name)}\b", joined_text, re.IGNORECASE):
        return True
    is_about_tags = re.search(r"\btags?\b", joined_text, re.IGNORECASE) and whole_word.search(joined_text)
    return bool(is_about_tags) or any(text.strip("</> \n") == name for text in texts)
