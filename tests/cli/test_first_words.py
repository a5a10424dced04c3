"""Tests of what a newcomer types first: each gives the answer, or the command to type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SPEC = "rolegraph: 2\nname: mine\nroles:\n  solver: {prompt: solver.j2}\n"


@pytest.mark.parametrize(
    ("words", "code", "answer"),
    [
        ("help", 0, "rolegraph run solver_judge"),
        ("help train", 0, "Usage: rolegraph train"),
        ("keys", 2, "rolegraph list keys"),
        ("recipes", 2, "rolegraph list recipes"),
        ("mine.yaml", 2, "rolegraph run mine.yaml"),
        ("router", 2, "rolegraph run router"),
        ("--list", 2, "next: rolegraph list"),
        ("run", 2, "such as mine.yaml"),
        ("train", 2, "such as mine.yaml"),
        ("validate", 2, "next: rolegraph validate mine.yaml"),
        ("preview", 2, "next: rolegraph preview mine.yaml"),
    ],
)
def test_a_first_word_is_answered(
    words: str, code: int, answer: str, rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(SPEC)
    (tmp_path / "mine.test.yaml").write_text("tasks: 2\n")
    done = rolegraph(*words.split())
    assert done.returncode == code
    assert answer in done.stdout + done.stderr


def test_help_loads_no_library_that_it_does_not_need() -> None:
    heavy = ("pydantic", "jinja2", "yaml", "networkx", "numpy")
    code = "import sys; from rolegraph.cli.main import run; run(['--help']); "
    code += f"print({{*{heavy}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
