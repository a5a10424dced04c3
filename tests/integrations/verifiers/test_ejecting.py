"""Folders that `rolegraph eject --verifiers` writes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.integrations.verifiers.ejecting import check_trainable
from tests.cli.conftest import Command

SPEC = """
rolegraph: 2
name: capitals
data: {train: rows.csv, split: 0.5}
roles:
  guide:
    prompt: ask.j2
    system: Be brief.
    parser: {tag: answer}
    reward: capital
    estimator: grpo
"""
REWARD = '''
import rolegraph as rg


@rg.reward("capital", labels=["capital"])
def capital(action, task):
    """Pay for the capital."""
    return float(action == task["capital"])
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Write a spec with a prompt, rows and a reward of its own, and return the spec."""
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "ask.j2").write_text("The capital of {{ task.country }}?")
    rows = ["id,country,capital", *(f"r{n},Land {n},Town {n}" for n in range(20))]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "capital.py").write_text(REWARD)
    (tmp_path / "capitals.yaml").write_text(SPEC)
    return tmp_path / "capitals.yaml"


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_package_has_all_that_the_spec_needs(rolegraph: Command, own: Path, tmp_path: Path) -> None:
    done = rolegraph("eject", "capitals.yaml", "--import", "capital.py", "--verifiers", "out")
    assert done.returncode == 0, done.stderr
    beside = {"__init__.py", "spec.yaml", "capital.py", "prompts/ask.j2", "train.jsonl", "validation.jsonl"}
    assert files(tmp_path / "out") == {
        "pyproject.toml",
        "README.md",
        *(f"capitals/{name}" for name in beside),
    }
    moved = tmp_path / "elsewhere"
    (tmp_path / "out" / "capitals").rename(moved)
    imports = [tmp_path / "capital.py"]
    before, after = (rg.load(spec, imports=imports) for spec in (own, moved / "spec.yaml"))
    for split in ("train", "validation"):
        assert after.tasks(split) == before.tasks(split)
    assert after.plan.hidden == before.plan.hidden
    assert 'imports=["capital.py"]' in (moved / "__init__.py").read_text()


def test_a_package_is_a_wheel_with_the_spec_and_its_prompts(rolegraph: Command, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="needs the extra `dev`")
    assert rolegraph("eject", "solver_judge", "--verifiers", "out").returncode == 0
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(words, cwd=tmp_path / "out", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out" / "dist").glob("solver_judge-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"solver_judge/{name}" for name in ("__init__.py", "spec.yaml", "prompts/judge.j2")} <= names


def test_python_is_as_linters_and_formatters_leave_it(rolegraph: Command, own: Path, tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    words = ["eject", "capitals.yaml", "--import", "capital.py", "--verifiers", "out"]
    assert rolegraph(*words).returncode == 0
    found = [path for path in (tmp_path / "out").rglob("*.py") if path.name != "capital.py"]
    for command in (["check", "--select", "E4,E7,E9,F,W,I,UP,B,SIM"], ["format", "--check"]):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--isolated",
            "--line-length",
            "110",
            *map(str, found),
        ]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_with_files_is_left_alone(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    done = rolegraph("eject", "solver_judge", "--verifiers", "out")
    assert done.returncode == 2 and "out is not empty: mine is in the way" in done.stderr
    assert files(tmp_path / "out") == {"mine"}


def test_one_project_at_a_time(rolegraph: Command) -> None:
    done = rolegraph("eject", "solver_judge", "--verifiers", "a", "--out", "b.py")
    assert done.returncode == 2 and "exclude each other" in done.stderr


def test_a_role_named_after_a_field_of_verifiers_is_refused(
    rolegraph: Command, own: Path, tmp_path: Path
) -> None:
    own.write_text(SPEC.replace("guide:", "timeout:"))
    done = rolegraph("eject", "capitals.yaml", "--import", "capital.py", "--verifiers", "out")
    assert done.returncode == 2 and "'timeout'; rename the role" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("roles.judge.weight=ramp(1, 2, 9)", "roles.judge.weight follows the step"),
        ("roles.solver.reward=step", "an expression of a reward follows the step"),
        ("train.stages=[{imitation: best, steps: 2}]", "train.stages"),
    ],
)
def test_what_follows_the_step_of_a_training_is_refused(override: str, path: str) -> None:
    with pytest.raises(UsageError, match=path):
        check_trainable(compile_file("solver_judge", [override]))
