"""Tests of rolegraph.toml: it counts for the user who trusts its present state, and for nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.records import RunFolder
from tests.cli.conftest import Command

REWARD = """
import rolegraph as rg

print("imported")

@rg.reward("own")
def own(task, action):
    return 1.0
"""
SPEC = "extends: solver_judge.yaml\nname: mine\nroles:\n  solver: {reward: own}\n  judge: {reward: own}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "mine.yaml").write_text(SPEC)
    (place / "rewards.py").write_text(REWARD)
    (place / "rolegraph.toml").write_text('imports = ["rewards.py"]\n[flags]\nlimit = 2\nrollouts = 3\n')
    return place


def test_a_strangers_file_imports_nothing(rolegraph: Command, folder: Path) -> None:
    done = rolegraph("validate", "mine/mine.yaml")
    assert done.returncode == 2
    assert "imported" not in done.stdout
    assert "rolegraph trust mine" in done.stderr
    assert "unknown reward 'own'" in done.stderr


def test_a_trusted_file_counts_until_it_changes(rolegraph: Command, folder: Path) -> None:
    shown = rolegraph("trust", "mine", "--yes")
    assert shown.returncode == 0
    assert ["imports", "rewards.py"] in [line.split() for line in shown.stdout.splitlines()]
    done = rolegraph("validate", "mine/mine.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    with (folder / "rolegraph.toml").open("a") as file:
        file.write("# changed\n")
    assert "rolegraph trust mine" in rolegraph("validate", "mine/mine.yaml").stderr


def test_nothing_is_trusted_without_a_yes(rolegraph: Command, folder: Path) -> None:
    assert rolegraph("trust", "mine").returncode != 0  # no answer
    assert rolegraph("validate", "mine/mine.yaml").returncode == 2


def test_its_flags_are_defaults(rolegraph: Command, folder: Path, recording: Path) -> None:
    rolegraph("trust", "mine", "--yes")
    words = ("run", "mine/mine.yaml", "--model", f"replay:{recording}", "--replay-any", "--rollouts", "1")
    done = rolegraph(*words, "--out", "out")
    assert done.returncode == 0, done.stderr
    info = RunFolder(folder.parent / "out").info()
    assert (info.limit, info.rollouts) == (2, 1)
    assert [Path(file).name for file in info.imports] == ["rewards.py"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("imports = 3", "imports"),
        ("import = []", "import"),
        ("imports = [", "not TOML"),
        pytest.param("imports = " + "[" * 100_000, "not TOML", id="brackets"),
        pytest.param("#" * 17_000_000, "limit: ", id="long"),
        ("[flags]\nlimt = 3", "did you mean 'limit'?"),
    ],
)
def test_a_mistake_in_it_is_named(rolegraph: Command, folder: Path, text: str, said: str) -> None:
    (folder / "rolegraph.toml").write_text(text)
    done = rolegraph("trust", "mine", "--yes")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_list_shows_what_a_file_registers(rolegraph: Command, folder: Path) -> None:
    done = rolegraph("list", "rewards", "--import", "mine/rewards.py")
    assert "own" in [line.split()[0] for line in done.stdout.splitlines() if line]
