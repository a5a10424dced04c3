"""Numbers in a model's text, as people write them: `1,234.50`, `-$5`, `6e-3` and, as an option, `3/4`.

A digit right behind a letter belongs to a name (`H2O`, `x1`), and a minus behind a digit, a letter or a
closing bracket is a subtraction or a dash (`7-2`, `10-12`). Time is linear in the text.
"""

from __future__ import annotations

import math
import re
import sys
from collections import deque
from itertools import islice
from typing import Literal

Which = Literal["first", "last"]

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_UNSIGNED = rf"(?:{_WHOLE}(?:\.[0-9]+)?|(?<!\.)\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_SIGN = r"(?:(?<![\w)\]}%-])(?P<sign>[-+−])[$€£]?)?"
_NUMBER = rf"{_SIGN}(?<![^\W_])(?<![0-9]\.)(?P<top>{_UNSIGNED})"
_FRACTION = rf"{_NUMBER}(?: ?/ ?(?P<bottom>{_UNSIGNED}))?"


def find_number(text: str, *, which: Which = "last", fractions: bool = False) -> int | float:
    """Find the first or last number of a text.

    Args:
        text: The text.
        which: The number to return, the first or the last.
        fractions: Read `3/4` as one number instead of two.

    Returns:
        An int, or a float where the number has a point, an exponent or a remainder.

    Raises:
        ValueError: The text holds no number, or the number is too large or divides by zero.
    """
    matches = re.finditer(_FRACTION if fractions else _NUMBER, text)
    kept = deque(islice(matches, 1) if which == "first" else matches, maxlen=1)
    if not kept:
        raise ValueError("the answer holds no number")
    match = kept.pop()
    top = _value(match["top"])
    bottom = _value(match["bottom"] or "1") if fractions else 1
    if not bottom:
        raise ValueError(f"{match[0]} divides by zero")
    whole = isinstance(top, int) and isinstance(bottom, int) and top % bottom == 0
    value = top // bottom if whole else top / bottom
    if not math.isfinite(value):
        raise ValueError("the number is too large")
    return -value if match["sign"] in ("-", "−") else value


def _value(written: str) -> int | float:
    plain = written.replace(",", "")
    # JSON holds no longer number, and Python refuses to read thousands of digits.
    if plain.isdecimal() and len(plain) <= sys.float_info.max_10_exp:
        return int(plain)
    return float(plain)


def number_of(value: object) -> float:
    """Return a number, or the last number or fraction of a text; raise ValueError without a number."""
    if isinstance(value, str):
        value = find_number(value, fractions=True)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{value!r:.40} is no number")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError("a number that is too large") from error
