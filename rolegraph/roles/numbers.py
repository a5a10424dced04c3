r"""Numbers in a model's text, as people write them: `1,234.50`, `1{,}234`, `-$5`, `6e-3`, `2 × 10^5`, `3/4`.

Text is cut into runs of digits and of what joins digits, and a run is a number or it is refused: `1.234,56`,
`1,23`, `12:30`, `7-2` and `3 1/2` have several readings, and a wrong one would be a wrong answer that pays.
Characters around a run can make it unclear, too: `√2`, `2^n`, `5 million`. A digit after a letter belongs to
a name (`H2O`, `x1`). Time is linear in the text.
"""

from __future__ import annotations

import math
import re
import sys
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import cast

_SPACES = "\u00a0\u2006\u2007\u2008\u2009\u200a\u202f"
"""Non-breaking and thin spaces, which people write between groups of three digits."""
_GROUP = rf"(?:,\\!|\{{,\}}|\\[,;: !]|[{_SPACES},'’_~])"
_OPERATOR = r"(?:\*\*|[-+*/×÷·⋅−^xX]|\\(?:times|cdot|div)(?![A-Za-z]))"
_JOINT = rf"""(?: {_GROUP} | [.:–—‑]
    | [ ](?=[0-9]{{3}}(?![0-9]))(?<![0-9]{{4}}.)
    | [eE][-+−]?
    | [ \t]{{0,2}}{_OPERATOR}[ \t]{{0,2}}\{{?[-+−]?)"""
_NAME = r"[^\W\d_](?:[^\W_]|_(?=[^\W_]))*(?:(?<=[0-9])\.[0-9]+)*"
_FRACTION = r"\\[dt]?frac\{(?P<top>[-−]?[0-9.,]+)\}\{(?P<bottom>[0-9.,]+)\}"
_TOKENS = re.compile(
    rf"{_NAME} | (?P<fraction>{_FRACTION}) | (?P<run>(?:(?<![.\w])\.)?[0-9]+(?:{_JOINT}[0-9]+)*)", re.VERBOSE
)

_DIGITS = rf"(?:[1-9][0-9]{{0,2}}(?P<group>{_GROUP})[0-9]{{3}}(?:(?P=group)[0-9]{{3}})*|[0-9]+)"
_PLAIN = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)"
_POWER = r"(?:[eE](?P<e>[-+−]?[0-9]+)| ?(?:[xX×*·⋅]|\\times|\\cdot) ?10(?:\^|\*\*)\{?(?P<power>[-+−]?[0-9]+))"
_NUMBER = re.compile(rf"(?P<plain>{_PLAIN}){_POWER}?")
_SLASH = re.compile(r" ?/ ?")
_GROUPS = re.compile(_GROUP)

_WINDOW = 24
"""Number of characters on each side of a run of digits that are searched for a sign, a unit or a power."""
_SIGN = re.compile(r"(?:^|(?<=[^\w)\]}%+−-]))(?P<sign>[-+−])\\?[$€£¥₹]?$")
_UNCLEAR_BEFORE = re.compile(
    r"""(?: (?:^|[\s=(\[:,])[–—‒‐‑－﹣] | [±∓√∛^] | \^\{[-+−]? | _\{ | \}\{ | [-−][({] | \{[-−]\}
      | [-+−]{2} | [=(:]\s*[-−]\s+ | \\(?:sqrt|[dt]?frac)\s* | \b(?:sqrt|log|ln|exp|sin|cos|tan)\(?\s*
      | \\(?!f?box|text|math)[A-Za-z]+\{ | [^\W\d_]\. )\\?[$€£¥₹]?$""",
    re.VERBOSE,
)
_UNCLEAR_AFTER = re.compile(
    r"""\d | \}?[ ]?\^ | [⁻⁰¹²³⁴-⁹¼-¾⅐-⅞] | [kKMBT](?!\w) | \s?(?:\\pi|π|√|\\sqrt|\\frac)
      | [ -]?(?i:hundred|thousand|million|billion|trillion|dozen)s?\b""",
    re.VERBOSE,
)


