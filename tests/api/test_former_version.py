"""Tests that a folder of version 0.2, whose spec is of version 1 of the language, is not resumed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = """\
rolegraph: 1
name: mine
data: {train: countdown}
roles:
  solver: {prompt: solver.j2, reward: countdown, estimator: grpo}
episode: {metrics: {acc: correct}}
"""


@pytest.mark.parametrize(
    ("kind", "command", "anew"),
    [
        ("train", "train", "rolegraph train mine.yaml policies.main.checkpoint=old"),
        ("run", "run", "rolegraph run mine.yaml"),
    ],
)
def test_resuming_a_folder_of_version_0_2_names_the_ways_on_and_writes_nothing(
    kind: str, command: str, anew: str, tmp_path: Path
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (tmp_path / "mine.yaml").write_text(SPEC)
    (folder / "spec.yaml").write_text(SPEC)
    info = {
        "spec": "mine.yaml",
        "kind": kind,
        "name": "mine",
        "hash": "0",
        "version": "0.2.0",
        "roles": {},
        "tasks": 2,
        "rollouts": 1,
    }
    (folder / "run.json").write_text(json.dumps(info))
    before = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in folder.iterdir()}
    words = [sys.executable, "-m", "rolegraph", command, "--resume", "--out", "old"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'rolegraph==0.2.0'" in done.stderr
    assert anew in done.stderr
    assert "rolegraph migrate mine.yaml" in done.stderr
    assert before == {file.name: hashlib.sha256(file.read_bytes()).digest() for file in folder.iterdir()}
