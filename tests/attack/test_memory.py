"""Commands of a process that may take no more memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="depends on the stacks of threads")


def test_a_thread_without_memory_is_no_bug_of_the_command(
    process: Command, recording: Path, tmp_path: Path
) -> None:
    # More than the addresses of a process: the system refuses each new thread.
    (tmp_path / "large.py").write_text("import threading\nthreading.stack_size(1 << 47)\n")
    words = ("run", "solver_judge", "--model", f"replay:{recording}", "--limit", "2", "--out", "out")
    ended = process(*words, "--import", "large.py")
    assert ended.returncode == 1, ended.stderr
    assert "not enough memory" in ended.stderr and "--resume" in ended.stderr
    assert "internal error" not in ended.stderr and "Traceback" not in ended.stderr
    again = process(*words[:-2], "--out", "again")
    assert again.returncode == 0, again.stderr
