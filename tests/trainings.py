"""What tests of training share: a small one, in this process or as a command, and what it leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

import pytest

import rolegraph as rg
from engine.cli.main import main
from engine.local.launcher import Running
from engine.training.trackers import TrackerName
from tests.cli.conftest import ENVIRONMENT

CLOCKED = ("time/", "tokens/per_second")
"""How the names of metrics begin that a clock has a part in."""
SMALL = (
    "train.batch_size=4",
    "train.rollouts=2",
    "train.steps=4",
    "train.learning_rate=0.002",
    "train.checkpoint_every=2",
    "train.validation={every: 2, tasks: 4, rollouts: 1}",
)
STEP = (
    "train.batch_size=2",
    "train.rollouts=2",
    "train.steps=1",
    "train.validation={every: 0, tasks: 1, rollouts: 1}",
)
"""As little as is a training."""
NEVER = "{json_field: never, value: 1}"
"""A reward that is 0 whatever the answer."""
APART = multiprocessing.get_context("forkserver")
APART.set_forkserver_preload(
    ["tests.trainings", "engine.cli.train_", "rolegraph.training", "engine.models.tinker_open", "tinker"]
)
TOLERANCE = 1e-3
"""How far metrics of two runs may differ: batches differ in their float noise, and Adam passes it on."""


def key(service: Running) -> dict[str, str]:
    """The environment that a command on a service wants."""
    return {"TINKER_API_KEY": service.api_key}


def start(out: Path, *words: str, service: Running | None = None) -> BaseProcess:
    """The command in a process of its own, to be killed; its output goes to `said` and `noted` beside `out`.

    It is forked off one that has imported what a training needs, the SDK with its torch above all.
    """
    where = ("--base-url", service.base_url) if service else ()
    environment = {**ENVIRONMENT, **(key(service) if service else {})}
    arguments = (out.parent, ["train", *words, *where, "--out", str(out)], environment)
    process = APART.Process(target=_command, args=arguments, daemon=True)
    process.start()
    return process


def _command(folder: Path, words: list[str], environment: Mapping[str, str]) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    for descriptor, name in ((1, "said"), (2, "noted")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv = ["rolegraph", *words]
    main()


def train(
    out: Path,
    spec: str,
    *overrides: str,
    service: Running,
    seed: int = 0,
    track: Sequence[TrackerName] = (),
    observe: rg.Observer | None = None,
    allow: Sequence[str] = (),
) -> rg.Trained:
    """Train in this process."""
    flow = rg.load(spec, *overrides, base_url=service.base_url, allow=allow)
    with patch.dict(os.environ, key(service)):
        return rg.train(flow, out=out, seed=seed, track=track, observe=observe)


def metrics(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(CLOCKED)} for line in lines]


def assert_same(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE), f"step {one['step']}"


def wait_for_lines(out: Path, count: int, process: BaseProcess) -> None:
    file = out / "metrics.jsonl"
    while not (file.exists() and file.read_bytes().count(b"\n") >= count):
        assert process.exitcode is None, (out.parent / "noted").read_text()
        time.sleep(0.02)
