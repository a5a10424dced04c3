"""Tests that a command without a terminal, as in CI, prints lines of progress while it waits."""

from __future__ import annotations

import re
import threading
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph.cli.main import run
from rolegraph.engine.vocabulary.items import Task
from rolegraph.local.launcher import LocalService
from tests.models.edges import chat_answer, serving
from tests.trainings import STEP, at

DEADLOCK = 60.0
HELD = ("roles.solver.reward=held",)


class Screen(StringIO):
    """Standard error, which notes when a line that fits a pattern was printed."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.printed = threading.Event()
        self.awaited = ""

    def write(self, s: str, /) -> int:
        count = super().write(s)
        if self.awaited and re.search(self.awaited, self.getvalue(), re.MULTILINE):
            self.printed.set()
            self.file.touch()
        return count

    def run(self, *words: str) -> int:
        """Run the command with its standard error here, and return its exit code."""
        with redirect_stderr(self):
            return run(words)


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None) -> Screen:
    """Return a standard error, shorten the time between lines, and register a reward that waits for one."""
    monkeypatch.setattr("rolegraph.api.progress.LINE_SECONDS", 0.05)
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.chdir(tmp_path)
    screen = Screen(tmp_path / "printed")

    file = screen.file

    @rg.reward("held")
    def held(task: Task, action: object) -> float:  # in a process of its own
        while not file.exists():
            time.sleep(0.02)
        return 0.0

    return screen


def test_a_run_whose_server_is_slow_prints_lines(screen: Screen) -> None:
    screen.awaited = r"^0% solver_judge 0/2 .*$\n"

    def answer(_: object) -> Response:
        assert screen.printed.wait(DEADLOCK)
        return chat_answer("<answer>1</answer>")

    with serving(answer) as endpoint:
        words = ("run", "solver_judge", "--limit", "2", "--model", "openai:tiny")
        assert screen.run(*words, "--base-url", endpoint.base_url) == 0
    assert re.search(r"^100% solver_judge 2/2 .*correct 0\.0%$", screen.getvalue(), re.MULTILINE)


def test_quiet_prints_no_lines(screen: Screen) -> None:
    with serving(lambda _: chat_answer("<answer>1</answer>")) as endpoint:
        words = ("run", "solver_judge", "--limit", "2", "--model", "openai:tiny", "--quiet")
        assert screen.run(*words, "--base-url", endpoint.base_url) == 0
    assert "solver_judge" not in screen.getvalue()


@pytest.mark.service
def test_a_training_prints_lines_within_a_part_of_a_step(
    screen: Screen, service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    screen.awaited = r"^\d+% step 0: validation .*$\n"
    assert screen.run("train", "solver_judge", *HELD, *STEP, *at(service), "--out", "out") == 0
    assert screen.printed.is_set()


@pytest.mark.service
def test_an_evaluation_prints_lines_within_a_side(
    screen: Screen, service: LocalService, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    screen.awaited = r"^\d+% the base model .*$\n"
    words = ("eval", "solver_judge", *HELD, "--checkpoint", str(whole), "--tasks", "2", "--rollouts", "1")
    assert screen.run(*words, *at(service), "--out", "out") == 0
    assert screen.printed.is_set()
