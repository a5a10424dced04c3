"""Shared fixtures: a local service, a small training on the service, and clean registries."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import pytest
from hypothesis import settings

from tests import examples

if TYPE_CHECKING:
    from rolegraph.local.launcher import LocalService
    from tests.pages.view.browser import Browser

SERVICE = ("-P", "-m", "rolegraph.local.service")
"""`launcher.SERVICE` of a service that starts anew."""
OUTSIDE = {**os.environ}
"""Environment for programs that use the network, such as pip: a copy from before `one_authority`."""

SETTINGS_FOLDER = tempfile.TemporaryDirectory(prefix="rolegraph-settings-")
"""Settings of the user who runs the command in tests: what the user of this machine trusts does not count."""
os.environ["XDG_CONFIG_HOME"] = SETTINGS_FOLDER.name  # before other files of fixtures copy the environment
os.environ["ROLEGRAPH_WARM"] = "0"  # a test that leaves a service to the next says so


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads `--hypothesis-profile`
def pytest_configure() -> None:
    """Load the hypothesis profile, and set up the environment and signals that child processes inherit."""
    # Examples have no deadline and are the same in every run, except with `--hypothesis-profile=random`.
    settings.register_profile("random", deadline=None)
    settings.register_profile("repeatable", deadline=None, derandomize=True)
    settings.load_profile("repeatable")
    # Child processes, and the collection of the next run, start faster with cached bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Several torch threads would spin while waiting, on cores that other workers need.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Collections look at all that torch and the tests' modules define.
    gc.set_threshold(100_000)
    # A shell starts a background pytest with SIGINT ignored, `nohup` with SIGHUP, and child processes would
    # inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    examples.day()  # which the workers take over


@pytest.fixture(scope="session", autouse=True)
def forked_services() -> Iterator[None]:
    """Let local services be forks of one process, where the system tells it that these tests have ended."""
    with tempfile.TemporaryDirectory(prefix="rolegraph-") as folder, pytest.MonkeyPatch.context() as patch:
        if hasattr(os, "pidfd_open") and util.find_spec("torch"):
            from tests.forked_services import command

            patch.setattr("rolegraph.local.launcher.SERVICE", command(Path(folder)))
        yield


@contextmanager
def anew() -> Generator[None]:
    """Let local services start anew, for tests that look at their processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rolegraph.local.launcher.SERVICE", SERVICE)
        yield


@pytest.fixture
def new_services() -> Iterator[None]:
    """Let the services of a test start anew."""
    with anew():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the day that a failed run has to name to test the same cases on another day."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"{examples.DAY}={examples.day()}")


def pytest_collection_finish() -> None:
    """Exempt what the collection made from garbage collection."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # the hook exists only with pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for `-n auto`: one more than there are cores.

    Tests spend a quarter of their time waiting for a process to end or a time limit to pass.
    """
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reduce the trusted certificate authorities to one.

    Loading all authorities takes 30 ms per HTTPS client, and a session of Tinker's SDK creates three
    clients. The services in tests use plain HTTP.
    """
    file, end = tmp_path_factory.mktemp("authority") / "one.pem", "-----END CERTIFICATE-----\n"
    file.write_text(certifi.contents().partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium with one page; skips the test where there is none."""
    from tests.pages.view.browser import WHERE, browsing, found

    if found() is None:
        pytest.skip(f"no Chromium on the path, nor named by {WHERE}")
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a test's registrations after the test."""
    from rolegraph.engine.vocabulary import (
        datasets,
        environments,
        estimators,
        losses,
        metrics,
        parsers,
        rewards,
        tools,
    )

    for registry in (datasets, environments, estimators, losses, metrics, parsers, rewards, tools):
        for table in ("_factories", "_definitions"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the folder for the checkpoints of the service."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="session")
def service(state_dir: Path) -> Iterator[LocalService]:
    """Start one service of the shipped model for all tests of a process."""
    pytest.importorskip("torch", reason="needs the extra `local`")
    from rolegraph.local.launcher import BASE_MODEL, running

    with ExitStack() as stack:
        with anew():
            found = stack.enter_context(running(BASE_MODEL, state_dir=state_dir, threads=1))
        yield found


@pytest.fixture
def lasting_services(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let the services that a test starts stay until its end, for its next training or evaluation."""
    from rolegraph.cli.main import run
    from rolegraph.local.warm import keep_services

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))  # a socket's path has a limit
    # Later commands of this process would tell of a service that they started.
    monkeypatch.setattr("rolegraph.local.warm._Kept.started", False)
    monkeypatch.setattr(sys, "argv", sys.argv)
    keep_services(600)
    yield
    keep_services(0)
    assert run(["serve", "--stop"]) == 0


@pytest.fixture(scope="session")
def whole(service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train `solver_judge` for a few steps without interruption and return the run folder."""
    from tests.trainings import SMALL, train

    return train(tmp_path_factory.mktemp("whole") / "run", "solver_judge", *SMALL, service=service).folder
