"""The matrix of attacks and tests: a rule and existing tests in every field."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FURTHER = {"forge a turn", "reveal hidden fields", "write outside"}
"""Questions that concern one thing only."""
QUESTIONS = ["run code", "get keys", "reach files", "take memory", "take time", "inject markup"]


def test_every_field_of_the_matrix_has_a_rule_and_tests_that_exist() -> None:
    rows = [
        [field.strip() for field in line.strip("| ").split(" | ")]
        for line in (ROOT / "docs" / "attacks.md").read_text("utf-8").splitlines()
        if line.startswith("|")
    ][2:]
    things = [row[0] for row in rows if row[0].startswith("**")]
    assert len(things) == len(set(things)) >= 14
    asked: list[list[str]] = []
    for fields in rows:
        thing, question, rule, tests = fields if fields[0].startswith("**") else ["", *fields]
        if thing:
            asked.append([])
        asked[-1].append(question)
        assert rule.endswith((".", ")")), rule
        named = re.findall(r"`([\w/]+)(?:::(\w+))?`", tests)
        assert named, question
        for file, test in named:
            text = (ROOT / "tests" / f"{file}.py").read_text()
            assert f"def {test}(" in text if test else "\ndef test_" in text or "\nasync def test_" in text
    for questions in asked:
        assert questions[: len(QUESTIONS)] == QUESTIONS
        assert {*questions[len(QUESTIONS) :]} <= FURTHER
