"""Tests of the messages for the broken specs in tests/data/broken, each stored beside its spec.

`python -m tests.spec.test_broken` rewrites the messages; read the diff before you commit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import UserError

BROKEN = Path(__file__).parent.parent / "data" / "broken"
ROOT = Path(__file__).parent.parent.parent
SPECS = sorted(BROKEN.glob("*.yaml"))


def message(path: Path) -> str:
    try:
        diagnostics = check_file(path.relative_to(ROOT)).diagnostics
    except UserError as error:
        return f"{error}\n"
    return "\n\n".join(map(str, diagnostics)) + "\n"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_broken_spec_says_what_is_wrong_where_and_how_to_mend_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert message(path) == path.with_suffix(".txt").read_text(encoding="utf-8")
    assert ": error: " in message(path)


def test_there_are_at_least_25_of_them() -> None:
    assert len(SPECS) >= 25


def test_the_command_shows_them_all_with_exit_code_2_and_no_traceback() -> None:
    names = [str(path.relative_to(ROOT)) for path in SPECS]
    command = [sys.executable, "-m", "rolegraph", "validate", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
    assert "internal error" not in done.stderr
    for path in SPECS:
        assert path.with_suffix(".txt").read_text(encoding="utf-8").strip() in done.stderr


if __name__ == "__main__":
    for spec in SPECS:
        spec.with_suffix(".txt").write_text(message(spec), encoding="utf-8")
