"""Programs are paid by the share of their tests that they pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.errors import SandboxError
from rolegraph.engine.vocabulary import Score
from tests.cli.conftest import Command
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
    for wrong in ([5], {"a": 1}):
        with pytest.raises(TypeError, match="must hold tests"):
            earned("tests", ADDS, tests=wrong)


NEAR = "abs(float(action) - task['answer']) < 0.5"


@pytest.mark.parametrize(
    ("code", "action", "score"),
    [
        (NEAR, "6.9", Score(1.0, True)),
        (NEAR, "6", Score(0.0, False)),
        ("1 / len(action)", "four", Score(0.25, False)),
        ("n = 0\nfor x in action['found']:\n    n += x\nn", {"found": [1, 2]}, Score(3.0, True)),
        ("task.get('missing', 0.5)", "", Score(0.5, False)),
    ],
)
def test_a_program_of_the_spec_says_what_is_earned(code: str, action: Any, score: Score) -> None:
    assert earned({"python": code}, action, answer=7) == score


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (NEAR, "could not convert"),
        ("open('/etc/passwd').read()", "."),
        ("'much'", "value of the program is 'much', expected a number"),
        ("[n for n in range(10 ** 12)]", "."),
    ],
)
def test_a_program_that_fails_or_would_get_out_is_an_error(code: str, error: str) -> None:
    with pytest.raises((SandboxError, TypeError), match=error):
        earned({"python": code, "seconds": 1}, "seven", answer=7)


def test_a_program_says_what_it_reads_and_what_no_prompt_may_show() -> None:
    made: Any = reward({"python": NEAR, "labels": ["key"]})
    assert (made.facts.fields, made.facts.labels) == (("key", "answer"), ("key",))
    assert (made.permissions, made.timeout) == (("python",), 60.0)


def test_tests_are_hidden_need_leave_and_are_bounded_in_time() -> None:
    made: Any = reward({"tests": {"field": "checks", "timeout": 20}})
    assert (made.facts.fields, made.facts.labels, made.permissions) == (("checks",), ("checks",), ("python",))
    assert made.timeout == 20


@pytest.mark.parametrize(
    ("code", "labels"),
    [
        ("action == task['answer']", ("answer",)),
        ("action == task.get('answer')", ("answer",)),
        ("key = 'answer'\naction == task[key]", ("answer",)),
        ("gold = task\naction == gold['answer']", ("answer",)),
        ("len(action) > 3", ()),
    ],
)
def test_a_program_hides_the_fields_that_it_reads(code: str, labels: tuple[str, ...]) -> None:
    assert reward({"python": code}).facts.labels == labels
    assert reward({"python": code, "labels": []}).facts.labels == ()


def test_no_prompt_shows_a_field_that_a_program_reads(tmp_path: Path, rolegraph: Command) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "?", "answer": 7}\n')
    solver = {
        "prompt": "{{ task.question }} {{ task.answer }}",
        "parser": "text",
        "reward": {"python": "action == str(task['answer'])"},
    }
    spec = {"rolegraph": 2, "name": "x", "data": {"validation": "rows.jsonl"}, "roles": {"solver": solver}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    checked = rolegraph("validate", "spec.yaml")
    assert checked.returncode == 2
    assert "task.answer" in checked.stderr
