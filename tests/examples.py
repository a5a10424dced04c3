"""Number of examples, and the part of a corpus, of the tests with the most work."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from hypothesis import settings

Case = TypeVar("Case")
DAY = "ROLEGRAPH_TESTS_DAY"
"""Variable with the day whose sample is tested, by default today in UTC: the failed sample of another day."""


def examples(most: int) -> settings:
    """Return the settings for `most` examples under the profile `random`, and for a fifth of them else."""
    return settings(max_examples=repetitions(most, most // 5))


def repetitions(most: int, few: int) -> int:
    """Return `most` under the profile `random`, and else `few`."""
    return most if is_whole() else few


def sample(cases: Sequence[Case], few: int) -> list[Case]:
    """Return the cases of the day, `few` of them in their order; all under the profile `random`.

    Args:
        cases: All cases of a corpus.
        few: Number of cases of a day.
    """
    if is_whole() or few >= len(cases):
        return [*cases]
    drawn = random.Random(day()).sample(range(len(cases)), few)
    return [cases[number] for number in sorted(drawn)]


def is_whole() -> bool:
    """Return True under the profile `random`, with which all cases are tested."""
    return settings.get_current_profile_name() == "random"


def day() -> str:
    """Return the day whose sample is tested, which the processes of one run share."""
    return os.environ.setdefault(DAY, datetime.now(UTC).date().isoformat())
