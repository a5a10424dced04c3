"""`rolegraph train` and `rolegraph eval` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from engine.local.launcher import Running
from engine.records.folder import RunFolder
from tests.cli.conftest import Command
from tests.trainings import STEP, key, train

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def test_eval_compares_a_checkpoint_with_the_base(whole: Path, service: Running, rolegraph: Command) -> None:
    words = ("eval", "solver_judge", "--checkpoint", str(whole), "--base-url", service.base_url)
    done = rolegraph(*words, "--tasks", "4", "--rollouts", "1", "--json", **key(service))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["tasks"], document["episodes"]) == (4, 4)
    assert document["next"] == [f"rolegraph export {whole}"]
    found = document["figures"]
    assert found["judge_acc"]["base"]["n"] == 4
    assert found["solver_acc"]["difference"]["mean"] == pytest.approx(
        found["solver_acc"]["checkpoint"]["mean"] - found["solver_acc"]["base"]["mean"]
    )


def test_a_finished_training_is_told_again_as_a_document(whole: Path, rolegraph: Command) -> None:
    done = rolegraph("train", "--resume", "--out", str(whole), "--json")
    assert done.returncode == 0, done.stderr
    assert "is finished" in done.stderr
    document = json.loads(done.stdout)
    assert document["done"] == document["steps"] == RunFolder(whole).info().steps
    assert document["metrics"]["step"] == document["done"]
    assert document["report"] == str(whole / "report.html")
    assert any(command.startswith(f"rolegraph export {whole}") for command in document["next"])


def test_a_training_leaves_a_log(whole: Path) -> None:
    lines = (whole / "log.txt").read_text("utf-8").splitlines()
    assert any(" INFO step 1: " in line and "tokens/response=" in line for line in lines)
    assert " INFO done: " in lines[-1]


def test_metrics_go_to_tensorboard_through_its_own_library(service: Running, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    train(out, "solver_judge", *STEP, service=service, track=["tensorboard"])
    assert [*(out / "tensorboard").glob("events.out.tfevents.*")]
