"""Tests of trainings that a signal ends: what they have done is saved, and goes on as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.records.folder import RunFolder
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.forks import ForkedCommand
from tests.trainings import SMALL, assert_same, metrics, resume, start

pytestmark = pytest.mark.service

RARELY = "train.checkpoint_every=100"
"""Override under which a training of four steps saves nothing before its end, unless it is interrupted."""


def begin(out: Path, *overrides: str, service: LocalService | None) -> ForkedCommand:
    """Start a training in a process group of its own, as a terminal does; None for a service of its own."""
    return start(out, "solver_judge", *SMALL, RARELY, *overrides, service=service)


def wait_for(there: Callable[[], bool], process: ForkedCommand) -> None:
    while not there():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def lines(out: Path) -> int:
    file = out / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [
        pytest.param(signal.SIGTERM, False, 143, id="SIGTERM to the command"),
        pytest.param(signal.SIGINT, True, 130, id="SIGINT to the command and its service"),
        pytest.param(signal.SIGHUP, True, 129, id="SIGHUP to the command and its service"),
    ],
)
def test_a_signal_saves_the_last_step_with_the_optimizer_and_resume_goes_on_from_it(
    number: signal.Signals,
    to_group: bool,
    code: int,
    whole: Path,
    service: LocalService,
    rolegraph: Command,
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    there = None if to_group else service  # of a group, a service of the command's own gets the signal, too
    process = begin(out, service=there)
    wait_for(lambda: lines(out) >= 2, process)  # that of step 1 among them
    (os.killpg if to_group else os.kill)(process.pid, number)
    shown = "".join(process.communicate())
    assert process.wait() == code, shown
    (saved,) = RunFolder(out).checkpoints()
    assert 1 <= saved.step < 4
    assert f"step {saved.step}" in shown and "--resume" in shown
    resume(rolegraph, out, there)
    assert_same(metrics(out), metrics(whole))


def test_an_update_that_is_under_way_is_completed_and_its_validation_made_on_resume(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = begin(out, service=service)
    wait_for((out / "episodes" / "train-000002.jsonl").exists, process)  # written just before the update
    os.killpg(process.pid, signal.SIGTERM)
    shown = process.communicate()
    assert process.wait() == 143, shown
    (saved,) = RunFolder(out).checkpoints()
    assert saved.step == 2 and saved.whole_steps == 1 == lines(out) - 1
    resume(rolegraph, out, service)
    assert_same(metrics(out), metrics(whole))
    checkpoints = RunFolder(out).checkpoints()
    assert [(one.step, one.whole_steps) for one in checkpoints] == [(2, 2), (4, 4)]
    assert checkpoints[0].validation


def test_an_interrupted_validation_of_the_last_step_is_made_on_resume(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = begin(out, service=service)
    wait_for((out / "episodes" / "train-000004.jsonl").exists, process)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert lines(out) == 4
    resume(rolegraph, out, service)
    assert_same(metrics(out), metrics(whole))


def test_an_interrupt_with_batches_under_way_saves_the_last_step(
    service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = begin(out, "train.staleness=1", service=service)
    wait_for(lambda: lines(out) >= 2, process)
    os.killpg(process.pid, signal.SIGTERM)
    shown = process.communicate()
    (saved,) = RunFolder(out).checkpoints()
    assert saved.step >= 1 and saved.batches == saved.step, shown
    resume(rolegraph, out, service)
    assert [line["step"] for line in metrics(out)] == [0, 1, 2, 3, 4]


def test_a_second_signal_leaves_without_a_checkpoint(
    service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = begin(out, service=service)
    wait_for(lambda: lines(out) >= 1, process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.005)  # two signals that wait together are one
    assert process.wait() in (143, -signal.SIGTERM)
    resume(rolegraph, out, service)
    assert lines(out) == 5
