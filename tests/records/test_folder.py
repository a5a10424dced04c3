"""Tests of a run's folder: its description, its result, and resuming a training from it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rolegraph.engine.errors import DataError, UsageError, WorldError
from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import EpisodeWriter, index_path
from rolegraph.engine.records.folder import PolicyPath, RunFolder
from rolegraph.engine.records.info import Checkpoint, Control, Kind, RunInfo, SavedPolicy
from rolegraph.engine.records.run_folders import newest
from tests.cli.conftest import Command, rolegraph
from tests.pages.view.runs import write_training

__all__ = ["rolegraph"]
VERSION_1 = {
    "name": "solver_judge",
    "hash": "1f0c9a7e2b",
    "templates": {"the prompt of solver": "{{ task.question }}"},
    "seed": 3,
    "steps": 30,
    "roles": {
        "solver": {"estimator": "grpo", "loss": "ppo", "trainable": True},
        "critic": {"estimator": None, "loss": "importance_sampling", "trainable": False},
    },
    "metrics": ["solver_acc"],
    "spec": "solver_judge",
    "overrides": ["train.steps=30"],
    "model_flag": None,
    "base_url": None,
    "model": "rolegraph-base",
    "a key of another version": 1,
}
"""Content of `run.json` in format version 1."""


def info(kind: Kind = "train", **values: object) -> RunInfo:
    return RunInfo.model_validate({"kind": kind, "name": "x", "roles": {}, "hash": "1", **values})


def begun(path: Path, kind: Kind = "train", **values: object) -> RunFolder:
    folder = RunFolder(path)
    folder.begin(info(kind, **values), "name: x\n")
    return folder


def checkpoint(step: int, *, best: bool = False, correct: float = 0.0) -> Checkpoint:
    validation = {"validation/correct": correct}
    saved = SavedPolicy(version=step, state=f"s{step}", sampler=f"w{step}")
    return Checkpoint(step=step, policies={"main": saved}, best=best, validation=validation)


def trained(path: Path, steps: int, checkpoints: tuple[int, ...] = ()) -> RunFolder:
    """Write a training of `steps` steps, with a validation before the first."""
    folder = begun(path)
    for step in range(steps + 1):
        split = "train" if step else "validation"
        folder.write_episodes(split, step, [Episode(f"t{step}", 0, {"id": f"t{step}"}, ())])
        folder.add_metrics({"step": float(step), "reward": 0.5})
        if step in checkpoints:
            folder.add_checkpoint(checkpoint(step))
    return folder


# description


def test_a_run_notes_what_it_is_of_and_when_it_began(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    folder = begun(tmp_path / "runs" / "x", "run", seed=7, command="rolegraph run x.yaml")
    noted = folder.info()
    assert (noted.kind, noted.seed, noted.command) == ("run", 7, "rolegraph run x.yaml")
    assert noted.version
    assert noted.started is not None and before <= noted.started <= datetime.now(UTC)
    assert noted.finished is None
    assert folder.spec_file.read_text() == "name: x\n"
    assert json.loads(folder.info_file.read_text())["started"].endswith("Z")


def test_credentials_in_a_url_are_not_kept(tmp_path: Path) -> None:
    url = "http://me:secret@host:80/path@1"
    typed = {"command": f"rolegraph train --base-url {url}", "base_url": url, "overrides": [f"model={url}"]}
    folder = RunFolder(tmp_path)
    folder.begin(info(**typed), f"model: {{base_url: '{url}'}}")
    folder.resume(f"rolegraph train --resume --base-url {url}", "")
    assert "secret" not in folder.info_file.read_text() + folder.spec_file.read_text()
    assert folder.info().base_url == "http://host:80/path@1"


def test_a_file_that_version_1_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(VERSION_1))
    noted = RunFolder(tmp_path).training()
    assert (noted.kind, noted.name, noted.seed, noted.overrides) == (
        "train",
        "solver_judge",
        3,
        ("train.steps=30",),
    )
    assert noted.roles["critic"].estimator is None
    assert noted.started is None
    RunFolder(tmp_path).resume("rolegraph train --resume", "")
    assert len(RunFolder(tmp_path).info().resumed) == 1


def test_a_folder_without_a_run_and_a_foreign_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not the folder of a run: there is no run\.json in it"):
        RunFolder(tmp_path).info()
    with pytest.raises(UsageError, match=r"there is no folder .*absent; give the folder of a run"):
        RunFolder(tmp_path / "absent").info()
    (tmp_path / "run.json").write_text('{"name": "x"}')
    with pytest.raises(DataError, match=r"run\.json is not a valid run file: roles: Field required"):
        RunFolder(tmp_path).info()
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*run\.json: Is a directory"):
        RunFolder(tmp_path).info()


def test_a_run_is_no_training(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="not the folder of a training run: it holds episodes of `rolegraph run`"
    ):
        begun(tmp_path, "run").training()


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    training = begun(tmp_path / "training")
    with pytest.raises(UsageError, match="already holds a run; go on with --resume, or choose another"):
        training.check_new("train")
    with pytest.raises(UsageError, match="already holds a run; choose another folder"):
        training.check_new("run")
    run = begun(tmp_path / "run", "run")
    run.check_new("run")  # a run that failed before its first episode
    with EpisodeWriter(run.episodes) as writer:
        writer.append(Episode("t", 0, {"id": "t"}, ()))
    with pytest.raises(UsageError, match="already holds a run; choose another folder"):
        run.check_new("train")
    with pytest.raises(UsageError, match="already holds a run; go on with --resume, or choose another"):
        run.check_new("run")


def test_a_folder_that_cannot_be_made_is_the_world_s_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match="cannot write to the output folder"):
        begun(tmp_path / "file" / "run")


# result


def test_a_run_that_ends_notes_its_figures(tmp_path: Path) -> None:
    folder = begun(tmp_path, "run")
    with folder.ending(), EpisodeWriter(folder.episodes) as writer:
        for at in range(4):
            writer.append(Episode("t", at, {"id": "t"}, (), is_correct=at == 0, metrics={"acc": 0.5}))
    noted = folder.info()
    assert noted.figures == {"episodes": 4, "correct": 0.25, "acc": 0.5}
    assert noted.started and noted.finished and noted.started <= noted.finished


@pytest.mark.parametrize("end", [KeyboardInterrupt, WorldError("the disk is full")])
def test_a_run_that_is_interrupted_or_fails_notes_them_too(
    tmp_path: Path, end: BaseException | type[BaseException]
) -> None:
    folder = begun(tmp_path, "run")
    with (
        pytest.raises((KeyboardInterrupt, WorldError)),
        folder.ending(),
        EpisodeWriter(folder.episodes) as writer,
    ):
        writer.append(Episode("t", 0, {"id": "t"}, ()))
        raise end
    assert folder.info().finished
    assert folder.info().figures["episodes"] == 1


def test_what_ended_a_run_is_told_even_where_its_end_cannot_be_noted(tmp_path: Path) -> None:
    folder = begun(tmp_path, "run")
    with pytest.raises(KeyboardInterrupt), folder.ending():
        folder.info_file.unlink()
        raise KeyboardInterrupt


def test_a_training_notes_its_last_validation_and_its_best(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    with folder.ending():
        for step, correct in ((1, 0.75), (2, 0.5), (3, None)):
            figures = {} if correct is None else {"validation/correct": correct}
            folder.add_metrics({"step": float(step), "reward/solver/mean": 0.1, **figures})
        folder.add_checkpoint(checkpoint(1, best=True, correct=0.75))
        folder.add_checkpoint(checkpoint(2, correct=0.5))
    assert folder.info().figures == {"step": 3, "validation/correct": 0.5, "best/correct": 0.75}


def test_a_resumed_training_keeps_its_beginning_and_notes_each_resume(tmp_path: Path) -> None:
    folder = begun(tmp_path, command="rolegraph train x")
    with pytest.raises(KeyboardInterrupt), folder.ending():
        raise KeyboardInterrupt
    first = folder.info()
    folder.resume("rolegraph train --resume", "")
    again = folder.info()
    assert (again.started, again.command) == (first.started, "rolegraph train x")
    assert (again.finished, again.figures) == (None, {})
    assert [resumed.command for resumed in again.resumed] == ["rolegraph train --resume"]


# resuming


def test_another_spec_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = begun(tmp_path, templates={"the prompt of solver": "Think."})
    folder.check_same(info(), "name: x\n")
    now = info(hash="2", templates={"the prompt of solver": "Guess."})
    with pytest.raises(UsageError, match="was started with another spec") as refused:
        folder.check_same(now, "name: y\n")
    for line in ("-name: x", "+name: y", "--- the prompt of solver, at the start", "-Think.", "+Guess."):
        assert line in str(refused.value).splitlines()
    with pytest.raises(UsageError, match="the code of what they name has changed"):
        folder.check_same(info(hash="2", templates=folder.info().templates), "name: x\n")


def test_what_came_after_the_last_checkpoint_is_dropped(tmp_path: Path) -> None:
    folder = trained(tmp_path, steps=5, checkpoints=(2, 4))
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 6, "rew')
    last = folder.rewind()
    assert last is not None and last.step == 4
    assert [line["step"] for line in folder.metrics()] == [0, 1, 2, 3, 4]
    assert [step for step, _ in folder.episodes_files("train")] == [1, 2, 3, 4]
    indexed = {
        index_path(file) for split in ("train", "validation") for _, file in folder.episodes_files(split)
    }
    assert {*folder.steps.glob("*.index")} == indexed
    # DuckDB, polars and datasets glob the episodes.
    files = [file for split in ("train", "validation") for _, file in folder.episodes_files(split)]
    assert sorted(folder.steps.glob("*.jsonl")) == sorted(files)


def test_without_a_checkpoint_a_training_begins_at_the_beginning(tmp_path: Path) -> None:
    folder = trained(tmp_path, steps=2)
    assert folder.rewind() is None
    assert folder.metrics() == []
    assert folder.episodes_files("train") == []
    assert RunFolder(tmp_path / "new").checkpoints() == []


def test_the_lines_that_are_kept_are_kept_to_the_byte(tmp_path: Path) -> None:
    folder = trained(tmp_path, steps=2, checkpoints=(2,))
    lines = '{"step": 1, "count":  16}\n{"step": 2.0, "x": 1e-05}\n'
    folder.metrics_file.write_text(lines + '{"step": 3}\n')
    folder.rewind()
    assert folder.metrics_file.read_text() == lines


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints.jsonl"])
def test_a_file_cut_at_any_byte_holds_whole_lines_and_goes_on(tmp_path: Path, name: str) -> None:
    folder = trained(tmp_path, steps=2, checkpoints=(1, 2))
    path = tmp_path / name
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        assert len(folder.metrics() if name == "metrics.jsonl" else folder.checkpoints()) == lines
        folder.add_metrics({"step": 9.0})
        folder.add_checkpoint(checkpoint(9))
        assert (folder.metrics()[-1]["step"], folder.checkpoints()[-1]) == (9, checkpoint(9))
        assert path.read_bytes().count(b"\n") == lines + 1


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    folder = trained(tmp_path, steps=1)
    folder.metrics_file.write_text('{"step": 1}\n{"reward": 1}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not a step's metrics: it has no 'step'"):
        folder.metrics()
    folder.checkpoints_file.write_text('{"step": 1}\n')
    with pytest.raises(DataError, match=r"checkpoints\.jsonl:1: not a checkpoint: policies: Field required"):
        folder.checkpoints()


def test_the_best_checkpoint_is_the_last_that_was_best_else_the_last(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        folder.best()
    folder.add_checkpoint(checkpoint(1))
    folder.add_checkpoint(checkpoint(2))
    assert folder.best().step == 2
    folder.add_checkpoint(checkpoint(3, best=True))
    folder.add_checkpoint(checkpoint(4))
    assert folder.best().step == 3


def test_a_checkpoint_without_a_policy_is_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.checkpoints_file.write_text('{"step": 2, "policies": {}}\n')
    with pytest.raises(DataError, match=r"checkpoints\.jsonl:1: not a checkpoint: .*no policy"):
        folder.best_of(None)


def test_controls_are_read_back(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    assert folder.controls() == ()
    row = Control(name="untrained workflow", figure="correct", mean=0.5, low=0.25, high=0.75, n=16)
    folder.write_controls([row])
    assert folder.controls() == (row,)
    folder.controls_file.write_text('[{"name": "x"}]')
    with pytest.raises(DataError, match=r"controls\.json is not a valid list of controls: 0\.figure"):
        folder.controls()
    folder.controls_file.write_text('[{"name": "x", "figure": "y", "mean": 1e999, "low": 0, "high": 1e300}]')
    with pytest.raises(DataError, match=r"0\.mean: Input should be a finite number"):
        folder.controls()


# which


def test_the_newest_is_the_training_that_was_begun_last(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        begun(tmp_path / name, name="other" if name == "two" else "x")
    begun(tmp_path / "run", "run")
    RunFolder(tmp_path / "one").resume("rolegraph train --resume", "")  # which begins nothing
    assert newest(tmp_path).path == tmp_path / "three"
    assert newest(tmp_path, "other").path == tmp_path / "two"
    with pytest.raises(UsageError, match="there is no training run of none in"):
        newest(tmp_path, "none")
    with pytest.raises(UsageError, match="there is no training run in"):
        newest(tmp_path / "absent")


def test_where_the_beginning_is_not_noted_the_file_s_time_tells(tmp_path: Path) -> None:
    for name, time in (("old", 1_000_000_000), ("new", 2_000_000_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(VERSION_1))
        os.utime(tmp_path / name / "run.json", (time, time))
    assert newest(tmp_path).path == tmp_path / "new"


@pytest.mark.parametrize("name", ["plain", "a#b", "a?b", "a%20b", "#", "a#"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_policy_is_read_as_it_is_written_whatever_the_folder_is_called(
    tmp_path: Path, name: str, exists: bool
) -> None:
    folder = tmp_path / name
    if exists:
        folder.mkdir()
    for policy in (None, "judge"):
        written = PolicyPath(str(folder), policy)
        assert PolicyPath.parse(str(written)) == written
    if exists:
        assert PolicyPath.parse(str(folder)) == PolicyPath(str(folder))
    assert PolicyPath.parse(f"runs/{'a' * 5_000}#judge") == PolicyPath(f"runs/{'a' * 5_000}", "judge")


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_the_folder_of_a_message_is_the_one_that_was_named(
    tmp_path: Path, rolegraph: Command, name: str
) -> None:
    write_training(tmp_path / name, steps=1, tasks=1)
    for words in (("export", name), ("run", "solver_judge", f"model.checkpoint={name}")):
        done = rolegraph(*words)
        assert (done.returncode, f"{name} has no checkpoint yet" in done.stderr) == (2, True), done.stderr
    page = rolegraph("view", name, "--static", "page.html", "--no-hidden")
    assert page.returncode == 0 and "page.html: " in page.stdout
