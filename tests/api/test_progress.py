"""Tests of the progress bar of `rg.run` and `rg.train`: a terminal has one unless a flag turns it off."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT
from tests.terminals import read_terminal

SCRIPT = """
import rolegraph as rg
flow = rg.load("alone.yaml")
rg.run(flow, limit=10, progress=PROGRESS)
"""


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"),
    [("True", True, True), ("False", True, False), ("True", False, False)],
)
def test_a_terminal_shows_a_bar_unless_it_is_turned_off(
    tmp_path: Path, progress: str, terminal: bool, shown: bool
) -> None:
    script = SCRIPT.replace("PROGRESS", progress)
    (tmp_path / "rows.jsonl").write_text('{"id": "a"}\n')
    spec = "rolegraph: 2\nname: alone\ndata: {validation: rows.jsonl}\nmodel: replay:none.jsonl\n"
    (tmp_path / "alone.yaml").write_text(f'{spec}roles:\n  adder: {{run: {{calculator: "3 + 4"}}}}\n')
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "80"},
        stderr=theirs,
    ) as process:
        os.close(theirs)
        written = read_terminal(ours)
    assert process.returncode == 0, written
    assert bool(re.search(rb"episodes.*\d:\d\d:\d\d", written)) == shown
