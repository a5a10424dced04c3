"""Folders that a disk has damaged: a line in the middle of a file, and a log that cannot be written."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rolegraph.engine.records import RunFolder, read_episodes
from tests import replays
from tests.attack.test_links import training_folder
from tests.cli.conftest import Command


def damage(file: Path, line: int = 1) -> bytes:
    """Damage a line of a file, and return the file's new content."""
    lines = file.read_bytes().splitlines(keepends=True)
    lines[line] = b"\0" * (len(lines[line]) - 1) + b"\n"
    file.write_bytes(b"".join(lines))
    return file.read_bytes()


def test_a_run_goes_on_without_a_damaged_line_and_keeps_a_copy(rolegraph: Command, tmp_path: Path) -> None:
    run = RunFolder(replays.run(tmp_path / "r", replays.solved(0), tasks=4))
    damaged = damage(run.episodes)
    (tmp_path / "r" / "episodes.index").unlink()
    stopped = rolegraph("run", "--resume", "--out", "r")
    assert stopped.returncode == 2
    assert "episodes.jsonl:2" in stopped.stderr and "--drop-damaged --out r" in stopped.stderr
    done = rolegraph("run", "--resume", "--drop-damaged", "--out", "r")
    assert done.returncode == 0, done.stderr
    assert "episodes.jsonl.damaged" in done.stderr
    assert (tmp_path / "r" / "episodes.jsonl.damaged").read_bytes() == damaged
    assert len({episode.id for episode in read_episodes(run.episodes)}) == 4

    damage(run.episodes, 2)
    assert rolegraph("run", "--resume", "--drop-damaged", "--out", "r").returncode == 0
    assert (tmp_path / "r" / "episodes.jsonl.damaged").read_bytes() == damaged
    assert (tmp_path / "r" / "episodes.jsonl.damaged-2").exists()
    assert len({episode.id for episode in read_episodes(run.episodes)}) == 4


def test_a_folder_without_damage_stays_as_it_is(rolegraph: Command, tmp_path: Path) -> None:
    run = RunFolder(replays.run(tmp_path / "r", replays.solved(0), tasks=2))
    before = run.episodes.read_bytes()
    done = rolegraph("run", "--resume", "--drop-damaged", "--out", "r")
    assert (done.returncode, run.episodes.read_bytes()) == (0, before)
    assert not [*run.path.glob("*.damaged*")]
    assert rolegraph("run", "solver_judge", "--drop-damaged", "--out", "new").returncode == 2


def test_a_sweep_drops_the_damaged_lines_of_its_points(rolegraph: Command, tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=3)
    words = ("solver_judge", "seed=0,1", "-m", "--model", "replay:model.jsonl", "--limit", "3", "--out", "s")
    assert rolegraph("run", *words).returncode == 0
    damage(tmp_path / "s" / "seed=1" / "episodes.jsonl")
    (tmp_path / "s" / "seed=1" / "episodes.index").unlink()
    stopped = rolegraph("run", "-m", "--resume", "--out", "s")
    assert stopped.returncode == 2 and "--drop-damaged" in stopped.stderr
    done = rolegraph("run", "-m", "--resume", "--drop-damaged", "--out", "s")
    assert done.returncode == 0, done.stderr
    assert len([*read_episodes(tmp_path / "s" / "seed=1" / "episodes.jsonl")]) == 3


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints.jsonl"])
def test_a_training_drops_its_damaged_lines(name: str, rolegraph: Command, tmp_path: Path) -> None:
    run = RunFolder(training_folder(tmp_path / "t"))
    file = run.path / name
    (line,) = file.read_text().splitlines()
    file.write_text(
        f"{line}\n" + line.replace('"step":1', '"step":2').replace('"step": 1', '"step": 2') + "\n"
    )
    damaged = damage(file, 0)
    stopped = rolegraph("train", "--resume", "--out", "t")
    assert stopped.returncode == 2, stopped.stdout
    assert f"{name}:1" in stopped.stderr and "--drop-damaged --out t" in stopped.stderr
    rolegraph("train", "--resume", "--drop-damaged", "--out", "t", "--base-url", "http://127.0.0.1:9")
    assert (run.path / f"{name}.damaged").read_bytes() == damaged
    assert len(run.metrics()) == len(run.checkpoints()) == 1


def test_a_full_disk_at_the_log_is_one_warning(forked: Command, tmp_path: Path) -> None:
    """Fill the log up to the largest size of a file that the process may write."""
    most = 1 << 20
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=2)
    words = ("run", "solver_judge", "--model", "replay:model.jsonl", "--limit", "1", "--out", "r")
    assert forked(*words).returncode == 0
    (tmp_path / "r" / "log.txt").write_bytes(b"x" * (most - 10) + b"\n")
    words = ("run", "--resume", "--limit", "2", "--out", "r")
    done = subprocess.run(
        [sys.executable, "-m", "rolegraph", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    assert done.returncode == 0, done.stderr
    assert "Logging error" not in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("log.txt") == 1
    assert len([*read_episodes(tmp_path / "r" / "episodes.jsonl")]) == 2
