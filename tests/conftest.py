"""What several rooms' tests need of the machine: a local service, and a small training on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from rolegraph.engine.local.launcher import LocalService

OUTSIDE = {**os.environ}
"""The environment of what asks somebody outside, as pip does."""


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads `--hypothesis-profile`
def pytest_configure() -> None:
    """No example of a property has a deadline, and every run draws the same ones, unless it is asked for
    others by `--hypothesis-profile=random`; the processes that tests start keep what they compiled, and hear
    Ctrl-C, also where this one is in the background of a shell that has it ignored. torch computes with one
    thread here: several wait for one another by spinning, on cores that other workers want."""
    settings.register_profile("random", deadline=None)
    settings.register_profile("repeatable", deadline=None, derandomize=True)
    settings.load_profile("repeatable")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # it is pytest-xdist's
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`, one worker more than there are cores: a quarter of the time tests wait, for a process
    that ends or a limit that passes."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A client of HTTPS trusts one authority: to read all of them takes 30 ms for each client, of which a
    session of Tinker's SDK has three, and the services of tests are asked by HTTP."""
    file, end = tmp_path_factory.mktemp("authority") / "one.pem", "-----END CERTIFICATE-----\n"
    file.write_text(certifi.contents().partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test makes known is known to no other test."""
    from rolegraph.engine.vocabulary import (
        datasets,
        environments,
        estimators,
        metrics,
        parsers,
        rewards,
        tools,
    )

    for registry in (datasets, environments, estimators, metrics, parsers, rewards, tools):
        for table in ("_factories", "_definitions"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service keeps its checkpoints."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="session")
def service(state_dir: Path) -> Iterator[LocalService]:
    """The shipped model, served for all tests of a process."""
    pytest.importorskip("torch", reason="needs the extra `local`")
    from rolegraph.engine.local.launcher import BASE_MODEL, running

    with running(BASE_MODEL, state_dir=state_dir, threads=1) as found:
        yield found


@pytest.fixture(scope="session")
def whole(service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training that was not interrupted."""
    from tests.trainings import SMALL, train

    return train(tmp_path_factory.mktemp("whole") / "run", "solver_judge", *SMALL, service=service).folder
