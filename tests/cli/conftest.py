"""Fixtures that run the command, in this process or, if the test needs one, in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from rolegraph.cli.main import run
from tests.forks import run_forked
from tests.run.test_replay_parity import CASES

ROOT = Path(__file__).parent.parent.parent

Command = Callable[..., subprocess.CompletedProcess[str]]
SETTINGS = {"COLUMNS": "100", "TINKER_TELEMETRY": "0"}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), **SETTINGS}


@pytest.fixture
def rolegraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None) -> Command:
    """Return a function that runs the command in this process and returns its output and exit code."""

    def run_here(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        said, noted = StringIO(), StringIO()
        with monkeypatch.context() as here, redirect_stdout(said), redirect_stderr(noted):
            here.chdir(tmp_path)
            here.setattr(sys, "argv", sys.argv)
            for name, value in {**SETTINGS, **environment}.items():
                here.setenv(name, value)
            code = run(words)
        return subprocess.CompletedProcess(words, code, said.getvalue(), noted.getvalue())

    return run_here


@pytest.fixture
def process(tmp_path: Path) -> Command:
    """Return a function that runs the command in a child process."""

    def run_apart(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_anew(words, cwd=tmp_path, env={**ENVIRONMENT, **environment})

    return run_apart


def run_anew(words: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `rolegraph WORDS` in a process that starts anew."""
    command = [sys.executable, "-m", "rolegraph", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def forked(tmp_path: Path) -> Command:
    """Return a function that runs the command in a child process, where its start does not matter."""

    def run_there(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_forked(words, cwd=tmp_path, env={**ENVIRONMENT, **environment})

    return run_there


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Write episodes on the first ten countdown tasks as `rolegraph run` does, and return the file."""
    from rolegraph.roles.countdown import generate

    tasks = generate(10, seed=0, split="validation")
    lines: list[str] = []
    for task, case in zip(tasks, CASES, strict=False):
        answers = [
            ("solver", 1, f"<answer>{task['solution']}</answer>"),
            ("solver", 2, case["solver_responses"][1]),
        ]
        answers.append(("judge", 1, "<answer>1</answer>"))
        trajectories = [
            {
                "name": name,
                "uid": "",
                "task": None,
                "reward": 0.0,
                "info": {"index": index},
                "steps": [step(text)],
            }
            for name, index, text in answers
        ]
        episode = {"id": f"{task['id']}:0", "task": task, "is_correct": False, "trajectories": trajectories}
        lines.append(json.dumps(episode) + "\n")
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(lines))
    return path


def step(text: str) -> dict[str, object]:
    return {
        "prompt_ids": [1],
        "response_ids": [2, 3],
        "logprobs": [-0.1, -0.2],
        "chat_completions": [],
        "model_response": text,
    }
