"""Tests of reading a spec's tests file, and of the diagnostics for its faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.errors import SpecError, UsageError
from rolegraph.engine.spec.expectations import read_tests


def faults(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "my.test.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as found:
        read_tests(path)
    return [
        f"{d.place.line}:{d.place.column}: {d.message} | {d.expected} | {d.hint}"
        for d in found.value.diagnostics
    ]


def test_short_forms_stand_for_mappings(tmp_path: Path) -> None:
    path = tmp_path / "my.test.yaml"
    path.write_text(
        "expect:\n"
        "  figures: {correct: 0.5, judge_acc: {at_least: 0.25, at_most: 1}}\n"
        "  tasks: {t1: {action: {judge: 7, solver 2: {contains: 3}}, reward: {judge: 1}}}\n".replace(
            "contains: 3", "contains: '3'"
        )
    )
    read = read_tests(path)
    expect = read.tests.expect
    assert str(expect.figures["correct"]) == "exactly 0.5"
    assert [expect.figures["judge_acc"].hold(value) for value in (0.2, 0.25, 1.0, 1.1)] == [
        False,
        True,
        True,
        False,
    ]
    action = expect.tasks["t1"].action
    assert [action["judge"].hold(value) for value in (7, "7")] == [True, False]
    assert action["solver 2"].hold("a 3 in it")
    assert read.answers == tmp_path / "my.answers.jsonl"


def test_all_faults_come_at_once_with_their_places(tmp_path: Path) -> None:
    assert faults(
        tmp_path,
        "prompt: same\n"
        "tasks: none\n"
        "expect:\n"
        "  figures:\n"
        "    correct: {atleast: 0.5}\n"
        "    judge_acc: half\n"
        "  tasks: {t1: {correct: 1}}\n",
    ) == [
        "1:1: unknown key 'prompt' | answers, tasks, rollouts, split, seed, prompts, expect"
        " | did you mean 'prompts'?",
        "2:8: tasks cannot be 'none' | a whole number | ",
        "5:15: unknown key 'atleast' | at_least, at_most, equals | did you mean 'at_least'?",
        "6:16: judge_acc cannot be 'half' | a mapping | ",
        "7:25: correct cannot be 1 | true or false | ",
    ]


def test_what_is_no_mapping_or_says_nothing_is_refused(tmp_path: Path) -> None:
    assert faults(tmp_path, "- one\n") == ["1:1: tests are a mapping | keys such as tasks and expect | "]
    (said,) = faults(tmp_path, "expect: {figures: {correct: {}}}\n")
    assert "at_least, at_most or equals" in said
    with pytest.raises(UsageError, match="--record"):
        read_tests(tmp_path / "none.test.yaml")


def test_a_list_where_either_a_number_or_a_mapping_is_expected_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, "expect: {failures: [{solver: 0}]}\nprompts: 7\n")
