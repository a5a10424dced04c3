"""Reward that a spec writes as an expression over the turn, the task and the turns of other roles.

The engine checks and computes the expression. This file finds what the expression reads, and whether its
value says that an answer is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.parser import Parser

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import (
    OF_A_TURN,
    SCORERS,
    UNKNOWN,
    Formula,
    Reward,
    RewardFacts,
    RewardInputs,
    Score,
    short_repr,
)
from rolegraph.roles.bounds import UNIT, Bounds
from rolegraph.roles.formula_bounds import bounds_of

_JINJA = Environment()
_NO_ROLES = {*OF_A_TURN, *"task self episode range true false none True False None".split()}
"""Names that are never roles."""
_EARNED = ("reward", "right", "terms")
"""Fields of a turn that its reward determines."""


def expression(text: str, /) -> Reward:
    """Pay an expression over the turn, the task and the turns of other roles; a bool is 1 or 0.

    A number says nothing about right and wrong. A bool says it where the expression reads the task or whether
    another role is right, and the call of a scorer, such as `math(action, task.answer)`, says it.

    text: the expression, with the syntax of `when`
    """
    reading = Reading.of(text)
    fields = dict.fromkeys(keys_of(reading.parts, "task"))
    reads_turn = any(map(reading.reads, (*OF_A_TURN, "self")))
    facts = RewardFacts(
        fields=tuple(fields),
        labels=tuple(fields),
        required=tuple(dict.fromkeys(_compared(reading.parts))),
        judges=reading.is_scorer or (reading.says_right and reading.compares_task),
        verdicts=reading.right if reading.says_right else (),
        compares_verdicts=reading.right,
        outcomes=() if reads_turn else reading.roles,
        bounds=reading.bounds or UNIT,
    )
    earned_roles, views = reading.earned, tuple(it for it in reading.roles if it not in reading.earned)
    return Reward(
        partial(_value, text, reading.says_right),
        facts,
        roles=earned_roles,
        views=views,
        formulas=(Formula(text, (0,)),),
        delegates=bool(reading.roles) and not reads_turn,
    )


def _value(text: str, says_right: bool, task: Task, action: Any, inputs: RewardInputs) -> Score:
    value = inputs.values[text]
    if value is UNKNOWN:
        return Score(None, None)
    if not isinstance(value, bool | int | float):
        raise TypeError(
            f"the value of {short_repr(text)} is {short_repr(value)}, expected a number, true or false"
        )
    return Score(float(value), value >= 1 if says_right else None)


def bounds_of_text(text: str) -> Bounds | None:
    """Return the bounds of an expression's value, as `bounds_of`; None for a text with a fault."""
    return Reading.of(text).bounds


class Reading(NamedTuple):
    """Names and fields that an expression reads; empty for a text with a syntax fault."""

    parts: list[nodes.Node]
    """All nodes of the expression's syntax tree, the root first."""

    @classmethod
    def of(cls, text: str) -> Reading:
        """Parse an expression."""
        try:
            tree = Parser(_JINJA, text, state="variable").parse_expression()
            return cls([tree, *tree.find_all(nodes.Node)])
        except (TemplateSyntaxError, RecursionError, ValueError, MemoryError):
            return cls([])

    @property
    def bounds(self) -> Bounds | None:
        """Bounds of the value; None if it may be any value."""
        return bounds_of(self.parts[0]) if self.parts else None

    @property
    def roles(self) -> tuple[str, ...]:
        """Names in the expression that may be roles."""
        called_nodes = {id(part.node) for part in self.parts if isinstance(part, nodes.Call)}
        name_nodes = (it for it in self.parts if isinstance(it, nodes.Name) and id(it) not in called_nodes)
        return tuple(dict.fromkeys(it.name for it in name_nodes if it.name not in _NO_ROLES))

    def reads(self, name: str) -> bool:
        """Return True if the expression reads a plain value, such as `action`."""
        return any(isinstance(it, nodes.Name) and it.name == name for it in self.parts)

    @property
    def earned(self) -> tuple[str, ...]:
        """Roles whose reward, terms or verdict the expression reads."""
        return self._with(_EARNED)

    @property
    def right(self) -> tuple[str, ...]:
        """Roles whose verdict, right or wrong, the expression reads."""
        return self._with(("right",))

    def _with(self, fields: Iterable[str]) -> tuple[str, ...]:
        field_names = {*fields}
        if any(isinstance(it, nodes.Const) and str(it.value) in field_names for it in self.parts):
            return self.roles  # a filter looks the field up
        holders = (
            _holder(it.node) for it in self.parts if isinstance(it, nodes.Getattr) and it.attr in field_names
        )
        return tuple(name for name in dict.fromkeys(holders) if name in self.roles)

    @property
    def compares_task(self) -> bool:
        """True if the expression reads the task."""
        return self.reads("task")

    @property
    def says_right(self) -> bool:
        """True if the value says that the answer is right."""
        by_others = bool(self.parts) and _is_bool(self.parts[0]) and bool(self.compares_task or self.right)
        return self.is_scorer or by_others

    @property
    def is_scorer(self) -> bool:
        """True for a call of a scorer, such as `math(action, task.answer)`."""
        match self.parts:
            case [nodes.Call(node=nodes.Name(name=name)), *_]:
                return name in SCORERS
            case _:
                return False


def _holder(node: nodes.Node) -> str:
    """Return the name before fields and items, such as `judge` of `judge[0].chosen`; empty without a name."""
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        node = node.node
    return node.name if isinstance(node, nodes.Name) else ""


def _is_bool(node: nodes.Node) -> bool:
    """Return True if an expression's value can only be a bool, by its syntax."""
    match node:
        case nodes.Compare() | nodes.Not() | nodes.Test():
            return True
        case nodes.And() | nodes.Or():
            return _is_bool(node.left) and _is_bool(node.right)
        case nodes.CondExpr(expr1=one, expr2=nodes.Expr() as other):
            return _is_bool(one) and _is_bool(other)
        case nodes.Const(value=bool()) | nodes.Getattr(attr="right" | "ok" | "ran" | "failed"):
            return True
        case nodes.Name(name="ok"):
            return True
        case nodes.Filter(name="default" | "d", node=nodes.Expr() as inner, args=[given]):
            return _is_bool(inner) and _is_bool(given)
        case nodes.Call(node=nodes.Name(name="any" | "all")):
            return True
        case _:
            return False


def keys_of(parts: list[nodes.Node], name: str) -> Iterator[str]:
    """Yield the keys of the variable `name` that nodes read, as `name.key` or `name["key"]`."""
    for node in parts:
        match node:
            case nodes.Getattr(node=nodes.Name(name=holder), attr=str(key)) if holder == name:
                yield key
            case nodes.Getitem(node=nodes.Name(name=holder), arg=nodes.Const(value=str(key))) if (
                holder == name
            ):
                yield key
            case _:
                pass


def _compared(parts: list[nodes.Node]) -> Iterator[str]:
    """Yield the task fields that are compared with the action, which every row must therefore have."""
    for part in parts:
        if isinstance(part, nodes.Compare | nodes.Test | nodes.Call):
            inner_nodes = [*part.find_all(nodes.Node)]
            if any(isinstance(node, nodes.Name) and node.name == "action" for node in inner_nodes):
                yield from keys_of(inner_nodes, "task")
