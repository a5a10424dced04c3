"""Tests of commands whose terminal closes, or whose output nobody reads any more."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolegraph.engine.records import RunFolder, read_episodes
from tests.cli.conftest import ENVIRONMENT
from tests.cli.printed import write_spec
from tests.cli.test_next_as_printed import ROWS, HeldEndpoint, rows
from tests.forks import run_forked
from tests.models.edges import serving


@contextmanager
def in_terminal(
    words: Sequence[str], folder: Path, before: Callable[[], object] = lambda: None
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """Start a command in a terminal of its own; give its process and the terminal's other end."""
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        before()

    command = [sys.executable, "-m", "rolegraph", *words]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, start_new_session=True, preexec_fn=take_terminal, **streams
    ) as process:
        os.close(theirs)
        yield process, ours


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_spec(tmp_path, "exact_match")
    rows(tmp_path)
    return tmp_path


@pytest.mark.parametrize("several", [False, True])
def test_a_terminal_that_closes_ends_a_run_as_sigterm_does(several: bool, folder: Path) -> None:
    held = HeldEndpoint(2)
    sweep = ("seed=1,2", "-m") if several else ()
    with serving(held) as endpoint:
        where = ("--base-url", endpoint.base_url, "--out", "out", "--concurrency", "1")
        with in_terminal(("run", "own.yaml", *sweep, *where), folder) as (process, terminal):
            held.wait_for(process)
            os.close(terminal)
            process.send_signal(signal.SIGHUP)  # the shell's, beside the kernel's
            code = process.wait()
        held.released.set()
    assert code == 128 + signal.SIGHUP
    run = RunFolder(folder / "out" / ("seed=1" if several else ""))
    kept = len([*read_episodes(run.episodes)])
    assert 0 < kept < ROWS
    assert run.info().finished is not None and run.info().figures["episodes"] == kept
    assert not [*folder.rglob("*.part-*")]


def test_a_run_that_ignores_sighup_goes_on_without_its_terminal(folder: Path) -> None:
    held = HeldEndpoint(2)
    with serving(held) as endpoint:
        words = ("run", "own.yaml", "--base-url", endpoint.base_url, "--out", "out")

        def ignore() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup and `trap '' HUP` do

        with in_terminal(words, folder, ignore) as (process, terminal):
            held.wait_for(process)
            os.close(terminal)
            process.send_signal(signal.SIGHUP)
            held.released.set()
            assert process.wait() == 0
    assert len([*read_episodes(RunFolder(folder / "out").episodes)]) == ROWS


def test_progress_that_nobody_reads_ends_no_run(folder: Path) -> None:
    held = HeldEndpoint(2)
    with serving(held) as endpoint:
        words = ("run", "own.yaml", "--base-url", endpoint.base_url, "--out", "out")
        command = [sys.executable, "-m", "rolegraph", *words]
        reader, writer = os.pipe()
        with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=writer) as process:
            os.close(writer)
            held.wait_for(process)
            os.close(reader)
            held.released.set()
            assert process.wait() == 0
    assert len([*read_episodes(RunFolder(folder / "out").episodes)]) == ROWS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_pages_of_view_end_alike_with_both_signals(number: int, folder: Path) -> None:
    held = HeldEndpoint(ROWS)
    with serving(held) as endpoint:
        words = ("run", "own.yaml", "--base-url", endpoint.base_url, "--out", "out")
        assert run_forked(words, cwd=folder, env=ENVIRONMENT).returncode == 0
    view = [sys.executable, "-m", "rolegraph", "view", "out"]
    with subprocess.Popen(view, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and b"http://" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait() == 0


def test_a_signal_in_a_serializer_or_an_import_is_no_error(folder: Path) -> None:
    (folder / "late.py").write_text(
        "import os, signal\n"
        "from pydantic import BaseModel, field_serializer\n"
        "class Late(BaseModel):\n"
        "    x: int = 0\n"
        "    @field_serializer('x')\n"
        "    def dump(self, value):\n"
        "        os.kill(os.getpid(), signal.SIGHUP)\n"
        "Late().model_dump_json()\n"
    )
    words = [sys.executable, "-m", "rolegraph", "run", "own.yaml", "--import", "late.py"]
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (128 + signal.SIGHUP, "interrupted")
