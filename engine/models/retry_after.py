"""The wait that a server asks for: `Retry-After` of a 429 or 503, and OpenAI's `retry-after-ms`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait from now; None where no header says so in a known form."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _seconds(headers.get(name, "").strip())
        if seconds is not None:
            return max(0.0, seconds * unit)
    return None


def _seconds(text: str) -> float | None:
    """Read a number of seconds, or a date as the seconds until it."""
    try:
        number = float(text)
    except ValueError:
        try:
            return parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError, OSError):
            return None
    return number if math.isfinite(number) else None
