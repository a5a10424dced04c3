"""Calculator for a model: an expression is parsed and walked over an allow-list, never passed to `eval`.

Whole numbers stay whole and exact up to some thousand digits; numbers with a point or a remainder are floats.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from rolegraph.engine.limits.tools import CALCULATOR_BITS, CALCULATOR_DEPTH, CALCULATOR_TEXT

Number = int | float


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 20:
        raise ValueError("round takes a number of digits from -20 to 20")
    return round(value, digits)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log10", "log2", "sin", "cos", "tan")},
    **{name: getattr(math, name) for name in ("asin", "acos", "atan", "floor", "ceil", "gcd", "lcm")},
    "ln": math.log,
    "log": math.log,
    "abs": abs,
    "min": min,
    "max": max,
    "round": _round,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
KNOWN = (*_FUNCTIONS, *_CONSTANTS)
"""Names that an expression may use."""


def calculate(expression: str) -> Number:
    """Compute the value of an expression such as `2 * (3 + 4) ^ 2 / sqrt(2)`.

    Args:
        expression: The expression, in Python's signs or × · ÷ − ^.

    Returns:
        An int for a whole value, else a float with 12 significant digits.

    Raises:
        ValueError: The text is no arithmetic, or exceeds a limit; the message says why.
    """
    text = expression.strip().translate(_SIGNS)
    if not text:
        raise ValueError("there is no expression")
    if len(text) > CALCULATOR_TEXT.most:
        raise ValueError(f"the expression has {len(text):,} characters; at most {CALCULATOR_TEXT}")
    try:
        with warnings.catch_warnings(action="ignore"):  # the parser warns of odd literals
            tree = ast.parse(text, mode="eval")
        value = value_of(tree.body, CALCULATOR_DEPTH.most)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the value is too large") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression.strip()!r} is not arithmetic") from None
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise ValueError("the value is too large")
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})


def value_of(node: ast.expr, depth: int, divide: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return the value of a parsed expression.

    Args:
        node: The expression.
        depth: The largest number of nested operators and calls.
        divide: Function for `/`; None divides so that a result without a remainder is a whole number.

    Raises:
        ValueError: The expression is no arithmetic, or exceeds a limit.
        ArithmeticError: The expression divides by zero, or its value is too large.
    """
    if depth == 0:
        raise ValueError(f"the expression is nested too deeply; at most {CALCULATOR_DEPTH}")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=ast.USub(), operand=inside):
            return -value_of(inside, depth - 1, divide)
        case ast.UnaryOp(op=ast.UAdd(), operand=inside):
            return value_of(inside, depth - 1, divide)
        case ast.BinOp(left=left, op=sign, right=right):
            if type(sign) not in _OPERATIONS:
                raise ValueError(f"{type(sign).__name__} is not arithmetic")
            operation = divide if divide and isinstance(sign, ast.Div) else _OPERATIONS[type(sign)]
            return _bounded(operation(*(value_of(each, depth - 1, divide) for each in (left, right))))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            try:
                return _bounded(_FUNCTIONS[name](*(value_of(each, depth - 1, divide) for each in arguments)))
            except TypeError as error:
                raise ValueError(f"{name}: {error}") from None
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"there is no {name!r}; there is {', '.join(KNOWN)}")
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _divide(left: Number, right: Number) -> Number:
    is_exact = isinstance(left, int) and isinstance(right, int) and right != 0 and left % right == 0
    return left // right if is_exact else left / right


def _power(base: Number, exponent: Number) -> Number:
    # Checked before the power is computed, because computing it may take for ever.
    bits = base.bit_length() * exponent if isinstance(base, int) and isinstance(exponent, int) else 0
    if bits > CALCULATOR_BITS.most:
        raise ValueError(f"the value is too large; at most {CALCULATOR_BITS}")
    value: object = base**exponent
    if not isinstance(value, int | float):
        raise ValueError(f"{base} ** {exponent} is no real number")
    return value


_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > CALCULATOR_BITS.most:
        raise ValueError(f"the value is too large; at most {CALCULATOR_BITS}")
    return value
