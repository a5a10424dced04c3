"""Checks of texts and expressions against the types of the actions that they read. Pure.

A parser, or a tool, gives the JSON Schema of its role's actions. A finding is a fault where no action of that
schema has the value, and a warning where only some have it. Nothing is found where no schema is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from jinja2 import nodes

from rolegraph.engine.compile.names import ResolvedNames
from rolegraph.engine.compile.readable import described, inside, shape_of
from rolegraph.engine.compile.role_plan import ResolvedRole
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.prompts import Expression, Template, syntax_of
from rolegraph.engine.spec import Finding, Path
from rolegraph.engine.spec.diagnostics import Severity
from rolegraph.engine.vocabulary import LINKS, Shape
from rolegraph.engine.vocabulary.actions import BOOLEAN, TEXT

_ORDERED = ("lt", "lteq", "gt", "gteq")
_BARE = ("string", "integer", "number")
_FIELDS: Mapping[str, Shape] = {
    **dict.fromkeys(("ok", "failed", "ran", "right"), BOOLEAN),
    **dict.fromkeys(("failure", "response", "thought"), TEXT),
}
"""Types of the fields of a turn besides its action."""


class _Text(NamedTuple):
    """Template or expression of a spec, with the role that each name in it means."""

    path: Path
    text: Template | Expression
    roles: Mapping[str, str]
    owner: str = ""
    """Role whose action the name `action` means; empty for a text that cannot use `action`."""
    is_condition: bool = False


def type_findings(names: ResolvedNames) -> Iterator[Finding]:
    """Find reads and comparisons of a role's action that fail for some or all actions of its schema."""
    shapes: dict[str, Shape] = {}
    for text in _texts(names):
        yield from _ActionReader(text, lambda role: shape_of(names, role, shapes), names).faults()


def _texts(names: ResolvedNames) -> Iterator[_Text]:
    """Yield all templates and expressions of a spec, except faulty templates and expressions."""
    turns = [(name, *(f"{name}.{link}" for link in LINKS)) for name in names.roles]
    first_of_role = {name: turns_of_role[0] for turns_of_role in turns for name in turns_of_role}
    for name, role in names.roles.items():
        inputs = {key: needed_role for key, needed_role, _ in role.spec.edges if needed_role in names.roles}
        for key, text in (("prompt", role.prompt), ("system", role.system)):
            if text:
                yield _Text(("roles", name, key), text, inputs)
        if role.run and role.run.value and role.spec.run:
            path = role.spec.run.path_of(("with",) if role.run.tool.session else (0,))
            yield _Text(("roles", name, "run", *path), role.run.value, inputs)
        conditions = ((("when",), role.when), (("memory", "reset"), role.reset))
        for keys, condition in conditions:
            if condition:
                yield _Text(("roles", name, *keys), condition, inputs, is_condition=True)
        yield from _rewards(name, role, first_of_role)
    for loop, until in names.untils.items():
        if until:
            yield _Text(("loops", loop, "until"), until, first_of_role, is_condition=True)
    for name, metric in names.metrics.items():
        if metric and isinstance(metric.measure, Expression):
            yield _Text(("episode", "metrics", name), metric.measure, first_of_role)
    for correct in names.correct:
        if correct:
            yield _Text(("episode", "correct"), correct.expression, first_of_role)


def _rewards(name: str, role: ResolvedRole, every: Mapping[str, str]) -> Iterator[_Text]:
    """Yield the expressions of a role's reward, and of its `right`."""
    for text, text_path in role.reward.formulas if role.reward and role.spec.reward else ():
        formula = role.formulas.get(text)
        is_right = text == role.spec.right
        path = ("right",) if is_right else ("reward", *cast("Any", role.spec.reward).path_of(text_path))
        if formula:
            yield _Text(("roles", name, *path), formula, every, name)


