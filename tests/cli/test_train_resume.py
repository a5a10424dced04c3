"""Runs that are killed, interrupted or changed, and what goes on from them."""

from __future__ import annotations

import random
import re
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from engine.local.launcher import Running
from engine.records.folder import RunFolder
from tests.trainings import SMALL, assert_same, metrics, start, train_command, wait_for_lines

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def test_a_run_that_is_killed_twice_goes_on_as_if_it_had_not_been(
    whole: Path, service: Running, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for lines, words in ((1, ("solver_judge", *SMALL)), (3, ("--resume",))):
        process = start(out, *words, service=service)
        wait_for_lines(out, lines, process)
        time.sleep(random.Random(lines).random())
        process.kill()
        process.wait()
        with (out / "metrics.jsonl").open("a") as file:
            file.write('{"step": 99, "half a li')  # as a kill in the middle of a write leaves it
    train_command(out, "--resume", service=service)
    assert_same(metrics(out), metrics(whole))
    assert {file.name for file in (out / "episodes").iterdir()} == {
        f.name for f in (whole / "episodes").iterdir()
    }
    info = RunFolder(out).training()
    assert "--resume" in info.resumed[0].command and "--resume" not in info.command
    assert info.started and info.finished and info.started < info.resumed[0].time < info.finished
    assert info.figures["step"] == 4 and "validation/judge_acc" in info.figures


def test_a_killed_run_with_its_own_service_goes_on_from_the_weights_in_its_folder(
    whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(out, "solver_judge", *SMALL)
    wait_for_lines(out, 3, process)
    process.kill()
    process.wait()
    # With the spec named, its overrides are still those that the run was begun with.
    said, _ = train_command(out, "solver_judge", "--resume")
    before = next(line for line in metrics(out) if line["step"] == 0)["validation/judge_acc"]
    shown = re.search(r"^ ?judge_acc +([\d.]+)", said, re.MULTILINE)
    assert shown is not None and shown[1] == f"{before:.3f}", "before training, not before the resume"
    assert_same(metrics(out), metrics(whole))


def test_a_killed_run_of_two_policies_goes_on_with_both(service: Running, tmp_path: Path) -> None:
    words = ("two_policies", *SMALL, "train.steps=3")
    uninterrupted, out = tmp_path / "whole", tmp_path / "run"
    train_command(uninterrupted, *words, service=service)
    process = start(out, *words, service=service)
    wait_for_lines(out, 3, process)  # of step 2, whose checkpoint may be half written
    process.kill()
    process.wait()
    train_command(out, "--resume", service=service)
    assert_same(metrics(out), metrics(uninterrupted))
    saved = RunFolder(out).checkpoints()[-1].policies
    assert {name: policy.version for name, policy in saved.items()} == {
        name: policy.version for name, policy in RunFolder(uninterrupted).checkpoints()[-1].policies.items()
    }
    assert saved["solver"].version > 0 and saved["judge"].version > 0
    assert RunFolder(out).training().roles["judge"].policies == ("judge",)


def test_an_interrupted_run_says_so_and_leaves_a_report(service: Running, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, "solver_judge", *SMALL, service=service)
    wait_for_lines(out, 1, process)  # of the validation before training
    process.send_signal(signal.SIGINT)
    said, noted = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in noted
    assert f"go on with: rolegraph train --resume --out {out}" in said
    assert "+0.000" not in said, "nothing has been measured since"
    assert (out / "report.html").exists()


def test_a_changed_spec_is_refused_with_the_difference(whole: Path, service: Running) -> None:
    before = metrics(whole)
    _, noted = train_command(
        whole, "solver_judge", *SMALL, "roles.solver.count=3", "--resume", service=service, code=2
    )
    assert "-    count: 2" in noted and "+    count: 3" in noted
    assert metrics(whole) == before


def test_a_second_run_does_not_write_over_the_first(whole: Path, service: Running) -> None:
    _, noted = train_command(whole, "solver_judge", *SMALL, service=service, code=2)
    assert "already holds a run; go on with --resume" in noted
