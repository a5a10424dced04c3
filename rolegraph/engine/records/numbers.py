"""Numbers as text, for pages and messages. Pure."""

from __future__ import annotations

import re


def number(value: float) -> str:
    """Format a number with three or four digits and separators of thousands."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        formatted = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"
        return f"{value:.3f}" if abs(value) < 1 and not float(value).is_integer() else formatted
    return f"{value:,.0f}" if abs(value) >= 1 else short(value)


def signed(value: float) -> str:
    """Format a number with its sign."""
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{number(abs(value))}"


def short(value: float) -> str:
    """Format a number with three digits; a very small or large number as a power of ten."""
    return re.sub(r"e([+-])0", r"e\1", f"{value:.3g}").replace("-", "−", value < 0)
