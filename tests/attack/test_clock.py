"""Clocks that are set back or forward by hours in the middle of a command."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.trainings import STEP


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the machine's clock back by nine hours at each look, and forward by thirty at each third one."""
    real, looks = time.time, count(1)

    def jump() -> float:
        # The Tinker SDK stops repeating a request after five minutes of this clock.
        if sys._getframe(1).f_globals["__name__"].startswith("tinker."):
            return real()
        look = next(looks)
        return real() + (30 if look % 3 == 0 else -9) * 3_600 * look

    monkeypatch.setattr(time, "time", jump)
    monkeypatch.setattr("rolegraph.engine.records.folder._now", lambda: datetime.fromtimestamp(jump(), UTC))


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number of JSON data with the names that lead to it."""
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(each, f"{path}/{name}")
    elif isinstance(value, int | float):
        yield path, value


@pytest.mark.service
@pytest.mark.usefixtures("jumping")
def test_no_time_of_a_training_is_below_zero(
    rolegraph: Command, service: LocalService, tmp_path: Path
) -> None:
    key = {"TINKER_API_KEY": service.api_key}
    words = ("train", "solver_judge", *STEP, "--base-url", service.base_url, "--out", "out", "--json")
    ended = rolegraph(*words, **key)
    assert ended.returncode == 0, ended.stderr
    info = json.loads((tmp_path / "out" / "run.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    times = [*numbers([json.loads(ended.stdout), info, lines])]
    times = [(name, value) for name, value in times if "seconds" in name or "time/" in name]
    assert len(times) > 3
    assert not [name for name, value in times if not 0 <= value < 3_600]
    compared = rolegraph("compare", "out", "out")
    assert compared.returncode == 0, compared.stderr


@pytest.mark.usefixtures("jumping")
def test_no_time_of_a_run_is_below_zero(rolegraph: Command, recording: Path, tmp_path: Path) -> None:
    ended = rolegraph("run", "solver_judge", "--model", f"replay:{recording}", "--out", "out", "--json")
    assert ended.returncode == 0, ended.stderr
    episodes = [json.loads(line) for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]
    info = json.loads((tmp_path / "out" / "run.json").read_text())
    times = [(name, value) for name, value in numbers([episodes, info]) if name.endswith("/seconds")]
    assert times
    assert not [name for name, value in times if not 0 <= value < 3_600]
    assert rolegraph("run", "--resume", "--out", "out").returncode == 0
