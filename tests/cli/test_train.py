"""`rolegraph train` and `rolegraph eval` as a person meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from engine.local.launcher import Running
from tests.trainings import SMALL, assert_same, environment, metrics, train, train_command

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def test_the_embedded_service_and_one_started_apart_take_the_same_first_step(
    whole: Path, tmp_path: Path
) -> None:
    train_command(tmp_path / "embedded", "solver_judge", *SMALL, "train.steps=1")
    _, embedded = metrics(tmp_path / "embedded")
    _, apart, *_ = metrics(whole)
    assert_same([apart], [{key: value for key, value in embedded.items() if key in apart}])


def test_eval_compares_a_checkpoint_with_the_base(whole: Path, service: Running, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "engine.cli", "eval", "solver_judge", "--checkpoint", str(whole)]
    words += ["--base-url", service.base_url, "--tasks", "4", "--rollouts", "1", "--json"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(service), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["judge_acc"]["base"]["n"] == 4
    assert found["solver_acc"]["difference"]["mean"] == pytest.approx(
        found["solver_acc"]["checkpoint"]["mean"] - found["solver_acc"]["base"]["mean"]
    )


def test_metrics_go_to_tensorboard_through_its_own_library(service: Running, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    train(out, "solver_judge", *SMALL, "train.steps=1", service=service, track=["tensorboard"])
    assert [*(out / "tensorboard").glob("events.out.tfevents.*")]
