"""Which text the scorers of reasoning-gym may be given: what cannot run as code in them.

A dozen of them hand an answer, or what a row holds, to `eval`, or to SymPy's parser, which is `eval` with
more names. What a model or a stranger's file says gets there only where all that it can do is to have a
value. A right answer always may: it is a list, or an expression of numbers, letters and known functions.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

_NAMES = frozenset(
    "Abs Integral acos acosh asin asinh atan atanh const constant cos cosh cot csc erf exp ln log oo pi sec "
    "sin sinh sqrt tan tanh".split()
)
_NAME = re.compile(r"[^\W\d]\w*")
_LETTER = re.compile(r"[A-MPRT-Za-z]_?\d*", re.ASCII)
"""A symbol of one letter; SymPy's N, O, Q and S do things."""
_BEYOND_VALUES = re.compile(r"""['"`\\#@:;\[\]{}]|__|\.\s*[^\W\d]""")
"""Text within text, a comment, something that belongs to something."""
_BITS = re.compile(r"(?:0x[\da-f]++|\d++|[+\-*<>&|^~()\s])*+", re.IGNORECASE)


def is_literal(text: str) -> bool:
    """Whether `eval` would find a literal or no more than a name, or could not read the text at all."""
    return all(map(_has_value, {text.lstrip(" \t"), text.strip()}))  # as `eval` strips it, and as they do


def _has_value(code: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(code, mode="eval")
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return True
    try:
        ast.literal_eval(tree)
    except (MemoryError, RecursionError, TypeError, ValueError):
        return isinstance(tree.body, ast.Name)
    return True


def is_expression(text: str) -> bool:
    """Whether SymPy's parser would find numbers, symbols and functions of mathematics, and nothing else."""
    return _BEYOND_VALUES.search(text) is None and all(
        name in _NAMES or _LETTER.fullmatch(name) for name in _NAME.findall(text)
    )


def is_bits(text: str) -> bool:
    """Whether it is arithmetic on whole and hexadecimal numbers."""
    return _BITS.fullmatch(text) is not None


_EVALUATED: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), is_literal),
    **dict.fromkeys(("countdown", "puzzle24", "polynomial_multiplication"), is_expression),
    **dict.fromkeys(("simple_integration", "intermediate_integration"), is_expression),
}
"""The kinds whose scorers evaluate the answer, and what it may be."""


def is_harmless(kind: str, answer: str) -> bool:
    """Whether the scorer of that kind evaluates no more of the answer than a value."""
    check = _EVALUATED.get(kind)
    return check is None or check(answer)


def is_harmless_row(kind: str, answer: object, metadata: Mapping[str, Any]) -> bool:
    """The same of what the row itself holds."""
    match kind:
        case "number_sorting":
            return is_literal(str(answer))
        case "polynomial_multiplication":
            return is_expression(str(answer))
        case "simple_integration" | "intermediate_integration":
            return is_expression(str(metadata.get("integrand")))
        case "bitwise_arithmetic":
            return is_bits(str(metadata.get("problem")))
        case _:
            return True
