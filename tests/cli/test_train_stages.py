"""Tests of a training with stages of imitation on the shipped base, killed in each stage and resumed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from rolegraph.engine.records.folder import RunFolder

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.edge import write_spec
from tests.trainings import assert_same, metrics, resume, start, train, wait_for_lines

pytestmark = pytest.mark.service

SPEC = """\
rolegraph: 2
name: warm
data: {train: countdown, validation: countdown}
sampling: {max_tokens: 24}
roles:
  solver: {prompt: solver.j2, parser: {tag: result}, reward: countdown, estimator: grpo}
train:
  batch_size: 4
  rollouts: 2
  steps: 7
  checkpoint_every: 2
  stages:
    - imitation: {solver: "<result>{{ task.solution }}</result>"}
      steps: 4
      learning_rate: 0.01
    - imitation: best
      steps: 1
  validation: {every: 0, tasks: 4, rollouts: 1}
"""
"""Spec whose form the shipped base never gives."""
GOES_ON = "roles.solver.reward={sum: {form: {matches: 'r'}, right: countdown}}"


def test_a_training_killed_in_its_stages_ends_with_the_weights_of_an_unbroken_one(
    service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    # The base has 4 steps, too few for a form that the rest of this training needs to be at hand.
    words = (str(write_spec(tmp_path, SPEC)), "roles.solver.parser=text", GOES_ON)
    whole = train(tmp_path / "whole", *words, service=service).folder
    losses = [line["imitation/solver/loss"] for line in metrics(whole) if line.get("stage") == 1.0]
    assert len(losses) == 4 and losses[-1] < losses[0] / 2, "imitation teaches"
    out = tmp_path / "run"
    # The kills come in the first stage, in the second or after it, and in RL.
    for lines, begun in ((2, words), (5, ("--resume",)), (6, ("--resume",))):
        process = start(out, *begun, service=service)
        wait_for_lines(out, lines, process)
        time.sleep(random.Random(lines).random() / 2)
        process.kill()
        process.wait()
    resume(rolegraph, out, service)
    assert_same(metrics(out), metrics(whole))
    assert [it.step for it in RunFolder(out).checkpoints()] == [
        it.step for it in RunFolder(whole).checkpoints()
    ]
