"""Tests of `rolegraph test`, from a recording to the exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from starlette.responses import Response

from tests import replays
from tests.cli.conftest import ENVIRONMENT, Command
from tests.models.edges import chat_answer, serving


def test_a_shipped_spec_is_recorded_once_and_tested_from_then_on(rolegraph: Command, tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=8)
    made = rolegraph("test", "solver_judge", "--record", "--model", "replay:model.jsonl")
    assert made.returncode == 0, made.stderr
    assert "wrote solver_judge.answers.jsonl\nwrote solver_judge.test.yaml\n" in made.stdout
    assert "ok   figure correct: 0.125 (n 8 tasks), expected exactly 0.125" in made.stdout

    again = rolegraph("test", "solver_judge", "--junit", "junit.xml")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines()[-1] == "9 hold, 0 do not"
    assert "<testsuites" in (tmp_path / "junit.xml").read_text()

    changed = rolegraph("test", "solver_judge", "roles.judge.prompt=other")
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


def test_a_recording_that_is_interrupted_ends_at_once(tmp_path: Path) -> None:
    asked, ended = threading.Event(), threading.Event()

    def never(body: dict[str, Any]) -> Response:
        asked.set()
        ended.wait()
        return chat_answer("late")

    (tmp_path / "own.yaml").write_text("extends: solver_judge.yaml\nname: own\n")
    with serving(never) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        process = subprocess.Popen(
            [sys.executable, "-m", "rolegraph", "test", "own.yaml", "--record", *where],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert asked.wait(300)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=300)[1]  # before the endpoint answers
        ended.set()
    assert process.returncode == 130 and "Traceback" not in said
    assert not (tmp_path / "own.test.yaml").exists()
