"""Check of the text that reasoning-gym's scorers evaluate: it must not run as code.

A dozen scorers pass an answer, or a field of a row, to `eval` or to SymPy's parser, which is `eval` with more
names. Text of a model or of an untrusted file is passed on only if it can do nothing except have a value.
Every right answer passes: it is a list, or an expression of numbers, letters and known functions.
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
"""Pattern of a symbol with one letter, except N, O, Q and S, which are functions of SymPy."""
_BEYOND_VALUES = re.compile(r"""['"`\\#@:;\[\]{}]|__|\.\s*[^\W\d]""")
"""Pattern of strings, comments, brackets and attributes, none of which a number or a formula needs."""
_BITS = re.compile(r"(?:0x[\da-f]++|\d++|[+\-*<>&|^~()\s])*+", re.IGNORECASE)


def is_literal(text: str) -> bool:
    """Return True if `eval` of a text gives a literal or a name, or fails to parse, so that no code runs."""
    # As `eval` strips it, and as the scorers do.
    return _has_value(text.lstrip(" \t")) and _has_value(text.strip())


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
    """Return True if a text has only numbers, symbols and mathematical functions for SymPy's parser."""
    return _BEYOND_VALUES.search(text) is None and all(
        name in _NAMES or _LETTER.fullmatch(name) for name in _NAME.findall(text)
    )


def is_bits(text: str) -> bool:
    """Return True if a text has only integers (decimal, hex), bit operators, parentheses and spaces."""
    return _BITS.fullmatch(text) is not None


_EVALUATED: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), is_literal),
    **dict.fromkeys(("countdown", "puzzle24", "polynomial_multiplication"), is_expression),
    **dict.fromkeys(("simple_integration", "intermediate_integration"), is_expression),
}
"""Check of the answer, by the kinds of tasks whose scorers evaluate it."""


def is_harmless(kind: str, answer: str) -> bool:
    """Return True if the scorer of this kind of tasks runs no code of an answer."""
    check = _EVALUATED.get(kind)
    return check is None or check(answer)


def is_harmless_row(kind: str, answer: object, metadata: Mapping[str, Any]) -> bool:
    """Return True if the scorer of this kind of tasks runs no code of a row's answer and metadata."""
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
