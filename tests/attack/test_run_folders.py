"""A stranger's folder of a run, training or sweep: its imports, permissions and addresses do not count."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.info import Checkpoint, SavedPolicy
from rolegraph.engine.records.weights import checkpoint_folder, copy_weights
from rolegraph.engine.shipped import PROMPTS, SPECS
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


@pytest.fixture
def plain(rolegraph: Command, endpoint: Endpoint, tmp_path: Path) -> Path:
    """Make a run without imports and permissions."""
    model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
    made = rolegraph("run", "solver_judge", *model, *SETTINGS, "--out", "plain")
    assert made.returncode == 0, made.stderr
    return tmp_path / "plain"


def again(stderr: str) -> list[str]:
    """Return the words of the command that a message prints."""
    (command,) = re.findall(r"^  (rolegraph .*)$", stderr, re.MULTILINE)
    return shlex.split(command)[1:]


def test_a_folder_without_imports_is_resumed_without_a_word(
    rolegraph: Command, endpoint: Endpoint, tmp_path: Path
) -> None:
    model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
    made = rolegraph("run", "solver_judge", "roles.solver.count=3", *model, *SETTINGS, "--out", "made")
    assert made.returncode == 0, made.stderr
    shutil.move(tmp_path / "made", tmp_path / "moved")
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "moved")
    assert done.returncode == 0, done.stderr


def test_imports_are_given_again_by_the_command_that_the_message_prints(
    rolegraph: Command, own: Path, tmp_path: Path
) -> None:
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "own")
    assert (done.returncode, done.stdout) == (2, "")
    command = again(done.stderr)
    assert command == ["run", "--resume", "--rollouts", "2", "--out", "own", "--import", "code.py"]
    shutil.move(own, tmp_path / "it's moved")
    done = rolegraph(*(word if word != "own" else "it's moved" for word in command))
    assert (done.returncode, "imported" in done.stdout) == (0, True), done.stderr


def test_a_file_that_the_user_trusted_gives_imports_and_permissions(
    forked: Command, endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text(CODE)
    shutil.copytree(PROMPTS, tmp_path / "prompts")
    shutil.copy(SPECS / "solver_judge.yaml", tmp_path / "mine.yaml")
    trusted = 'imports = ["code.py"]\nallow = ["python"]\n'
    (tmp_path / "rolegraph.toml").write_text(trusted)
    assert forked("trust", "--yes").returncode == 0
    model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
    assert forked("run", "mine.yaml", *model, *SETTINGS, "--out", "own").returncode == 0
    done = forked("run", "--resume", "--rollouts", "2", "--out", "own")
    assert (done.returncode, "imported" in done.stdout) == (0, True), done.stderr
    (tmp_path / "rolegraph.toml").write_text(trusted + "\n")
    done = forked("run", "--resume", "--rollouts", "3", "--out", "own")
    assert (done.returncode, "imported" in done.stdout) == (2, False)
    assert again(done.stderr)[-4:] == ["--import", "code.py", "--allow", "python"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("imports", ["code.py", "more.py"], ["--import", "code.py", "--import", "more.py"]),
        ("allowed", ["python"], ["--allow", "python"]),
        ("base_url", ELSEWHERE, ["--base-url", ELSEWHERE]),
        ("base_url", "http://[", ["--base-url", "http://["]),
    ],
)
@pytest.mark.parametrize("seal", [None, "0" * 64])
def test_a_folder_gives_no_code_no_permission_and_no_address(
    field: str, value: object, words: list[str], seal: str | None, rolegraph: Command, plain: Path
) -> None:
    """Earlier versions wrote a seal, which counts for nothing."""
    (plain.parent / "more.py").write_text(CODE)
    change(plain / "run.json", **{field: value}, **({} if seal is None else {"seal": seal}))
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "plain")
    assert (done.returncode, done.stdout) == (2, "")
    assert again(done.stderr)[-len(words) :] == words
    with pytest.raises(rg.UsageError, match="give it again"):
        rg.RunJob.resume(plain)


def test_a_folder_that_asks_for_much_is_named_in_a_short_message(rolegraph: Command, plain: Path) -> None:
    change(plain / "run.json", base_url=f"{ELSEWHERE}/{'x' * 9_000}")
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "plain")
    assert done.returncode == 2 and ELSEWHERE in done.stderr
    assert len(done.stderr) < 5_000


def test_overrides_of_a_folder_bring_no_file_to_an_address_elsewhere(rolegraph: Command, plain: Path) -> None:
    overrides = [f"roles.judge.model={{provider: openai, name: a, base_url: '{ELSEWHERE}'}}"]
    change(plain / "run.json", overrides=overrides)
    typed = ["run", "--resume", "--rollouts", "2", "--out", "plain"]
    for words, spec in ((typed, ["solver_judge"]), (["run", "solver_judge", *typed[1:]], [])):
        done = rolegraph(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert again(done.stderr) == [*words, *spec, *overrides, "--model", "openai:tiny"]


@pytest.mark.parametrize("by", ["model", "overrides", "spec"])
def test_a_models_folder_that_only_the_run_names_is_not_loaded(
    by: str, rolegraph: Command, plain: Path
) -> None:
    shutil.copytree(SPECS.parent / "prompts", plain / "prompts")
    text = (SPECS / "solver_judge.yaml").read_text() + "\nmodel: {provider: local, name: theirs}\n"
    (plain / "own.yaml").write_text(text)
    (plain / "theirs").mkdir()
    (plain / "theirs" / "tokenizer.json").write_text("{")
    fields = {
        "model": {"model_flag": "local:plain/theirs"},
        "overrides": {"overrides": ["model=local:plain/theirs"], "model_flag": None},
        "spec": {"spec": "plain/own.yaml", "model_flag": None},
    }
    change(plain / "run.json", base_url=None, **fields[by])
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "plain")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    command = again(done.stderr)
    assert command[:6] == ["run", "--resume", "--rollouts", "2", "--out", "plain"]
    assert command[6] == ("plain/own.yaml" if by == "spec" else "solver_judge")
    assert "give it again" not in rolegraph(*command).stderr  # it is named, and has no weights


def test_a_strangers_training_and_sweep_import_nothing(
    forked: Command, rolegraph: Command, own: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    change(own / "run.json", kind="train")
    done = rolegraph("train", "--resume", "--out", "own")
    assert (done.returncode, done.stdout) == (2, "")
    assert again(done.stderr) == ["train", "--resume", "--out", "own", "--import", "code.py"]
    model = ("--model", "openai:tiny", "--base-url", endpoint.base_url, "--import", "code.py")
    grid = ("run", "solver_judge", "roles.solver.count=1,2", "-m", "--out", "sweep")
    made = forked(*grid, *model, *SETTINGS)
    assert made.returncode == 0, made.stderr
    done = rolegraph("run", "-m", "--resume", "--out", "sweep")
    assert done.returncode == 2 and "imported" not in done.stdout
    done = forked(*again(done.stderr))
    assert done.returncode == 0 and "imported" in done.stdout, done.stderr


def test_an_export_sends_no_key_to_an_address_of_a_folder(rolegraph: Command, plain: Path) -> None:
    change(plain / "run.json", kind="train", base_url=ELSEWHERE)
    saved = SavedPolicy(state="tinker://run/weights/1", sampler="tinker://run/sampler_weights/1", version=1)
    RunFolder(plain).add_checkpoint(Checkpoint(step=1, policies={"main": saved}))
    done = rolegraph("export", "plain", "--merged", TINKER_API_KEY="tml-secret")
    assert done.returncode == 2
    assert again(done.stderr) == ["export", "plain", "--merged", "--base-url", ELSEWHERE]


def test_a_number_of_episodes_beyond_all_bounds_is_not_counted_one_by_one(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(plain / "run.json", rollouts=10**40)
    monkeypatch.chdir(plain.parent)
    job = rg.RunJob.resume("plain")
    assert (job.done, job.episodes) == (1, 10**40)


def test_half_a_character_in_a_folder_is_replaced_where_the_folder_is_written(
    rolegraph: Command, plain: Path
) -> None:
    change(plain / "run.json", command="rolegraph run \udcff")
    done = rolegraph("run", "--resume", "--rollouts", "2", "--out", "plain")
    assert done.returncode == 0, done.stderr
    assert RunFolder(plain).info().command == "rolegraph run ?"


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
    file.parent.mkdir(parents=True)
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
