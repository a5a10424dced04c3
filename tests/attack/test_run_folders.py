"""A stranger's folder of a run, training or sweep: its imports, permissions and addresses do not count."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.info import Checkpoint, SavedPolicy
from rolegraph.local.weights import checkpoint_folder, copy_weights
from tests.cli.conftest import Command
from tests.models.edges import Endpoint, chat_answer, serving

CODE = "print('imported')\n"
ELSEWHERE = "http://stranger.invalid:9"
SETTINGS = ("--limit", "1")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(lambda body: chat_answer("<answer>1</answer>")) as served:
        yield served


def change(file: Path, **fields: Any) -> None:
    """Change a JSON file, as its author may."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.fixture
def own(forked: Command, endpoint: Endpoint, tmp_path: Path) -> Path:
    """Make a run with an import, in a child process: what this process imports is imported once."""
    (tmp_path / "code.py").write_text(CODE)
    model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
    made = forked("run", "solver_judge", *model, *SETTINGS, "--import", "code.py", "--out", "own")
    assert (made.returncode, "imported" in made.stdout) == (0, True), made.stderr
    return tmp_path / "own"


def test_a_folder_that_the_user_made_is_resumed_without_a_word(
    rolegraph: Command, own: Path, tmp_path: Path
) -> None:
    shutil.move(own, tmp_path / "moved")
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "moved")
    assert (done.returncode, "imported" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seal", ""),
        ("seal", "0" * 64),
        ("seal", "\u0130" * 64),
        ("imports", ["code.py", "more.py"]),
        ("allowed", ["python"]),
        ("base_url", ELSEWHERE),
        ("model_flag", "replay:/etc/passwd"),
        ("overrides", ["roles.solver.count=3"]),
    ],
)
def test_a_folder_that_was_changed_imports_nothing(
    field: str, value: object, rolegraph: Command, own: Path, tmp_path: Path
) -> None:
    (tmp_path / "more.py").write_text(CODE)
    change(own / "run.json", **{field: value})
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "own")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rolegraph trust own" in done.stderr


def test_a_folder_that_asks_for_much_is_named_in_a_short_message(rolegraph: Command, own: Path) -> None:
    change(own / "run.json", base_url=f"{ELSEWHERE}/{'x' * 5_000}")
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "own")
    assert done.returncode == 2 and ELSEWHERE in done.stderr and "rolegraph trust own" in done.stderr
    assert len(done.stderr) < 3_000


def test_imports_of_a_strangers_folder_count_where_they_are_given_again(
    rolegraph: Command, own: Path
) -> None:
    change(own / "run.json", seal="")
    words = ("run", "--resume", "--rollouts", "2", "--out", "own")
    assert rolegraph(*words).returncode == 2
    assert "--model" in rolegraph(*words, "--import", "code.py").stderr  # the model is asked for as well
    given = rolegraph(*words, "--import", "code.py", "--model", "openai:tiny")
    assert (given.returncode, "imported" in given.stdout) == (0, True), given.stderr


def test_a_strangers_folder_counts_once_it_is_trusted(rolegraph: Command, own: Path) -> None:
    change(own / "run.json", seal="")
    shown = rolegraph("trust", "own", "--yes")
    assert shown.returncode == 0 and "--import code.py" in shown.stdout and "imported" not in shown.stdout
    assert rolegraph("run", "--resume", "--rollouts", "2", "--out", "own").returncode == 0
    change(own / "run.json", imports=["more.py"])
    assert rolegraph("run", "--resume", "--rollouts", "2", "--out", "own").returncode == 2


