"""A stranger's folder with links, hard links and pipes under the names that a command writes.

Nothing outside the folder changes or appears, whatever the command; the message has the name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.api import jobs
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.data import DATA_FILE
from rolegraph.engine.records.info import Checkpoint, SavedPolicy
from tests import replays
from tests.cli.conftest import Command
from tests.examples import sample

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and named pipes")
SECRET = "export PATH=/usr/bin\n"
NOWHERE = "http://127.0.0.1:9"
Plant = Callable[[Path, Path], None]
"""Function that puts something odd at a path; the second path is that of a file outside the folder."""


def move_out(path: Path, outside: Path) -> None:
    """Move the content of a file outside, if there is any, so that readers find it by a link."""
    if path.is_file():
        shutil.copy(path, outside)
        path.unlink()


def link(path: Path, outside: Path) -> None:
    move_out(path, outside)
    path.symlink_to(outside)


def dangling(path: Path, outside: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(outside.with_name("new"))


def hard_link(path: Path, outside: Path) -> None:
    move_out(path, outside)
    path.hardlink_to(outside)


def pipe(path: Path, outside: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


PLANTS = sample((link, dangling, hard_link, pipe), 1)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "bashrc").write_text(SECRET)
    return folder / "bashrc"


@pytest.fixture
def refused(rolegraph: Command, outside: Path) -> Callable[..., None]:
    """Return a function that runs a command, and checks that it is refused for a name and writes nothing."""

    def check(name: str, *words: str) -> None:
        before = {file: file.read_bytes() for file in outside.parent.rglob("*") if file.is_file()}
        done = rolegraph(*words)
        assert done.returncode in (1, 2), done.stdout
        assert name in done.stderr and "Traceback" not in done.stderr, done.stderr
        after = {file: file.read_bytes() for file in outside.parent.rglob("*") if file.is_file()}
        assert after == before

    return check


def run_folder(folder: Path) -> Path:
    replays.run(folder, replays.solved(0), tasks=2)
    return folder


def training_folder(folder: Path) -> Path:
    """Make the folder of a training with a checkpoint, without training."""
    flow = rg.load("solver_judge")
    run = RunFolder(folder)
    run.begin(jobs.describe(flow, "train", seed=0, steps=100), flow.plan.resolved)
    (folder / "weights").mkdir()
    run.add_metrics({"step": 1.0, "train/correct": 0.5})
    saved = SavedPolicy(state="tinker://run/weights/1", sampler="tinker://run/sampler_weights/1", version=1)
    run.add_checkpoint(Checkpoint(step=1, policies={"main": saved}))
    return folder


MORE = ("--rollouts", "2")


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize(
    "name",
    ["log.txt", "episodes.jsonl", "episodes.index", "run.json", "spec.yaml", "data.jsonl", ".writer"],
)
def test_a_run_writes_through_nothing(
    name: str, plant: Plant, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    plant(run_folder(tmp_path / "r") / name, outside)
    refused(name, "run", "--resume", *MORE, "--out", "r")


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", ["log.txt", "episodes.jsonl", "spec.yaml", "run.json"])
def test_a_new_run_writes_through_nothing_in_a_folder_that_was_there(
    name: str, plant: Plant, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=2)
    (tmp_path / "r").mkdir()
    if plant in (link, hard_link) and name in ("episodes.jsonl", "run.json"):
        outside.write_bytes(b"" if name == "episodes.jsonl" else b'{"kind": "run", "name": "x", "hash": ""}')
    plant(tmp_path / "r" / name, outside)
    refused(name, "run", "solver_judge", "--model", "replay:model.jsonl", "--limit", "2", "--out", "r")


@pytest.mark.parametrize("name", [".run.json.part", ".spec.yaml.part", ".episodes.index.part"])
def test_names_of_parts_cannot_be_foreseen(
    name: str, rolegraph: Command, outside: Path, tmp_path: Path
) -> None:
    (run_folder(tmp_path / "r") / name).symlink_to(outside)
    done = rolegraph("run", "--resume", "--retry-failed", "--out", "r")
    assert "Traceback" not in done.stderr
    assert outside.read_text() == SECRET


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize(
    "name",
    [
        *("log.txt", "metrics.jsonl", "checkpoints.jsonl", "controls.json", "report.html", "run.json"),
        *(
            "episodes/train-000001.jsonl",
            "episodes/train-000001.index",
            "weights/run/x",
            "adapters/main/x",
        ),
    ],
)
def test_a_training_writes_through_nothing(
    name: str, plant: Plant, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    file = training_folder(tmp_path / "t") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    plant(file, outside)
    refused(name, "train", "--resume", "--out", "t")


@pytest.mark.parametrize("name", ["episodes", "weights", "adapters"])
def test_a_folder_on_the_way_is_no_link(
    name: str, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    folder = training_folder(tmp_path / "t") / name
    if folder.is_dir():
        folder.rmdir()
    folder.symlink_to(outside.parent)
    refused(name, "train", "--resume", "--out", "t")


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize(
    "name", ["sweep.json", "sweep.svg", "seed=1", "seed=1/log.txt", "seed=1/episodes.jsonl"]
)
def test_a_sweep_writes_through_nothing(
    name: str, plant: Plant, rolegraph: Command, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=2)
    grid = ("solver_judge", "seed=0,1", "-m", "--model", "replay:model.jsonl", "--limit", "1", "--out", "s")
    made = rolegraph("run", *grid)
    assert made.returncode == 0, made.stderr
    if name == "seed=1":
        shutil.rmtree(tmp_path / "s" / name)
    plant(tmp_path / "s" / name, outside)
    refused(name, "run", "-m", "--resume", "--rollouts", "2", "--out", "s")


@pytest.mark.parametrize("name", ["base", "checkpoint", "evaluation.json"])
def test_an_evaluation_writes_through_nothing(
    name: str, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    place = tmp_path / "e" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(outside if name == "evaluation.json" else outside.parent)
    weights = ("--checkpoint", "tinker://run/sampler_weights/1", "--base-url", NOWHERE, "--tasks", "1")
    refused(name, "eval", "solver_judge", *weights, "--out", "e")


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize(
    "name", ["log.txt", "reflections.jsonl", "spec.yaml", DATA_FILE, "prompts", "candidates"]
)
def test_an_optimization_writes_through_nothing(
    name: str, plant: Plant, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    pytest.importorskip("gepa")
    from rolegraph.integrations.gepa.optimizing import SETTINGS, OptimizationJob

    flow = rg.load("solver_judge", model="openai:tiny", base_url=NOWHERE)
    job = OptimizationJob.create(flow, tasks=2, rollouts=1, budget=100, out=tmp_path / "o")
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / SETTINGS).write_text(json.dumps(job.settings))
    if name == DATA_FILE:
        outside.write_text("")
    plant(tmp_path / "o" / name, outside)
    words = (
        "--model",
        "openai:tiny",
        "--base-url",
        NOWHERE,
        "--tasks",
        "2",
        "--rollouts",
        "1",
        "--budget",
        "100",
    )
    refused(name, "optimize", "solver_judge", *words, "--out", "o")


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report.html", ("report", "t")),
        ("index.html", ("report", "t", "--out", "r")),
        ("page.html", ("view", "r", "--static", "r/page.html", "--hidden")),
        ("page.html", ("compare", "r", "r", "--html", "r/page.html")),
        ("graph.svg", ("graph", "solver_judge", "--out", "r/graph.svg")),
        ("schema.json", ("schema", "--out", "r/schema.json")),
        ("script.py", ("eject", "solver_judge", "--out", "r/script.py")),
        ("adapter", ("export", "t", "--base-url", NOWHERE)),
        ("rows.jsonl", ("export", "r", "--sft", "r/rows.jsonl")),
        ("answers.jsonl", ("test", "r/own.yaml", "--record", "--model", "replay:model.jsonl")),
        ("junit.xml", ("test", "r/own.yaml", "--junit", "r/junit.xml")),
    ],
)  # fmt: skip
def test_other_commands_write_through_nothing(
    name: str, words: Sequence[str], plant: Plant, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=8)
    run_folder(tmp_path / "r")
    training_folder(tmp_path / "t")
    (tmp_path / "r" / "own.yaml").write_text("extends: solver_judge.yaml\nname: own\n")
    if name in ("answers.jsonl", "junit.xml"):
        (tmp_path / "r" / "own.test.yaml").write_text("answers: answers.jsonl\ntasks: 1\n")
    if name == "junit.xml":
        replays.answers(tmp_path / "r" / "answers.jsonl", replays.solved(0), tasks=1)
    folder = tmp_path / ("t" if name in ("report.html", "adapter") else "r")
    plant(folder / name, outside)
    refused(name, *words)


def test_new_tests_are_not_written_through_a_link(
    refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=8)
    (tmp_path / "own.yaml").write_text("extends: solver_judge.yaml\nname: own\n")
    dangling(tmp_path / "own.test.yaml", outside)
    refused("own.test.yaml", "test", "own.yaml", "--record", "--model", "replay:model.jsonl")


@pytest.mark.parametrize("name", ["weights", "weights/run", "weights/run/sampler_weights/1"])
def test_an_export_reads_and_cleans_no_folder_through_a_link(
    name: str, refused: Callable[..., None], outside: Path, tmp_path: Path
) -> None:
    folder = training_folder(tmp_path / "t")
    (folder / "weights").rmdir()
    theirs = outside.parent / "theirs"
    checkpoint = theirs.joinpath(*Path("weights/run/sampler_weights/1").relative_to(name).parts)
    checkpoint.mkdir(parents=True)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(theirs)
    refused(name, "export", "t")


def test_links_that_a_user_types_and_links_of_other_names_stay_the_user_s(
    rolegraph: Command, outside: Path, tmp_path: Path
) -> None:
    run_folder(tmp_path / "r")
    (tmp_path / "r" / "notes").symlink_to(outside)
    (tmp_path / "mine").symlink_to(tmp_path / "r")
    done = rolegraph("run", "--resume", "--limit", "2", "--out", "mine")
    assert done.returncode == 0, done.stderr
    done = rolegraph("view", "mine", "--static", "mine/page.html", "--hidden")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "page.html").exists()
