"""Tests of what a command may write: no file that it did not make is changed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph.api import tracking
from rolegraph.engine.records import confined
from rolegraph.engine.records.folder import RUN
from rolegraph.engine.records.ownership import LOCK_FILE, STAGING, check_replaceable, write_output
from rolegraph.engine.records.staging import staged
from rolegraph.engine.records.sweep import SWEEP
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.starter.starting import new
from tests import replays
from tests.cli.conftest import Command

SPEC = """\
# My notes.
rolegraph: 2
name: mine
data: {train: countdown, validation: countdown}
roles:
  solver: {prompt: "{{ task.question }}", parser: {tag: answer}, reward: countdown, estimator: grpo}
train: {steps: 2}
"""
NOWHERE = ("--base-url", "http://127.0.0.1:9/v1")
WEIGHTS = ("--checkpoint", "tinker://run/sampler_weights/1")


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of change of each file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with files of the user, two of them under names that Rolegraph uses as well."""
    (tmp_path / "mine").mkdir()
    for name, text in {
        "data.jsonl": '{"question": "1 + 1"}\n',
        "spec.yaml": SPEC,
        "report.html": "<p>mine",
        "run.json": '{"speed": 3}',
        "sweep.json": "{}",
        "evaluation.json": "[]",
        "optimization.json": "{}",
        LOCK_FILE: "",
    }.items():
        (tmp_path / "mine" / name).write_text(text)
    return tmp_path / "mine"


@pytest.mark.parametrize("out", ["mine", "."])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "solver_judge", "--model", "openai:m", *NOWHERE, "--limit", "1"),
        ("run", "solver_judge", "-m", "seed=0,1", "--model", "openai:m", *NOWHERE),
        ("train", "solver_judge"),
        ("eval", "solver_judge", *WEIGHTS, *NOWHERE),
        ("train", "solver_judge", "--trainer", "rllm"),
    ],
    ids=" ".join,
)
def test_a_folder_with_other_files_is_refused_by_their_names(
    words: tuple[str, ...], out: str, rolegraph: Command, mine: Path
) -> None:
    before = state(mine.parent)
    done = rolegraph(*words, "--out", out)
    assert done.returncode == 2, done.stdout
    assert ("data.jsonl" if out == "mine" else "mine") in done.stderr and "in the way" in done.stderr
    assert state(mine.parent) == before


