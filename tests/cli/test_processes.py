"""Tests of commands where the process around them is unusual: its folder, its limits, what it imports."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

import rolegraph as rg
from rolegraph.engine.errors import is_out_of_files
from rolegraph.engine.models.openai import _said  # pyright: ignore[reportPrivateUsage]
from tests.cli.conftest import ENVIRONMENT, Command
from tests.edge import write_spec

SPEC = """rolegraph: 2
name: t
roles: {a: {prompt: "Say."}}
"""
GONE = "error: the working folder was deleted; `cd` into another"
ENDED = "read arguments below `if __name__ == '__main__':` only"


def in_shell(before: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command behind shell commands."""
    line = f"{before}; exec {shlex.join([sys.executable, '-P', '-m', 'rolegraph', *words])}"
    return subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )


# a working folder that was deleted


def from_a_deleted_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "gone").mkdir()
    return in_shell(f"cd gone; rmdir {shlex.quote(str(folder / 'gone'))}", folder, *words)


@pytest.mark.parametrize(
    "words", [("validate", "SPEC"), ("validate", "solver_judge"), ("preview", "solver_judge", "--limit", "1")]
)
def test_absolute_paths_and_shipped_specs_need_no_working_folder(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = str(write_spec(tmp_path, SPEC))
    done = from_a_deleted_folder(tmp_path, *(file if word == "SPEC" else word for word in words))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("validate", "spec.yaml"),
        ("run", "solver_judge", "--limit", "1"),
        ("run", "solver_judge", "--limit", "1", "--out", "OUT"),
        ("serve",),
        ("view", "runs/x"),
        ("new", "x"),
        ("trust",),
    ],
)
def test_a_command_that_needs_the_deleted_working_folder_says_so(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    out = str(tmp_path / "out")
    done = from_a_deleted_folder(tmp_path, *(out if word == "OUT" else word for word in words))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, GONE)
    assert "internal error" not in done.stderr


# open files


def test_the_soft_limit_of_open_files_is_raised_towards_the_hard_one(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 10_240 if hard == resource.RLIM_INFINITY else min(hard, 10_240)
    shown = "import resource; print('soft', resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    (tmp_path / "limit.py").write_text(shown, encoding="utf-8")
    done = in_shell("ulimit -Sn 256", tmp_path, "list", "parsers", "tag", "--import", "limit.py")
    assert f"soft {wanted}\n" in done.stdout


def connection_error(number: int) -> openai.APIConnectionError:
    """Return the error of a call as httpx and anyio raise it for an error of the system."""
    request = httpx.Request("POST", "http://127.0.0.1:9/v1")
    try:
        try:
            try:
                raise ExceptionGroup(
                    "attempts", [OSError(number, os.strerror(number)), OSError(errno.ECONNREFUSED, "")]
                )
            except ExceptionGroup as group:
                raise OSError("All connection attempts failed") from group
        except OSError as error:
            raise httpx.ConnectError("All connection attempts failed") from error
    except httpx.ConnectError as error:
        failed = openai.APIConnectionError(request=request)
        failed.__cause__ = error
        return failed


def test_a_connection_that_lacks_open_files_is_named(
    rolegraph: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, other = connection_error(errno.EMFILE), connection_error(errno.ENETDOWN)
    assert is_out_of_files(error) and not is_out_of_files(other)
    assert "too many open files; raise `ulimit -n`" in _said(error)
    assert _said(other) == "All connection attempts failed"

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rolegraph.api.find_spec", fails)
    done = rolegraph("list", "specs", "solver_judge")
    assert "error: too many open files; raise `ulimit -n`" in done.stderr
    assert "internal error" not in done.stderr


# imported files


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import argparse; argparse.ArgumentParser().parse_args()",
            f"it ended the process (SystemExit: 2); {ENDED}",
        ),
        ("import sys; sys.exit('no GPU')", f"it ended the process (SystemExit: no GPU); {ENDED}"),
        ("raise SystemExit(0)", f"it ended the process (SystemExit: 0); {ENDED}"),
        ("class Skipped(BaseException): ...\nraise Skipped('here')", "Skipped: here"),
    ],
)
@pytest.mark.parametrize("words", [("validate", "spec.yaml"), ("list", "rewards")])
def test_an_import_that_ends_the_process_is_named(
    rolegraph: Command, tmp_path: Path, code: str, reason: str, words: tuple[str, ...]
) -> None:
    write_spec(tmp_path, SPEC)
    (tmp_path / "ends.py").write_text(code, encoding="utf-8")
    done = rolegraph(*words, "--import", "ends.py")
    assert done.returncode == 2
    assert f"importing {tmp_path / 'ends.py'} failed: {reason}" in done.stderr
    assert "usage: rolegraph" not in done.stderr


def test_an_interruption_during_an_import_names_the_file(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    done = rolegraph("list", "rewards", "--import", "slow.py")
    assert (done.returncode, done.stderr.strip()) == (
        130,
        f"interrupted while {tmp_path / 'slow.py'} was imported",
    )


# files of episodes


def test_episodes_are_read_from_a_file_or_a_folder_named_by_a_text_or_a_path(recording: Path) -> None:
    folder = recording.parent
    recording.rename(folder / "episodes.jsonl")
    read = [
        [*rg.read_episodes(path)]
        for path in (folder, str(folder), folder / "episodes.jsonl", f"{folder}/episodes.jsonl")
    ]
    assert len(read[0]) > 0
    assert all(episodes == read[0] for episodes in read)
