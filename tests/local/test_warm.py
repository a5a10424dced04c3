"""Services that stay for the next command: who borrows them, what they keep, and when they end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import BASE_MODEL
from rolegraph.local.service.sessions import is_running
from tests.cli.conftest import ENVIRONMENT, run_anew
from tests.forks import run_forked
from tests.waiting import soon

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no Unix sockets"),
]
RUN = ("run", "solver_judge", "--limit", "2")
SAYS_SO = "serve --stop"


class Commands:
    """Commands of one user, whose services stay."""

    def __init__(self, cwd: Path, runtime: Path) -> None:
        self._cwd = cwd
        self.environment = {"XDG_RUNTIME_DIR": str(runtime), "ROLEGRAPH_WARM": "600", "CI": ""}
        self.folder = runtime / "rolegraph"
        self.run: Callable[..., subprocess.CompletedProcess[str]] = run_forked

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = self.run(words, cwd=self._cwd, env={**ENVIRONMENT, **self.environment, **environment})
        assert done.returncode == 0, done.stderr
        return done

    @property
    def sockets(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()

    def pids(self) -> list[int]:
        """Return the processes of the services, from the peers of their sockets."""
        found: list[int] = []
        for name in sorted(self.sockets):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self.folder / name))
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                found.append(int.from_bytes(peer[:4], sys.byteorder))
        return found


@pytest.fixture
def commands(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    found = Commands(tmp_path, tmp_path_factory.mktemp("r"))  # short: a socket's path has a limit
    yield found
    found("serve", "--stop")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    runtime = tmp_path_factory.mktemp("r")
    yield runtime
    Commands(runtime, runtime)("serve", "--stop")


@pytest.fixture
def lent(tmp_path: Path, runtime: Path) -> Commands:
    """Return commands of a user whose one service stays for all tests of this file."""
    found = Commands(tmp_path, runtime)
    if len(found.sockets) != 1:
        found("serve", "--stop")
        found(*RUN)
    return found


def episodes(folder: Path) -> list[list[str]]:
    import rolegraph as rg

    read = sorted(rg.read_episodes(folder / "episodes.jsonl"), key=lambda episode: episode.id)
    return [[step.model_response for t in episode.trajectories for step in t.steps] for episode in read]


def test_the_next_command_borrows_the_service_and_gets_the_answers_of_a_new_one(
    commands: Commands, tmp_path: Path
) -> None:
    first = commands(*RUN, "--out", "first")
    assert SAYS_SO in first.stderr
    (name,) = commands.sockets
    assert not commands.folder.stat().st_mode & 0o077
    second = commands(*RUN, "--out", "second")
    assert SAYS_SO not in second.stderr
    assert commands.sockets == {name}
    alone = commands(*RUN, "--out", "alone", "--fresh")
    assert SAYS_SO not in alone.stderr
    assert commands.sockets == {name}
    assert episodes(tmp_path / "first") == episodes(tmp_path / "second") == episodes(tmp_path / "alone")
    assert commands("serve", "--stop").stdout.split()[0] == "1"
    assert not commands.sockets
    assert commands("serve", "--stop").stdout.split()[0] == "0"


def test_a_training_keeps_its_checkpoints_in_its_own_folder(lent: Commands, tmp_path: Path) -> None:
    small = ("train.batch_size=2", "train.rollouts=2", "train.validation.tasks=2")
    for out in ("one", "two"):
        lent("train", "solver_judge", "train.steps=1", *small, "--out", out)
    assert len(lent.sockets) == 1
    runs = [{path.name for path in (tmp_path / out / "weights").iterdir()} for out in ("one", "two")]
    assert all(runs) and not runs[0] & runs[1]
    lent("run", "solver_judge", "model.checkpoint=one", "--limit", "1", "--out", "tried")
    assert len(lent.sockets) == 1


def test_a_service_in_use_is_lent_to_nobody_else_and_is_free_once_its_command_is_killed(
    commands: Commands, tmp_path: Path
) -> None:
    environment = {**ENVIRONMENT, **commands.environment}
    words = [sys.executable, "-m", "rolegraph", *RUN[:2], "--rollouts", "500", "--out", "long"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as user:
        log = tmp_path / "long" / "episodes.jsonl"
        assert soon(lambda: log.exists() and log.stat().st_size > 0)
        (first,) = commands.sockets
        commands(*RUN)
        assert len(commands.sockets) == 2
        assert commands("serve", "--stop").stdout.split()[0] == "1"
        assert commands.sockets == {first}
        user.send_signal(signal.SIGKILL)
    commands.run = run_anew
    assert SAYS_SO not in commands(*RUN).stderr
    assert commands.sockets == {first}


def test_a_service_ends_when_nobody_borrows_it(commands: Commands) -> None:
    commands(*RUN, ROLEGRAPH_WARM="1")
    assert soon(lambda: not commands.sockets)


def test_a_killed_service_is_replaced(lent: Commands) -> None:
    (pid,) = lent.pids()
    os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not is_running(pid))
    before = lent.sockets
    assert SAYS_SO in lent(*RUN).stderr
    assert len(lent.sockets) == 1 and not lent.sockets & before


def test_a_model_that_has_changed_is_loaded_anew_in_place_of_the_old_one(
    commands: Commands, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(BASE_MODEL, model)
    local = (*RUN, "--model", f"local:{model}")
    commands(*local)
    before = commands.sockets
    os.utime(model / "config.json", (1, 1))
    assert SAYS_SO in commands(*local).stderr
    assert len(commands.sockets) == 1 and not commands.sockets & before


def test_a_relative_path_names_the_model_of_a_service_that_stays(lent: Commands, tmp_path: Path) -> None:
    before = lent.sockets
    relative = os.path.relpath(BASE_MODEL, tmp_path)
    assert SAYS_SO not in lent(*RUN, "--model", f"local:{relative}").stderr
    assert lent.sockets == before


@pytest.mark.parametrize("settings", [{"CI": "true", "ROLEGRAPH_WARM": ""}, {"ROLEGRAPH_WARM": "0"}])
def test_no_service_stays_in_ci_and_where_it_is_switched_off(
    commands: Commands, settings: dict[str, Any]
) -> None:
    assert SAYS_SO not in commands(*RUN, **settings).stderr
    assert not commands.sockets


@pytest.mark.parametrize("danger", ["open", "link"])
def test_a_folder_that_others_can_open_holds_no_socket(
    commands: Commands, tmp_path: Path, danger: str
) -> None:
    if danger == "open":
        commands.folder.mkdir(mode=0o755)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        commands.folder.symlink_to(tmp_path / "elsewhere")
    commands(*RUN)
    assert not commands.sockets


def test_the_key_is_in_no_file_and_on_no_command_line(lent: Commands) -> None:
    (pid,) = lent.pids()
    with socket.socket(socket.AF_UNIX) as connection:
        (name,) = lent.sockets
        connection.connect(str(lent.folder / name))
        connection.sendall(b'{"process": %d, "state_dir": null}\n' % os.getpid())
        (key,) = re.findall(rb"tml-[0-9a-f]{32}", connection.recv(10_000))
    assert key not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert [path for path in lent.folder.iterdir() if path.is_file()] == []
