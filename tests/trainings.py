"""Helpers that start small trainings, in this process or as a command, and read their metrics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

import rolegraph as rg
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import ENVIRONMENT, Command
from tests.forks import ForkedCommand

CLOCKED = ("time/", "tokens/per_second")
"""Prefixes of the metrics that depend on wall-clock time."""
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
"""Overrides for the smallest training: one step on two tasks."""
NEVER = "{json_field: never, value: 1}"
"""Reward that is 0 for every answer."""
TOLERANCE = 1e-3
"""Tolerance between the metrics of two runs: float rounding differs by batch, and Adam propagates it."""


def at(service: LocalService | None) -> tuple[str, ...]:
    """Return the options of a command that uses a service; none for a service of its own."""
    return ("--base-url", service.base_url) if service else ()


def key(service: LocalService | None) -> dict[str, str]:
    """Return the environment variables for a command that uses a service; none for a service of its own."""
    return {"TINKER_API_KEY": service.api_key} if service else {}


def start(out: Path, *words: str, service: LocalService | None = None) -> ForkedCommand:
    """Start `rolegraph train` in a child process, which the test can kill."""
    command = ("train", *words, *at(service), "--out", str(out))
    return ForkedCommand(command, cwd=out.parent, env={**ENVIRONMENT, **key(service)})


def resume(rolegraph: Command, out: Path, service: LocalService | None) -> None:
    """Resume the training in a folder to its end."""
    done = rolegraph("train", "--resume", *at(service), "--out", str(out), **key(service))
    assert done.returncode == 0, done.stderr


def train(
    out: Path,
    spec: str,
    *overrides: str,
    service: LocalService,
    seed: int = 0,
    track: Sequence[str] = (),
    observe: rg.Observer | None = None,
    allow: Sequence[str] = (),
) -> rg.Run:
    """Train a spec on a service, in this process."""
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


def wait_for_lines(out: Path, count: int, process: ForkedCommand) -> None:
    file = out / "metrics.jsonl"
    while not (file.exists() and file.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
