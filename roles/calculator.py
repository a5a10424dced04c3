"""Arithmetic that a model asks for: an expression is parsed and walked over an allow-list, never evaluated.

Whole numbers stay whole and exact up to some thousand digits; what has a point or a remainder is a float.
"""

from __future__ import annotations

import ast
import math
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
"""The names that an expression may use."""


def calculate(expression: str) -> Number:
    """The value of an expression such as `2 * (3 + 4) ^ 2 / sqrt(2)`; raises ValueError with what is wrong.

    A float has 12 significant digits, and a whole value is an int.
    """
    text = expression.strip().translate(_SIGNS)
    if not text:
        raise ValueError("there is no expression")
    if len(text) > CALCULATOR_TEXT.most:
        raise ValueError(f"the expression has {len(text):,} characters; at most {CALCULATOR_TEXT}")
    try:
        with warnings.catch_warnings(action="ignore"):  # of text that is hardly Python
            tree = ast.parse(text, mode="eval")
        value = _value(tree.body, CALCULATOR_DEPTH.most)
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


def _value(node: ast.expr, depth: int) -> Number:
    if depth == 0:
        raise ValueError(f"the expression is nested too deeply; at most {CALCULATOR_DEPTH}")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=ast.USub(), operand=inside):
            return -_value(inside, depth - 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=inside):
            return _value(inside, depth - 1)
        case ast.BinOp(left=left, op=sign, right=right):
            return _bounded(_combined(sign, _value(left, depth - 1), _value(right, depth - 1)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            try:
                return _bounded(_FUNCTIONS[name](*(_value(each, depth - 1) for each in arguments)))
            except TypeError as error:
                raise ValueError(f"{name}: {error}") from None
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"there is no {name!r}; there is {', '.join(KNOWN)}")
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _combined(sign: ast.operator, left: Number, right: Number) -> Number:
    match sign:
        case ast.Div():
            exact = isinstance(left, int) and isinstance(right, int) and right != 0 and left % right == 0
            return left // right if exact else left / right
        case ast.Pow():
            return _power(left, right)
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv():
            return left // right
        case ast.Mod():
            return left % right
        case _:
            raise ValueError(f"{type(sign).__name__} is not arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    if (
        isinstance(base, int)
        and isinstance(exponent, int)
        and base.bit_length() * exponent > CALCULATOR_BITS.most
    ):
        raise ValueError(f"the value is too large; at most {CALCULATOR_BITS}")
    value: object = base**exponent
    if not isinstance(value, int | float):
        raise ValueError(f"{base} ** {exponent} is no real number")
    return value


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > CALCULATOR_BITS.most:
        raise ValueError(f"the value is too large; at most {CALCULATOR_BITS}")
    return value
