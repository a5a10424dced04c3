"""Tests of trainings that a signal ends: what they have done is saved, and goes on as if nothing had been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.records.folder import RunFolder
from tests.cli.conftest import ENVIRONMENT, Command
from tests.trainings import SMALL, assert_same, metrics

pytestmark = pytest.mark.service

RARELY = "train.checkpoint_every=100"
"""Override under which a training of four steps saves nothing before its end, unless it is interrupted."""


def begin(out: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start a training with a service of its own, in a process group of its own as a terminal does."""
    command = [sys.executable, "-m", "rolegraph", "train", "solver_judge", *SMALL, RARELY, *overrides]
    return subprocess.Popen(
        [*command, "--out", str(out)],
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not there():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def lines(out: Path) -> int:
    file = out / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [(signal.SIGTERM, True, 143), (signal.SIGTERM, False, 143), (signal.SIGINT, True, 130)],
)
def test_a_signal_saves_the_last_step_with_the_optimizer_and_resume_goes_on_from_it(
    number: signal.Signals, to_group: bool, code: int, whole: Path, rolegraph: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = begin(out)
    wait_for(lambda: lines(out) >= 2, process)  # that of step 1 among them
    (os.killpg if to_group else os.kill)(process.pid, number)
    shown = process.communicate()[0]
    assert process.returncode == code, shown
    (saved,) = RunFolder(out).checkpoints()
    assert 1 <= saved.step < 4
    assert f"step {saved.step}" in shown and "--resume" in shown
    done = rolegraph("train", "--resume", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert_same(metrics(out), metrics(whole))


def test_an_update_that_is_under_way_is_completed_and_its_validation_made_on_resume(
    whole: Path, rolegraph: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = begin(out)
    wait_for((out / "episodes" / "train-000002.jsonl").exists, process)  # written just before the update
    os.killpg(process.pid, signal.SIGTERM)
    shown = process.communicate()[0]
    assert process.returncode == 143, shown
    (saved,) = RunFolder(out).checkpoints()
    assert saved.step == 2 and saved.whole_steps == 1 == lines(out) - 1
    done = rolegraph("train", "--resume", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert_same(metrics(out), metrics(whole))
    checkpoints = RunFolder(out).checkpoints()
    assert [(one.step, one.whole_steps) for one in checkpoints] == [(2, 2), (4, 4)]
    assert checkpoints[0].validation


def test_an_interrupted_validation_of_the_last_step_is_made_on_resume(
    whole: Path, rolegraph: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = begin(out)
    wait_for((out / "episodes" / "train-000004.jsonl").exists, process)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert lines(out) == 4
    done = rolegraph("train", "--resume", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert_same(metrics(out), metrics(whole))


def test_an_interrupt_with_batches_under_way_saves_the_last_step(rolegraph: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begin(out, "train.staleness=1")
    wait_for(lambda: lines(out) >= 2, process)
    os.killpg(process.pid, signal.SIGTERM)
    shown = process.communicate()[0]
    (saved,) = RunFolder(out).checkpoints()
    assert saved.step >= 1 and saved.batches == saved.step, shown
    done = rolegraph("train", "--resume", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in metrics(out)] == [0, 1, 2, 3, 4]


def test_a_second_signal_leaves_without_a_checkpoint(rolegraph: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begin(out)
    wait_for(lambda: lines(out) >= 1, process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.005)  # two signals that wait together are one
    assert process.wait() in (143, -signal.SIGTERM)
    done = rolegraph("train", "--resume", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert lines(out) == 5