@dataclass(frozen=True, slots=True)
class _ActionReader:
    text: _Text
    shape: Callable[[str], Shape]
    names: ResolvedNames

    def misread(
        self, position: int, word: str, message: str, hint: str = "", severity: Severity = "error"
    ) -> Finding:
        """Return the finding for a read of a value that an action does not have."""
        text = self.text.text
        place = text.place_of(position, word) if isinstance(text, Template) else None
        return Finding(self.text.path, message, "", hint, severity, word, offset=position, place=place)

    def faults(self) -> Iterator[Finding]:
        """Yield the faults of the text, in its order."""
        tree = syntax_of(self.text.text)
        if self.text.is_condition and (reading := self.read(tree)) and reading[1].get("type") in _BARE:
            hint = "compare it with a value"
            message = f"{reading[0]} is {described(reading[1])}: it holds unless it is empty or 0"
            yield self.misread(tree.lineno, _word(reading[0]), message, hint, "warning")
        for node in (tree, *tree.find_all(nodes.Node)):
            if isinstance(node, nodes.Getattr | nodes.Getitem):
                yield from self.field(node)
                if isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Dict):
                    yield from self.mapped(node.node, node.arg)
            elif isinstance(node, nodes.Compare):
                first_operand = node.expr
                for operand in node.ops:
                    yield from self.compared(first_operand, operand.op, operand.expr)
                    first_operand = operand.expr
            elif isinstance(node, nodes.Sub | nodes.Mul | nodes.Div | nodes.FloorDiv | nodes.Neg):
                yield from self.computed(node)

    def role(self, node: nodes.Node) -> str | None:
        """Return the role whose turn a syntax node means, such as `solver[0]`; None for a node that means no
        turn."""
        match node:
            case nodes.Name(name=name):
                return self.text.roles.get(name)
            case nodes.Getitem(node=nodes.Name(name=name), arg=nodes.Const(value=int())):
                return self.text.roles.get(name)
            case nodes.Call(node=nodes.Name(name="first" | "last"), args=[nodes.Name(name=name)]):
                return self.text.roles.get(name)
            case nodes.Getattr(node=holder, attr="chosen") if (role := self.role(holder)) is not None:
                parser = self.names.roles[role].parser
                return parser.roles[0] if parser and parser.chooses else None
            case _:
                return None

    def read(self, node: nodes.Node) -> tuple[str, Shape] | None:
        """Return (text, JSON Schema) of a node that reads an action or another field of a turn, such as
        `judge.action.score`; None for any other node."""
        match node:
            case nodes.Name(name="action") if self.text.owner:
                return "action", self.shape(self.text.owner)
            case nodes.Name(name=name) if self.text.owner and name in _FIELDS:
                return name, _FIELDS[name]
            case nodes.Getattr(node=holder, attr=name) if (role := self.role(holder)) is not None:
                shape = self.shape(role) if name == "action" else _FIELDS.get(name, {})
                return f"{role}.{name}", shape
            case (
                nodes.Getattr(node=holder, attr=key)
                | nodes.Getitem(node=holder, arg=nodes.Const(value=str(key)))
            ):
                base = self.read(holder)
                return base and (f"{base[0]}.{key}", inside(inside(base[1], "properties"), key))
            case nodes.Getitem(node=holder, arg=nodes.Const(value=int(key))):
                base = self.read(holder)
                return base and (f"{base[0]}[{key}]", inside(base[1], "items"))
            case _:
                return None

    def field(self, node: nodes.Getattr | nodes.Getitem) -> Iterator[Finding]:
        """Yield the fault of a field that the value before it cannot have."""
        key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
        match node.node:
            case nodes.Name(name=loop) if loop in self.names.spec.loops and key != "rounds":
                yield self.misread(node.lineno, str(key), f"the loop {loop} has no {key!r}", "it has rounds")
            case nodes.Getattr(node=holder, attr="chosen") if (role := self.role(holder)) is not None:
                parser = self.names.roles[role].parser
                if parser and not parser.chooses:
                    hint = f"{role} needs `parser: {{choice: ROLE}}`"
                    yield self.misread(node.lineno, "chosen", f"{role} chooses no turn", hint)
            case nodes.Getattr(node=holder, attr="terms") if (role := self.role(holder)) is not None:
                reward = self.names.rewards.get(role)
                if reward and key not in reward.facts.terms:
                    terms = ", ".join(reward.facts.terms) or "none: only a `sum` has named terms"
                    message = f"the reward of {role} has no term {key!r}; it has {terms}"
                    yield self.misread(
                        node.lineno, str(key), message, did_you_mean(str(key), reward.facts.terms)
                    )
            case _:
                pass
        holder_reading = self.read(node.node) if isinstance(key, str) else None
        if holder_reading is None or not isinstance(key, str):
            return
        text, shape = holder_reading
        properties = inside(shape, "properties")
        if "enum" in shape or shape.get("type") in (*_BARE, "boolean", "null", "array"):
            hint = "read it whole, take a position, or let its parser give JSON"
            yield self.misread(node.lineno, key, f"{text} is {described(shape)}, and has no {key!r}", hint)
        elif properties and key not in properties:
            hint = did_you_mean(key, properties) or f"it has {', '.join(properties)}"
            is_closed = shape.get("additionalProperties") is False
            message = f"{text} is {described(shape)}, and {'has' if is_closed else 'names'} no {key!r}"
            yield self.misread(node.lineno, key, message, hint, "error" if is_closed else "warning")

    def compared(self, one: nodes.Node, sign: str, other: nodes.Node) -> Iterator[Finding]:
        """Yield the fault of a comparison of a turn's value with values that it never has."""
        reading, values = self.read(one), _constants(other)
        if reading is None:
            reading, values = self.read(other), _constants(one) if sign not in ("in", "notin") else None
        if reading is None or not values or not reading[1]:
            return
        text, shape = reading
        impossible = [value for value in values if not self.may_be(shape, value, sign)]
        if len(impossible) < len(values):
            return
        listed = " or ".join(repr(value) for value in impossible)
        words = [str(word) for word in shape.get("enum", ())]
        hint = next((guess for value in impossible if (guess := did_you_mean(str(value), words))), "")
        if not hint and words:
            hint = f"it is one of {', '.join(words)}"
        if not hint and shape.get("type") == "string":
            hint = f"write number({text}), or let its parser read a number"
        verb = "compared in order with" if sign in _ORDERED else "equal to"
        word = str(impossible[0]) if isinstance(impossible[0], str) else _word(text)
        yield self.misread(one.lineno, word, f"{text} is {described(shape)}, and never {verb} {listed}", hint)

    def mapped(self, mapping: nodes.Dict, key: nodes.Node) -> Iterator[Finding]:
        """Yield the warning of a mapping without an entry for a word that the action may be."""
        reading, keys = self.read(key), _constants(nodes.List([pair.key for pair in mapping.items]))
        words = cast("Sequence[Any]", reading[1].get("enum", ())) if reading else ()
        if reading and keys and (lost := [str(word) for word in words if word not in keys]):
            message = (
                f"{reading[0]} may be {' or '.join(lost)}, which this mapping lacks: no reward is known then"
            )
            yield self.misread(mapping.lineno, "action", message, "add each word", "warning")

    def computed(self, node: nodes.BinExpr | nodes.UnaryExpr) -> Iterator[Finding]:
        """Yield the fault of arithmetic on a text in an action."""
        operands = [node.left, node.right] if isinstance(node, nodes.BinExpr) else [node.node]
        for text, shape in filter(None, map(self.read, operands)):
            words = cast("Sequence[Any]", shape.get("enum", ()))
            if shape.get("type") == "string" or any(isinstance(word, str) for word in words):
                hint = f"write number({text}), or let its parser read a number"
                if words:
                    pair_text = ", ".join(f"'{word}': {position}" for position, word in enumerate(words))
                    hint = f"give each word a number: {{{pair_text}}}[{text}]"
                yield self.misread(
                    node.lineno, _word(text), f"{text} is {described(shape)}, and no number", hint
                )

    def may_be(self, shape: Shape, value: Any, sign: str) -> bool:
        """Return True if `value SIGN constant` can hold for some value of a schema."""
        kind, is_number = shape.get("type"), isinstance(value, int | float) and not isinstance(value, bool)
        if value is None:
            return True
        if "enum" in shape:
            members = cast("Sequence[Any]", shape["enum"])
            if sign in _ORDERED:
                return any(isinstance(member, str) is isinstance(value, str) for member in members)
            return value in members
        matches = {
            "string": isinstance(value, str),
            "number": is_number,
            "integer": is_number,
            "boolean": isinstance(value, bool),
            "object": isinstance(value, dict) and sign not in _ORDERED,
            "array": isinstance(value, list | tuple),
        }
        return matches.get(kind, True) if isinstance(kind, str) else True


def _word(text: str) -> str:
    """Return the last name in a dotted text, such as `score` in `judge.action.score[0]`."""
    return text.partition("[")[0].rpartition(".")[2]


def _constants(node: nodes.Node) -> list[Any] | None:
    """Return the values that an expression of constants can have, such as both of `a if t else b`; None for
    any other expression."""
    match node:
        case nodes.Const(value=value):
            return [value]
        case nodes.CondExpr(expr1=one, expr2=nodes.Expr() as other):
            left_values, right_values = _constants(one), _constants(other)
            return None if left_values is None or right_values is None else left_values + right_values
        case nodes.List(items=items) | nodes.Tuple(items=items):
            value_lists = [_constants(item) for item in items]
            return None if None in value_lists else [v for values in value_lists for v in values or ()]
        case _:
            return None
