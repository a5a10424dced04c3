"""Tests that a training on the shipped model with 30 times its learning rate is said to diverge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.trainings import key

pytestmark = pytest.mark.service
WORDS = (
    *("train", "solver_judge", "train.learning_rate=0.06", "train.steps=3", "train.batch_size=4"),
    *("sampling.max_tokens=48", "train.validation={every: 0, tasks: 4, rollouts: 1}", "--out", "high"),
)


@pytest.mark.parametrize(("flags", "code"), [((), 2), (("--keep-going",), 0)])
def test_step_line_warning_next_and_report_say_that_a_training_diverged(
    flags: tuple[str, ...], code: int, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    done = rolegraph(*WORDS, *flags, "--base-url", service.base_url, "--json", **key(service))
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("solver_judge: 3 steps  learning rate 0.06 (of the spec)\n")
    assert "warning: the learning rate 0.06 is 30 times the 0.002" in done.stderr
    document = json.loads(done.stdout)
    assert "solver" in {it["role"] for it in document["diverged"]}
    assert document["diverged"][0]["since"] == 2
    assert any(text.startswith("solver diverges since step 2: ") for text in document["warnings"])
    first, second, *_ = document["next"]
    assert first.startswith("rolegraph train solver_judge ") and first.count("train.learning_rate=") == 1
    assert "train.learning_rate=0.002" in first and "--resume" not in first
    assert second.startswith("rolegraph view high --role ")
    assert document["greedy"] == {}
    assert "diverges since step 2" in (tmp_path / "high" / "report.html").read_text("utf-8")
    assert rg.Run(tmp_path / "high").verdict[0].startswith("solver diverges since step 2")
    if code:  # every answer of the solver failed in step 2, which ended the training
        assert (
            "solver, judge diverged" in done.stderr and "train.learning_rate=0.002, or go on" in done.stderr
        )
    else:
        lines = [line for line in done.stderr.splitlines() if line.startswith("step 3/3")]
        assert "diverging: solver" in lines[0]
