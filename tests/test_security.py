"""The matrix of SECURITY.md: a rule and existing tests in every field."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUESTIONS = ["run code", "get keys", "reach files", "take memory", "take time", "inject markup"]


def test_every_field_of_the_matrix_has_a_rule_and_tests_that_exist() -> None:
    rows = [
        [field.strip() for field in line.strip("| ").split(" | ")]
        for line in (ROOT / "SECURITY.md").read_text().splitlines()
        if line.startswith("|")
    ][2:]
    things = [row[0] for row in rows if row[0].startswith("**")]
    assert len(things) == len(set(things)) >= 14
    for number, fields in enumerate(rows):
        thing, question, rule, tests = fields if fields[0].startswith("**") else ["", *fields]
        assert bool(thing) == (number % len(QUESTIONS) == 0)
        assert question == QUESTIONS[number % len(QUESTIONS)]
        assert rule.endswith((".", ")")), rule
        named = re.findall(r"`([\w/]+)(?:::(\w+))?`", tests)
        assert named, question
        for file, test in named:
            text = (ROOT / "tests" / f"{file}.py").read_text()
            assert f"def {test}(" in text if test else "\ndef test_" in text or "\nasync def test_" in text
