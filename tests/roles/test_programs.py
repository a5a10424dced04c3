"""Programs are paid by the share of their tests that they pass."""

from __future__ import annotations

from typing import Any

import pytest

from engine.vocabulary import Score
from tests.roles.vocabulary import earned, reward

pytest.importorskip("pydantic_monty")

TESTS = ["assert add(2, 3) == 5", "assert add(0, 0) == 0", "assert add(-1, 1) == 0"]
ADDS = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    ("action", "score"),
    [
        (ADDS, Score(1.0, True)),
        (f"Here it is:\n```python\n{ADDS}```\nas you wished.", Score(1.0, True)),
        ("def add(a, b):\n    return a * b\n", Score(1 / 3, False)),
        ("```\nimport nothing\n```", Score(0.0, False)),
        ("", Score(0.0, False)),
    ],
)
def test_a_program_earns_the_share_of_the_tests_that_it_passes(action: str, score: Score) -> None:
    assert earned("tests", action, tests=TESTS) == score


def test_one_test_may_be_written_as_text_and_what_is_no_test_is_an_error() -> None:
    assert earned({"tests": {"field": "checks"}}, ADDS, checks=TESTS[0]).reward == 1.0
    for wrong in ([], [5], None):
        with pytest.raises(TypeError, match="must hold tests"):
            earned("tests", ADDS, tests=wrong)


def test_tests_are_hidden_need_leave_and_are_bounded_in_time() -> None:
    made: Any = reward({"tests": {"field": "checks", "timeout": 20}})
    assert (made.fields, made.labels, made.permissions) == (("checks",), ("checks",), ("python",))
    assert made.timeout == 20
