"""Tests of the messages for the broken specs in tests/data/broken.md, each stored beside its spec.

`python -m tests.spec.test_broken` rewrites the messages; read the diff before you commit.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import UserError
from tests.documents import as_cases, cases_in

DOCUMENT = Path(__file__).parent.parent / "data" / "broken.md"
CASES = cases_in(DOCUMENT)
"""Files of each broken spec: the spec, its message, and a template where it has one of its own."""


def write_all(folder: Path) -> None:
    """Write the files of all specs into a folder."""
    for files in CASES.values():
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")


def message(name: str) -> str:
    """Return the message for a spec of the current folder."""
    try:
        diagnostics = check_file(Path(f"{name}.yaml")).diagnostics
    except UserError as error:
        return f"{error}\n"
    return "\n\n".join(map(str, diagnostics)) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that has the files of all specs."""
    made = tmp_path_factory.mktemp("broken")
    write_all(made)
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_broken_spec_says_what_is_wrong_where_and_how_to_mend_it(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert message(name) == CASES[name]["message.txt"]
    assert ": error: " in message(name)


def test_there_are_at_least_25_of_them() -> None:
    assert len(CASES) >= 25


def test_the_command_shows_them_all_with_exit_code_2_and_no_traceback(folder: Path) -> None:
    command = [sys.executable, "-m", "rolegraph", "validate", *(f"{name}.yaml" for name in CASES)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
    assert "internal error" not in done.stderr
    for files in CASES.values():
        assert files["message.txt"].strip() in done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):
        write_all(Path(made))
        told = {name: {**files, "message.txt": message(name)} for name, files in CASES.items()}
    DOCUMENT.write_text(as_cases("Broken specs and their messages", told), encoding="utf-8")
