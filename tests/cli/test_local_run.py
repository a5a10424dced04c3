"""Tests of `rolegraph run` and `serve` with the local service, and of its end in all circumstances."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.folder import RunFolder
from tests.cli.conftest import ENVIRONMENT, Command
from tests.forks import ForkedCommand
from tests.trainings import STEP, key
from tests.waiting import soon

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService
from tests.local.conftest import make_model

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


SHORT = ("sampling.max_tokens=24", 'roles.judge.prompt="{{ solver[0].index }}"')


def children(pid: int) -> list[int]:
    """Return the pids of the child processes of all threads of a process."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    return soon(lambda: not any(map(alive, pids)))


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Return what a terminal shows until it has shown a text; fail with all of it where it ends before."""
    shown = b""
    while wanted not in shown:
        try:
            shown += os.read(terminal, 4096)
        except OSError as error:
            raise AssertionError(f"the terminal ended without {wanted!r}: {shown!r}") from error
    return shown


@contextmanager
def started(
    folder: Path, *words: str, anew: bool = False, **environment: str
) -> Iterator[tuple[ForkedCommand | subprocess.Popen[bytes], int]]:
    """Start the command on a new pseudoterminal; yield the process and the descriptor to read.

    The process is a fork, unless it is to begin `anew`.
    """
    ours, theirs = pty.openpty()
    env = {**ENVIRONMENT, **environment}
    if anew:
        process = subprocess.Popen(
            [sys.executable, "-m", "rolegraph", *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    else:
        process = ForkedCommand(words, cwd=folder, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


def counted(terminal: int, total: int, at_least: int) -> int:
    """Read the progress bar until its count is at least `at_least`, and return the last count."""
    seen, shown = 0, b""
    while seen < at_least:
        shown += os.read(terminal, 4096)
        found = re.findall(rb"(\d+)/%d" % total, shown)
        seen = int(found[-1]) if found else 0
    return seen


def assert_tokens_and_logprobs(episodes: list[Episode]) -> None:
    for trajectory in (t for episode in episodes for t in episode.trajectories):
        (step,) = trajectory.steps
        assert 0 < len(step.response_ids) == len(step.logprobs) <= 24
        assert len(step.prompt_ids) > 0
        assert all(logprob <= 0 for logprob in step.logprobs)


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(
    service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    flow = rg.load("solver_judge", *SHORT, base_url=service.base_url)

    def said(out: str, seed: int) -> list[object]:
        done = rg.run(flow, limit=4, seed=seed, out=tmp_path / out)
        episodes = sorted((it.episode for it in done.recorded()), key=lambda episode: episode.id)
        return [(e.id, [t.steps[0].response_ids for t in e.trajectories]) for e in episodes]

    assert said("a", 1) == said("b", 1) != said("c", 2)


def test_a_run_killed_in_the_middle_loses_no_episode_that_was_counted(
    service: LocalService, tmp_path: Path
) -> None:
    words = ("run", "solver_judge", *SHORT, "--limit", "400", "--concurrency", "4", "--out", "out")
    with started(tmp_path, *words, "--base-url", service.base_url, **key(service)) as (process, terminal):
        seen = counted(terminal, 400, at_least=5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert seen < 400
    kept = list(read_episodes(tmp_path / "out" / "episodes.jsonl"))
    assert len(kept) >= seen
    assert_tokens_and_logprobs(kept)
    assert RunFolder(tmp_path / "out").info().finished is None


def test_ctrl_c_ends_the_run_with_its_table_and_the_service(tiny: Path, tmp_path: Path) -> None:
    words = ("run", "solver_judge", *SHORT, "--limit", "400", "--concurrency", "4", "--out", "out")
    (scratch := tmp_path / "scratch").mkdir()
    command = started(tmp_path, *words, "--model", f"local:{tiny}", anew=True, TMPDIR=str(scratch))
    with command as (process, terminal):
        seen = counted(terminal, 400, at_least=3)
        services = children(process.pid)
        assert [*scratch.glob("rolegraph-*")]  # the folder of checkpoints
        os.killpg(process.pid, signal.SIGINT)
        shown = b""
        while b"episodes.jsonl" not in shown:
            shown += os.read(terminal, 4096)
        assert process.wait() == 130
        assert gone(services)
        assert not [*scratch.glob("rolegraph-*")]
    assert b"right" in shown
    assert b"Traceback" not in shown
    count = len(list(read_episodes(tmp_path / "out" / "episodes.jsonl")))
    info = RunFolder(tmp_path / "out").info()
    assert info.finished and info.figures["episodes"] == count >= seen


@pytest.mark.parametrize("verb", ["run", "train"])
def test_a_run_whose_service_dies_ends_and_goes_on_with_a_new_one(
    rolegraph: Command, tiny: Path, tmp_path: Path, verb: str
) -> None:
    """Without a watch, the calls of each remaining episode would be tried four times, with pauses."""
    words = {
        "run": ("--limit", "400", "--concurrency", "4"),
        "train": ("train.steps=200", "train.batch_size=4", "train.validation.tasks=2"),
    }
    command = (verb, "solver_judge", *SHORT, *words[verb], "--model", f"local:{tiny}", "--out", "out")
    with started(tmp_path, *command) as (running, terminal):
        folder = RunFolder(tmp_path / "out")
        written = folder.path / ("episodes.jsonl" if verb == "run" else "metrics.jsonl")
        shown = b""
        while not (written.exists() and written.stat().st_size > 0):
            shown += os.read(terminal, 4096)
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(running.pid)}
        (service,) = (pid for pid, command in commands.items() if b"local.service" in command)
        os.kill(service, signal.SIGKILL)
        while b"has died" not in shown:
            shown += os.read(terminal, 4096)
        assert running.wait() == 1
    assert b"Traceback" not in shown
    if verb == "run":
        kept = list(read_episodes(written))
        assert 0 < len(kept) < 400
        model = ("--model", f"local:{tiny}")
        again = rolegraph("run", "--resume", *model, "--limit", str(len(kept) + 2), "--out", "out")
        assert again.returncode == 0, again.stderr
        assert len(list(read_episodes(written))) == len(kept) + 2
        assert not folder.info().figures.get("failures", 0)


def test_serve_answers_a_run_that_has_the_key_that_it_prints(
    rolegraph: Command, tiny: Path, tmp_path: Path
) -> None:
    with started(tmp_path, "serve", "--model", str(tiny), "--port", "0") as (process, terminal):
        shown = b""
        while not (found := re.search(rb"(http://127\.0\.0\.1:\d+).*its key is (\S+):", shown, re.DOTALL)):
            shown += os.read(terminal, 4096)
        url, key = found[1].decode(), found[2].decode()
        words = ("run", "solver_judge", *SHORT, "--limit", "2", "--base-url", url, "--out", "out")
        done = rolegraph(*words, TINKER_API_KEY=key)
        assert done.returncode == 0, done.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert len(list(read_episodes(tmp_path / "out" / "episodes.jsonl"))) == 2


@pytest.mark.parametrize(
    "verb", [("run",), ("train",), ("eval", "--checkpoint", "tinker://a/weights/b")], ids=lambda verb: verb[0]
)
def test_ctrl_c_does_not_wait_for_a_model_that_starts(
    tiny: Path, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    """Replace the weights by a pipe without a writer, so that the model never finishes loading."""
    folder = shutil.copytree(tiny, tmp_path / "endless")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    model = ("--model", f"local:{folder}")
    with started(tmp_path, verb[0], "solver_judge", *SHORT, *model, *verb[1:]) as (process, terminal):
        while not (services := children(process.pid)):
            os.sched_yield()
        shown = read_until(terminal, b"starting the model")
        os.killpg(process.pid, signal.SIGINT)
        shown += read_until(terminal, b"interrupted")
        assert process.wait() == 130
        assert gone(services)
    assert b"Traceback" not in shown
    if verb[0] == "eval":
        assert re.search(
            rb"next: rolegraph eval solver_judge .* --resume --out runs/solver_judge-eval-", shown
        )


def test_a_prompt_that_the_shipped_model_was_not_taught_is_named(
    forked: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prompt, few = "roles.solver.prompt='{{ task.question }}'", ("--limit", "1", "--rollouts", "1")
    runtime = tmp_path_factory.mktemp("r")  # short: a socket's path has a limit
    one_service = {"XDG_RUNTIME_DIR": str(runtime), "ROLEGRAPH_WARM": "600", "CI": ""}
    asked = forked("run", "solver_only", prompt, *few, **one_service)
    assert asked.returncode == 0, asked.stderr
    warning, *others = (line for line in asked.stderr.splitlines() if line.startswith("warning: "))
    assert "rolegraph-base" in warning and "solver" in warning
    assert not any("rolegraph-base" in line for line in others)
    trained = forked("train", "solver_only", prompt, *STEP, **one_service)
    assert warning in trained.stderr.splitlines()
    taught = forked("run", "solver_only", *few, **one_service)
    assert taught.returncode == 0 and "warning" not in taught.stderr
    assert forked("serve", "--stop", **one_service).returncode == 0
