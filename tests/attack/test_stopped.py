"""Processes that stop without an end: a service, a worker or a program that gets SIGSTOP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from rolegraph.engine.vocabulary.isolation import CallTimeout, Isolation
from tests.cli.conftest import Command
from tests.waiting import soon

if TYPE_CHECKING:
    from rolegraph.local.launcher import LocalService

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")

SMALL = ("train.batch_size=2", "train.rollouts=2", "train.steps=3", "train.checkpoint_every=1")
NO_VALIDATION = "train.validation={every: 0, tasks: 1, rollouts: 1}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make health checks follow each other within seconds."""
    for name, value in {"_PATIENCE_SECONDS": 0.5, "_PROBE_SECONDS": 1.0, "UNANSWERED": 3}.items():
        monkeypatch.setattr(f"rolegraph.engine.models.tinker.{name}", value)
    monkeypatch.setattr("rolegraph.engine.models.limit.FIRST_WAIT", 0.01)


@contextmanager
def stopped(pid: int, when: Callable[[], bool]) -> Iterator[None]:
    """Stop a process once a condition holds, and let it go on at the end of the block."""

    def stop() -> None:
        assert soon(when)
        os.kill(pid, signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        os.kill(pid, signal.SIGCONT)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/healthz", timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def untimed(metrics: Path) -> list[dict[str, float]]:
    """Return the lines of a training's metrics without the times."""
    steps = map(json.loads, metrics.read_text().splitlines())
    return [{name: value for name, value in step.items() if not name.startswith("time/")} for step in steps]


@pytest.mark.service
@pytest.mark.usefixtures("impatient")
def test_a_stopped_service_ends_a_training_which_goes_on_with_the_service(
    rolegraph: Command, service: LocalService, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    key = {"TINKER_API_KEY": service.api_key}
    words = ("train", "solver_judge", "--base-url", service.base_url, "--out", "out")
    with stopped(service.pid, lambda: lines(out / "metrics.jsonl") >= 1):
        ended = rolegraph(*words, *SMALL, NO_VALIDATION, **key)
    assert ended.returncode == 1, ended.stderr
    # Counted health checks, or the deadline of a model that is being opened.
    assert service.base_url in ended.stderr
    assert "Traceback" not in ended.stderr
    kept = lines(out / "metrics.jsonl")
    assert 1 <= kept < 3
    assert soon(lambda: answers(service.base_url))
    before = untimed(out / "metrics.jsonl")[0]
    resumed = rolegraph(*words, "--resume", **key)
    assert resumed.returncode == 0, resumed.stderr
    steps = untimed(out / "metrics.jsonl")
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    assert steps[0] == before


@pytest.mark.service
@pytest.mark.usefixtures("impatient")
def test_a_stopped_service_ends_a_run_and_the_finished_episodes_stay(
    rolegraph: Command, service: LocalService, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    key = {"TINKER_API_KEY": service.api_key}
    words = ("run", "solver_judge", "--base-url", service.base_url, "--out", "out")
    with stopped(service.pid, lambda: lines(out / "episodes.jsonl") >= 1):
        ended = rolegraph(*words, "--limit", "4", "--rollouts", "20", **key)
    assert "health checks" in ended.stderr + (out / "log.txt").read_text()
    assert soon(lambda: answers(service.base_url))
    resumed = rolegraph(*words, "--resume", "--retry-failed", **key)
    assert resumed.returncode == 0, resumed.stderr
    episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert len({episode["id"] for episode in episodes}) == len(episodes) == 80
    failures = [t["info"].get("failure") for episode in episodes for t in episode["trajectories"]]
    assert not [failure for failure in failures if failure and "model" in str(failure)]


@pytest.mark.parametrize("size", [10, 5_000_000], ids=["small", "fills the pipe"])
def test_a_stopped_worker_fails_its_call_alone(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def calls() -> None:
        async with Isolation(workers=1) as pool:
            worker = await pool.run(os.getpid, limit=10)
            os.kill(worker, signal.SIGSTOP)
            with monkeypatch.context() as impatient, pytest.raises(CallTimeout):
                impatient.setattr("rolegraph.engine.vocabulary.isolation.START_SECONDS", 1.0)
                await pool.run(len, "a" * size, limit=0.1)
            assert await pool.run(len, "a" * size, limit=10) == size

    asyncio.run(calls())
