"""Worker processes of the roles, started where files shadow modules of the standard library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SHADOWS = ("engine", "json", "logging", "random", "roles", "signal", "types", "typing")
READ = "from rolegraph.roles.tables import read_table; print([row for _, row in read_table(path)])"
PLAY = "from rolegraph.integrations.textarena.arena import players; print(players('TicTacToe-v0', {}))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with a file for each of `SHADOWS` that leaves a trace when it runs, and then fails."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\nraise RuntimeError\n")
    return tmp_path


def printed(code: str, folder: Path) -> str:
    """Run code in the folder, whose files are not on the path of the process itself; return its output."""
    command = [sys.executable, "-P", "-c", f"from pathlib import Path; path = Path('rows.parquet'); {code}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [*folder.glob("ran-*")]
    return done.stdout.strip()


def test_a_parquet_file_is_read_beside_files_that_shadow_modules(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"a": [1, 2]}), folder / "rows.parquet")
    assert printed(READ, folder) == "[{'a': 1}, {'a': 2}]"


@pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="needs the extra `textarena`")
def test_a_game_is_played_beside_files_that_shadow_modules(folder: Path) -> None:
    assert printed(PLAY, folder) == "(2, 2)"
