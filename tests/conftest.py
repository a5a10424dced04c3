"""What several rooms' tests need of the machine: a local service, and a small training on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from engine.local.launcher import Running


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads `--hypothesis-profile`
def pytest_configure() -> None:
    """No example of a property has a deadline, and every run draws the same ones, unless it is asked for
    others by `--hypothesis-profile=random`; the processes that tests start keep what they compiled, and hear
    Ctrl-C, also where this one is in the background of a shell that has it ignored. None of them computes in
    several threads, which on models this small wait for one another."""
    settings.register_profile("random", deadline=None)
    settings.register_profile("repeatable", deadline=None, derandomize=True)
    settings.load_profile("repeatable")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["OMP_NUM_THREADS"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test makes known is known to no other test."""
    from engine.vocabulary import datasets, environments, estimators, metrics, parsers, rewards, tools

    for registry in (datasets, environments, estimators, metrics, parsers, rewards, tools):
        for table in ("_factories", "_definitions", "_adapters"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service keeps its checkpoints."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="session")
def service(state_dir: Path) -> Iterator[Running]:
    """The shipped model, served for all tests of a process."""
    pytest.importorskip("torch", reason="needs the extra `local`")
    from engine.local.launcher import BASE_MODEL, running

    with running(BASE_MODEL, state_dir=state_dir, threads=1) as found:
        yield found


@pytest.fixture(scope="session")
def whole(service: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training that was not interrupted."""
    from tests.trainings import SMALL, train

    return train(tmp_path_factory.mktemp("whole") / "run", "solver_judge", *SMALL, service=service).folder
