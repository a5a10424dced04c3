"""A stranger's tests file: it names no file outside its folder, and costs no more than a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.limits.specs import SPEC_BYTES
from tests import replays
from tests.cli.conftest import Command

ALIASES = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
"""Lists of lists, nine times as many each, that take a few hundred characters."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a spec to test."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "own.yaml").write_text("extends: solver_judge.yaml\nname: own\n")
    return folder


@pytest.mark.parametrize(
    "answers", ["{outside}/stolen.jsonl", "../stolen.jsonl", "link/stolen.jsonl", "own.yaml"]
)
def test_a_strangers_tests_write_no_file_but_a_recording_beside_them(
    answers: str, folder: Path, rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    spec = (folder / "own.yaml").read_text()
    answers = answers.format(outside=tmp_path / "outside")
    (folder / "own.test.yaml").write_text(f"answers: {answers}\ntasks: 1\n")
    replays.answers(tmp_path / "model.jsonl", replays.solved(0), tasks=8)
    done = rolegraph("test", "theirs/own.yaml", "--record", "--model", "replay:model.jsonl")
    assert done.returncode == 2, done.stdout
    assert "answers" in done.stderr and "Traceback" not in done.stderr
    assert (folder / "own.yaml").read_text() == spec
    assert not [*tmp_path.rglob("stolen*")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#" * (SPEC_BYTES.most + 1), "spec_bytes"),
        ("a: " + "[" * 200 + "]" * 200, "spec_depth"),
        (ALIASES, "spec_values"),
        ("answers: /dev/zero", "answers"),
    ],
    ids=["long", "deep", "aliases", "device"],
)
def test_a_strangers_tests_are_read_with_the_limits_of_a_spec(
    text: str, said: str, folder: Path, rolegraph: Command
) -> None:
    (folder / "own.test.yaml").write_text(text)
    done = rolegraph("test", "theirs/own.yaml")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
