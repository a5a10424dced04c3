"""Reward that a spec writes as an expression, with the syntax of conditions.

The engine checks and computes the expression; this file finds the task fields and parts of the action that
the expression reads, and whether its value can only be a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.parser import Parser

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import (
    ActionRead,
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
_NUMBERS = frozenset({"abs", "count", "float", "int", "length", "round", "sum"})
"""Filters whose value is a number."""


def value(
    expression: str | None = None,
    /,
    *,
    expr: str | None = None,
    right: str | None = None,
    labels: Sequence[str] | None = None,
) -> Reward:
    """Pay an expression over `action`, `task`, `self`, `tokens`, `calls` and `step`; a bool is 1 or 0.

    expression: the expression, with the syntax of `when`, where it stands without options
    expr: the expression, where options stand beside it
    right: the condition on which the turn is right; left out, a bool is right when it is true, and a number
      from 1, but as a term of `weighted` a number does not say what is right
    labels: task fields that give the answer away; left out, all that the expressions read
    """
    text = expression if expr is None else expr
    if text is None or (expression is not None and expr is not None):
        raise ValueError("value needs one expression, such as {value: action == task.answer}")
    formulas = [Formula(text, (0,) if expr is None else ("expr",))]
    if right is not None:
        formulas.append(Formula(right, ("right",)))
    read = [_nodes(formula.text) for formula in formulas]
    fields = dict.fromkeys(key for parts in read for key in keys_of(parts, "task"))
    reads = dict.fromkeys(
        ActionRead(None, path, (), formula.place)
        for formula, parts in zip(formulas, read, strict=True)
        for path in keys_of(parts, "action")
    )
    facts = RewardFacts(
        fields=tuple({**fields, **dict.fromkeys(labels or ())}),
        labels=tuple(fields if labels is None else labels),
        required=tuple(dict.fromkeys(key for parts in read for key in _compared(parts))),
        reads=tuple(reads),
        bounds=bounds_of_text(text) or UNIT,
    )
    judges = right is not None or not (read[0] and _is_number(read[0][0]))
    term = Reward(partial(_value, text, right, True), replace(facts, judges=judges), formulas=tuple(formulas))
    return replace(term, score=partial(_value, text, right, False), facts=facts, as_term=term)


def _value(
    text: str, right: str | None, is_term: bool, task: Task, action: Any, inputs: RewardInputs
) -> Score:
    earned = inputs.values[text]
    if not isinstance(earned, bool | int | float):
        raise TypeError(
            f"the value of {short_repr(text)} is {short_repr(earned)}, expected a number, true or false"
        )
    if right is not None:
        return Score(float(earned), bool(inputs.values[right]))
    says_nothing = is_term and not isinstance(earned, bool)
    return Score(float(earned), None if says_nothing else earned >= 1)


def bounds_of_text(text: str) -> Bounds | None:
    """Return the bounds of an expression's value, as `bounds_of`; None for a text with a fault."""
    read = _nodes(text)
    return bounds_of(read[0]) if read else None


def _nodes(text: str) -> list[nodes.Node]:
    """Parse an expression and return its syntax nodes, the root first; empty for a text with a syntax
    fault."""
    try:
        tree = Parser(_JINJA, text, state="variable").parse_expression()
        return [tree, *tree.find_all(nodes.Node)]
    except (TemplateSyntaxError, RecursionError, ValueError, MemoryError):
        return []


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
    """Yield the task fields that are compared with the action, and so must be present in each row."""
    for part in parts:
        if isinstance(part, nodes.Compare | nodes.Test):
            inside = [*part.find_all(nodes.Node)]
            if any(isinstance(node, nodes.Name) and node.name == "action" for node in inside):
                yield from keys_of(inside, "task")


def _is_number(node: nodes.Node) -> bool:
    """Return True if an expression's value can only be a number, by its syntax; False for a bool."""
    match node:
        case nodes.CondExpr():
            return node.expr2 is not None and _is_number(node.expr1) and _is_number(node.expr2)
        case nodes.Const():
            return isinstance(node.value, int | float) and not isinstance(node.value, bool)
        case nodes.Filter():
            return node.name in _NUMBERS
        case nodes.Name():
            return node.name in ("tokens", "calls")
        case _:
            return isinstance(node, nodes.BinExpr | nodes.Neg | nodes.Pos) and not isinstance(
                node, nodes.And | nodes.Or
            )
