"""Reward that a spec writes as an expression, with the syntax of conditions.

The engine checks and computes the expression; this file finds the task fields and parts of the action that
the expression reads, and whether its value can only be a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.parser import Parser

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import ActionRead, Formula, Reward, RewardInputs, Score, short_repr

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
    """Pay the value of an expression over `action`, `task`, `self`, `tokens` and `calls`; a bool is 1 or 0.

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
    found = [_reading(formula.text) for formula in formulas]
    fields = dict.fromkeys(field for each in found for field in each.fields)
    reads = dict.fromkeys(
        ActionRead(None, path, (), formula.place)
        for formula, each in zip(formulas, found, strict=True)
        for path in each.paths
    )
    reward = Reward(
        partial(_value, text, right, False),
        fields=tuple({**fields, **dict.fromkeys(labels or ())}),
        labels=tuple(fields if labels is None else labels),
        formulas=tuple(formulas),
        reads=tuple(reads),
    )
    judges = right is not None or not found[0].is_number
    return replace(reward, as_term=replace(reward, score=partial(_value, text, right, True), judges=judges))


def _value(
    text: str, right: str | None, is_term: bool, task: Task, action: Any, inputs: RewardInputs
) -> Score:
    earned = inputs.values[text]
    if not isinstance(earned, bool | int | float):
        raise TypeError(f"{short_repr(text)} came to {short_repr(earned)}, expected a number, true or false")
    if right is not None:
        return Score(float(earned), bool(inputs.values[right]))
    says_nothing = is_term and not isinstance(earned, bool)
    return Score(float(earned), None if says_nothing else earned >= 1)


class _Reading(NamedTuple):
    """Reading of an expression."""

    fields: Sequence[str] = ()
    """Task fields that it names, as `task.answer` or `task["answer"]`."""
    paths: Sequence[str] = ()
    """Keys of the action that it names."""
    is_number: bool = False
    """True where its value can only be a number."""


def _reading(text: str) -> _Reading:
    """Read an expression; nothing is found in a text with a fault, which the engine finds, too."""
    try:
        tree = Parser(_JINJA, text, state="variable").parse_expression()
        read = [tree, *tree.find_all(nodes.Node)]
    except (TemplateSyntaxError, RecursionError, ValueError, MemoryError):
        return _Reading()
    fields, paths = ([key for node in read if (key := _key_of(node, name))] for name in ("task", "action"))
    return _Reading(fields, paths, _is_number(tree))


def _key_of(node: nodes.Node, name: str) -> str | None:
    """Return the key of `name.key` or `name["key"]`; None for any other node."""
    match node:
        case nodes.Getattr(node=nodes.Name(name=found), attr=str(key)) if found == name:
            return key
        case nodes.Getitem(node=nodes.Name(name=found), arg=nodes.Const(value=str(key))) if found == name:
            return key
        case _:
            return None


def _is_number(node: nodes.Node) -> bool:
    """Return True where the value of an expression can only be a number, and no bool."""
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