def find_number(text: str, *, fractions: bool = False) -> int | float:
    """Find the last number of a text.

    Args:
        text: The text.
        fractions: True to read `3/4` as a number.

    Returns:
        An int, or a float if the number has a point, an exponent or a remainder. A whole number that no float
        can represent is always an int.

    Raises:
        ValueError: The text has no number, or the number is ambiguous, is too large or divides by zero.
    """
    runs = (match for match in _TOKENS.finditer(text) if match["run"] or match["fraction"])
    last_run = deque(runs, maxlen=1)
    if not last_run:
        raise ValueError("the answer holds no number")
    match = last_run.pop()
    start, end = match.span()
    text_before, text_after = text[max(0, start - _WINDOW) : start], text[end : end + _WINDOW]
    value = _read(match, text_before, text_after, fractions)
    sign = _SIGN.search(text_before)
    return -value if sign and sign["sign"] != "+" else value


def _read(match: re.Match[str], before: str, after: str, fractions: bool) -> int | float:
    """Return the number that a matched run of characters writes, without its sign.

    Raises ValueError if the text around it makes the number ambiguous, as in `7-2`.

    Args:
        match: The match.
        before: Text before the match.
        after: Text after the match.
        fractions: True to read `3/4` as a number.
    """
    number_texts = [match["top"], match["bottom"]] if match["fraction"] else _SLASH.split(match["run"])
    is_mixed = len(number_texts) > 1 and re.search(r"[0-9][ \t]?[-+−]?$", before)
    has_fraction = len(number_texts) == 2 and fractions
    if is_mixed or _UNCLEAR_BEFORE.search(before) or _UNCLEAR_AFTER.match(after):
        raise _unclear(f"{before[-8:]}{match[0]}{after[:8]}")
    if not (len(number_texts) == 1 or has_fraction):
        hint = "; a fraction needs `fractions: true`" if len(number_texts) == 2 else ""
        raise _unclear(match[0], hint)
    top, bottom = _value(number_texts[0]), _value(number_texts[1]) if has_fraction else 1
    if not bottom:
        raise ValueError(f"{match[0]:.40} divides by zero")
    is_whole = isinstance(top, int) and isinstance(bottom, int) and top % bottom == 0
    value = top // bottom if is_whole else top / bottom
    if not math.isfinite(value):
        raise ValueError("the number is too large")
    return value


def _unclear(text: str, hint: str = "") -> ValueError:
    return ValueError(f"{text.strip()[:40]!r} is not clearly one number{hint}")


def _value(written: str) -> int | float:
    sign, written = (-1, written[1:]) if written[:1] in ("-", "−") else (1, written)
    match = _NUMBER.fullmatch(written)
    if match is None:
        raise _unclear(written)
    plain_digits = _GROUPS.sub("", match["plain"])
    exponent = match["e"] or match["power"]
    if exponent:
        return sign * float(f"{plain_digits}e{exponent.replace('−', '-')}")
    # JSON holds no longer number, and Python refuses to read thousands of digits.
    if len(plain_digits) > sys.float_info.max_10_exp:
        return sign * float(plain_digits)
    if plain_digits.isdecimal():
        return sign * int(plain_digits)
    number = Decimal(plain_digits)
    is_whole = number == number.to_integral_value()  # `%` depends on a context that other libraries change
    return sign * (int(number) if is_whole and float(number) != number else float(number))


def exact_number_of(value: object) -> Fraction:
    """Return the exact value of a number, or of the last number or fraction in a text; raise ValueError
    without a number."""
    if isinstance(value, str):
        value = find_number(value, fractions=True)
    is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not is_finite or isinstance(value, bool):
        raise ValueError(f"{value!r:.40} is no number")
    return exact(cast("int | float", value))


def exact(number: float) -> Fraction:
    """Return a number as the Fraction that its decimal digits write: 0.1 is 1/10."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))
