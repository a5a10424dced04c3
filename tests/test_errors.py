"""Tests of the suggestions in error messages."""

from __future__ import annotations

import pytest

from rolegraph.engine.errors import did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("jugde", ["solver", "judge"], "did you mean 'judge'?"),
        ("qwen/qwen3-8b", ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"], "did you mean 'Qwen/Qwen3-8B'?"),
        ("something else", ["solver", "judge"], ""),
        ("judge", [], ""),
    ],
)
def test_a_misspelt_name_brings_the_nearest_that_is_known(name: str, known: list[str], hint: str) -> None:
    assert did_you_mean(name, known) == hint


def test_the_name_is_shown_as_it_would_be_written() -> None:
    assert did_you_mean("anser", {"answer": 1}, "task.{}") == "did you mean task.answer?"
