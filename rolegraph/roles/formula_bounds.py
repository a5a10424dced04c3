"""Smallest and largest values of an expression, derived from its syntax. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import inf

from jinja2 import nodes

from rolegraph.roles.bounds import COUNT, UNIT, Bounds, added, product, quotient, scaled, union


def bounds_of(node: nodes.Node) -> Bounds | None:
    """Return the bounds of an expression's value; None if it may be any value.

    Args:
        node: Root of the expression in Jinja2's syntax tree.
    """
    match node:
        case nodes.Const(value=bool() | int() | float() as value):
            return float(value), float(value)
        case nodes.Compare() | nodes.Not() | nodes.Test() | nodes.Getattr(attr="reward" | "right"):
            return UNIT
        case nodes.Name(name="tokens" | "calls" | "step"):
            return COUNT
        case nodes.Neg():
            return _each(node.node, lambda a: scaled(a, -1.0))
        case nodes.Pos():
            return bounds_of(node.node)
        case nodes.CondExpr(expr2=nodes.Expr() as other):
            return _both(node.expr1, other, union)
        case nodes.And() | nodes.Or():
            return _both(node.left, node.right, union)
        case nodes.BinExpr() if type(node) in _OPERATORS:
            return _both(node.left, node.right, _OPERATORS[type(node)])
        case nodes.Filter():
            return _of_filter(node)
        case _:
            return None


_Join = Callable[[Bounds, Bounds], Bounds | None]
_OPERATORS: Mapping[type[nodes.Node], _Join] = {
    nodes.Add: added,
    nodes.Sub: lambda one, other: added(one, scaled(other, -1.0)),
    nodes.Mul: product,
    nodes.Div: quotient,
    nodes.FloorDiv: quotient,
}


def _each(node: nodes.Node, change: Callable[[Bounds], Bounds]) -> Bounds | None:
    bounds = bounds_of(node)
    return None if bounds is None else change(bounds)


def _both(one: nodes.Node, other: nodes.Node, join: _Join) -> Bounds | None:
    first_bounds, second_bounds = bounds_of(one), bounds_of(other)
    return None if first_bounds is None or second_bounds is None else join(first_bounds, second_bounds)


def _of_filter(node: nodes.Filter) -> Bounds | None:
    """Return the bounds of a Jinja2 filter's value, such as `[0, 1 - tokens / 100] | max`; None if
    unknown."""
    if node.name in ("length", "count"):
        return COUNT
    if node.name in ("min", "max", "sum") and isinstance(node.node, nodes.List):
        return _of_list(node.name, node.node)
    bounds = None if node.node is None else bounds_of(node.node)
    if node.name == "abs":
        return COUNT if bounds is None else _absolute(bounds)
    return bounds if node.name in ("float", "int", "round") else None


def _of_list(name: str, listed: nodes.List) -> Bounds | None:
    """Return the bounds of the `min`, `max` or `sum` of a list's items; None if unknown.

    The minimum is at most the upper bound of any item, the maximum at least the lower bound of any item.
    """
    item_bounds = [bounds_of(item) for item in listed.items]
    known_bounds = [bounds for bounds in item_bounds if bounds is not None]
    is_whole = len(known_bounds) == len(item_bounds)
    if not known_bounds or (name == "sum" and not is_whole):
        return None
    if name == "sum":
        return reduce(added, known_bounds)
    lower_ends, upper_ends = ([bounds[end] for bounds in known_bounds] for end in (0, 1))
    if name == "min":
        return (min(lower_ends) if is_whole else -inf), min(upper_ends)
    return max(lower_ends), (max(upper_ends) if is_whole else inf)


def _absolute(bounds: Bounds) -> Bounds:
    low, high = sorted(map(abs, bounds))
    return (0.0 if bounds[0] <= 0 <= bounds[1] else low), high
