"""Tests of `rolegraph test`, from a recording to the exit code."""

from __future__ import annotations

from pathlib import Path

from tests import replays
from tests.cli.conftest import Command


def test_a_shipped_spec_is_recorded_once_and_tested_from_then_on(rolegraph: Command, tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=8)
    made = rolegraph("test", "solver_judge", "--record", "--model", "replay:model.jsonl")
    assert made.returncode == 0, made.stderr
    assert "wrote solver_judge.answers.jsonl\nwrote solver_judge.test.yaml\n" in made.stdout
    assert "ok   figure correct: 0.125, expected exactly 0.125" in made.stdout

    again = rolegraph("test", "solver_judge", "--junit", "junit.xml")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines()[-1] == "9 hold, 0 do not"
    assert "<testsuites" in (tmp_path / "junit.xml").read_text()

    changed = rolegraph("test", "solver_judge", "roles.judge.prompt={inline: other}")
    assert changed.returncode == 1
    assert "FAIL prompts of judge: 8 of 8 changed" in changed.stdout
    assert "     +other" in changed.stdout


def test_a_fault_of_the_tests_is_shown_where_it_stands(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "solver_judge.test.yaml").write_text("expect:\n  figure: {correct: 1}\n")
    done = rolegraph("test", "solver_judge")
    assert done.returncode == 2
    assert done.stderr.startswith("solver_judge.test.yaml:2:3: error: unknown key 'figure'\n")
    assert "did you mean 'figures'?" in done.stderr
    assert "go with --record" in rolegraph("test", "solver_judge", "--model", "local").stderr