@pytest.mark.parametrize(
    "words",
    [
        ("run", "solver_judge", "--out", ""),
        ("graph", "solver_judge", "--out", ""),
        ("new", ""),
        ("skill", ""),
        ("export", "runs/x", "--out", ""),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_an_error(words: tuple[str, ...], rolegraph: Command, tmp_path: Path) -> None:
    done = rolegraph(*words)
    assert done.returncode == 2 and "it is empty" in done.stderr, done.stderr
    assert not [*tmp_path.iterdir()]


def test_notes_beside_a_run_are_no_obstacle_and_stay(rolegraph: Command, tmp_path: Path) -> None:
    replays.run(tmp_path / "r", replays.solved(0), tasks=2)
    (tmp_path / "r" / "notes.md").write_text("mine")
    assert rolegraph("run", "--resume", "--out", "r").returncode == 0
    assert (tmp_path / "r" / "notes.md").read_text() == "mine"


@pytest.mark.parametrize("names", [(), ("weights", "tensorboard-0123456789abcdef")])
def test_a_folder_of_a_command_that_was_killed_before_its_mark_is_taken(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / LOCK_FILE).write_text("process 1 on elsewhere")
    (tmp_path / ".0123456789abcdef.part").touch()
    for name in names:
        (tmp_path / name).mkdir()
    RUN.check(tmp_path)
    (tmp_path / "spec.yaml").touch()
    with pytest.raises(rg.UsageError, match=r"spec\.yaml is in the way"):
        RUN.check(tmp_path)


def test_a_sweep_that_runs_is_not_changed_by_a_second_command(rolegraph: Command, tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=2)
    grid = ("solver_judge", "seed=0,1", "-m", "--model", "replay:model.jsonl", "--limit", "1", "--out", "s")
    assert rolegraph("run", *grid).returncode == 0
    before = state(tmp_path / "s")
    with sole_writer(tmp_path / "s", SWEEP):
        done = rolegraph("run", "-m", "--resume", "--rollouts", "2", "--out", "s")
    assert done.returncode == 2 and "is in use by process" in done.stderr
    assert state(tmp_path / "s") == before


def test_a_resumed_run_drops_failed_episodes_under_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    replays.run(folder, replays.solved(0), tasks=2)
    before = state(folder)
    rg.RunJob.resume(folder, retry_failed=True)
    assert state(folder) == before


@pytest.mark.parametrize("form", ["svg", "mmd", "md", "json"])
def test_a_file_is_replaced_only_if_it_is_unchanged_since_it_was_written(
    form: str, rolegraph: Command, tmp_path: Path
) -> None:
    file, words = tmp_path / f"x.{form}", ("graph", "solver_judge", "--out", f"x.{form}")
    assert [rolegraph(*words).returncode for _ in range(2)] == [0, 0]
    if form == "json":
        json.loads(file.read_text())
    file.write_bytes(b" " + file.read_bytes())
    before = state(tmp_path)
    done = rolegraph(*words)
    assert done.returncode == 2 and "--force" in done.stderr
    assert state(tmp_path) == before
    assert rolegraph(*words, "--force").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("schema", "--out", "precious"),
        ("preview", "solver_judge", "--html", "precious"),
        ("eject", "solver_judge", "--out", "precious"),
        ("view", "r", "--static", "precious", "--hidden"),
        ("compare", "r", "r", "--html", "precious"),
        ("export", "r", "--sft", "precious"),
    ],
    ids=" ".join,
)
def test_a_file_of_the_user_is_not_replaced(
    words: tuple[str, ...], rolegraph: Command, tmp_path: Path
) -> None:
    replays.run(tmp_path / "r", replays.solved(0), tasks=2)
    (tmp_path / "precious").write_text("mine")
    before = state(tmp_path)
    done = rolegraph(*words)
    assert done.returncode == 2 and "precious exists" in done.stderr, done.stderr
    assert state(tmp_path) == before


def test_a_picture_may_carry_its_stamp(tmp_path: Path) -> None:
    write_output(tmp_path / "x.png", b"\x89PNG\r\n", "png")
    check_replaceable(tmp_path / "x.png")
    check_replaceable(tmp_path / "missing")
    check_replaceable(Path(os.devnull))


def test_what_a_killed_export_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in (f"{STAGING}x", ".part-notes"):
        (tmp_path / name).mkdir()
    with staged(tmp_path / "out") as made:
        made.mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part-notes", "out"]


def test_a_staged_folder_fills_an_empty_one_and_a_full_disk_leaves_it_empty(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(rg.WorldError, match="No space left"), staged(tmp_path / "out") as made:
        made.mkdir()
        (made / "half").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not [*(tmp_path / "out").iterdir()]
    with staged(tmp_path / "out") as made:
        made.mkdir()
        (made / "whole").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]


def test_a_full_disk_in_new_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_new, written = confined.write_new, list[Path]()

    def write_two(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_new(path, data)

    with monkeypatch.context() as patch, pytest.raises(rg.WorldError, match="No space left"):
        patch.setattr(confined, "write_new", write_two)
        new(tmp_path / "own")
    assert not [*tmp_path.iterdir()]


class NotingTracker(tracking.Tracker):
    """Tracker that writes one file where it may."""

    library = "json"

    def __init__(self, folder: Path, run: str, config: Mapping[str, Any]) -> None:
        (folder / "events").write_text(run)

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, tracking.Table]) -> None:
        pass

    def close(self, *, failed: bool) -> None:
        pass


def test_a_tracker_writes_into_a_new_folder_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "plugin", lambda *_: NotingTracker)
    for _ in range(2):
        with tracking.tracker("noting", tmp_path, "x", {}):
            pass
    assert len([*tmp_path.glob("noting-*/events")]) == 2