def test_another_folders_file_of_the_same_name_is_another_import(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    shutil.move(own, tmp_path / "theirs" / "own")
    (tmp_path / "theirs" / "code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path / "theirs")
    with pytest.raises(rg.UsageError, match="rolegraph trust"):
        rg.RunJob.resume("own")


def test_a_strangers_training_imports_nothing(rolegraph: Command, own: Path) -> None:
    change(own / "run.json", kind="train", seal="")
    done = rolegraph("train", "--resume", "--out", "own")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--import code.py" in done.stderr


def test_a_strangers_sweep_imports_nothing(
    forked: Command, rolegraph: Command, endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text(CODE)
    model = ("--model", "openai:tiny", "--base-url", endpoint.base_url, "--import", "code.py")
    grid = ("run", "solver_judge", "roles.solver.count=1,2", "-m", "--out", "sweep")
    made = forked(*grid, *model, *SETTINGS)
    assert made.returncode == 0, made.stderr
    change(tmp_path / "sweep" / "sweep.json", seal="")
    done = rolegraph("run", "-m", "--resume", "--out", "sweep")
    assert done.returncode == 2 and "imported" not in done.stdout
    assert rolegraph("trust", "sweep", "--yes").returncode == 0
    done = rolegraph("run", "-m", "--resume", "--out", "sweep")
    assert done.returncode == 0 and "imported" in done.stdout, done.stderr


def test_an_export_sends_no_key_to_an_address_of_a_strangers_folder(rolegraph: Command, own: Path) -> None:
    change(own / "run.json", kind="train", seal="", base_url=ELSEWHERE)
    saved = SavedPolicy(state="tinker://run/weights/1", sampler="tinker://run/sampler_weights/1", version=1)
    RunFolder(own).add_checkpoint(Checkpoint(step=1, policies={"main": saved}))
    done = rolegraph("export", "own", TINKER_API_KEY="tml-secret")
    assert done.returncode == 2
    assert ELSEWHERE in done.stderr and "--base-url" in done.stderr


def test_a_number_of_episodes_beyond_all_bounds_is_not_counted_one_by_one(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(own / "run.json", rollouts=10**40)
    monkeypatch.chdir(own.parent)
    job = rg.RunJob.resume("own")
    assert (job.done, job.episodes) == (1, 10**40)


def test_half_a_character_in_a_folder_is_replaced_where_the_folder_is_written(
    rolegraph: Command, own: Path
) -> None:
    change(own / "run.json", command="rolegraph run \udcff")
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "own")
    assert done.returncode == 0, done.stderr
    assert RunFolder(own).info().command == "rolegraph run ?"


def evaluated(low: float) -> str:
    side = {"mean": 0.5, "low": low, "high": 0.5, "n": 2}
    row = {"base": side, "checkpoint": side, "difference": side}
    return json.dumps({"figures": {"correct": row}, "tasks": 2, "episodes": 2})


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "[", '{"figures": {}, "tasks": "\u0130", "episodes": 1}', None),
        *(evaluated(-math.inf), evaluated(math.nan), evaluated(-1e308)),
    ],
)
def test_a_damaged_evaluation_of_a_sweep_is_named(tmp_path: Path, text: str | None) -> None:
    source = api.Source.of("solver_judge", "seed=1,2", model="openai:tiny")
    job = rg.SweepJob.create(source, "eval", checkpoint="tinker://a/weights/b", out=tmp_path / "sweep")
    file = tmp_path / "sweep" / "seed=1" / "evaluation.json"
    file.parent.mkdir()
    file.mkdir() if text is None else file.write_text(text)
    with pytest.raises(rg.DataError, match=r"seed=1.evaluation\.json"):
        job.write_results()


@pytest.mark.parametrize("text", ["[", "[1]", '"a"', "[" * 3_000])
def test_weights_with_a_damaged_description_are_not_copied(tmp_path: Path, text: str) -> None:
    path, theirs = "tinker://a/sampler_weights/b", tmp_path / "theirs"
    folder = checkpoint_folder(path, theirs)
    assert folder is not None
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(text)
    with pytest.raises(rg.UsageError, match="theirs"):
        copy_weights(path, theirs, tmp_path / "own")


def test_the_key_of_seals_is_the_users_alone(own: Path) -> None:
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "rolegraph" / "seal.key"
    assert file.stat().st_mode & 0o777 == 0o600 and len(file.read_bytes()) == 32
