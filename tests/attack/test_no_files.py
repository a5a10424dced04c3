"""Tests of paths that are not regular files: a pipe is neither read nor reported as missing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command, rolegraph

__all__ = ["rolegraph"]
ROLE = "{prompt: hi}"
LEARNER = "{prompt: hi, reward: countdown, signal: {imitation: {demonstration: p.j2}}}"
DATA = "\ndata: {validation: t.jsonl}"
SPECS = {
    "data": "{a: ROLE}\ndata: {validation: p.csv}",
    "corpus": "{a: {prompt: hi, tools: [{search: {corpus: p.csv}}], max_calls: 2}}",
    "template": "{a: {prompt: p.j2}}",
    "demonstration": f"{{a: {LEARNER}}}",
    "extends": "{a: ROLE}\nextends: p.yaml",
    "replay": '{a: {prompt: hi, model: "replay:p.jsonl"}}' + DATA,
    "model": '{a: {prompt: hi, model: "local:p.model"}}' + DATA,
    "sound": "{a: ROLE}\ndata: {validation: t.jsonl}",
}
NO_FILES = {
    "data": (
        ("validate", "data.yaml"),
        "data.yaml:4:20: error: cannot read 'p.csv': not a file that holds rows",
    ),
    "corpus": (("validate", "corpus.yaml"), "cannot read 'p.csv': not a file that holds rows"),
    "template": (("validate", "template.yaml"), "the template 'p.j2' is not a file"),
    "demonstration": (("validate", "demonstration.yaml"), "the template 'p.j2' is not a file"),
    "extends": (("validate", "extends.yaml"), "error: 'p.yaml' is not a file to extend"),
    "spec": (("validate", "p.yaml"), "cannot read p.yaml: not a regular file"),
    "spec to run": (("run", "./p.yaml"), "cannot read ./p.yaml: not a regular file"),
    "tests": (("validate", "p.test.yaml"), "cannot read p.test.yaml: not a regular file"),
    "import": (("validate", "sound.yaml", "--import", "p.py"), "p.py: expected a Python file"),
    "spec's replay": (("run", "replay.yaml"), "cannot read p.jsonl: not a regular file"),
    "replay": (
        ("run", "sound.yaml", "--model", "replay:p.jsonl"),
        "cannot read p.jsonl: not a regular file",
    ),
    "replayed run": (
        ("run", "sound.yaml", "--model", "replay:folder"),
        "cannot read folder/episodes.jsonl: not a regular file",
    ),
    "spec's model": (("run", "model.yaml"), "there is no model folder p.model"),
    "model": (("run", "sound.yaml", "--model", "local:p.model"), "there is no model folder p.model"),
    "run's folder": (
        ("run", "--resume", "--out", "folder"),
        "cannot read folder/run.json: not a regular file",
    ),
    "viewed folder": (
        ("view", "folder", "--static", "v.html"),
        "cannot read folder/run.json: not a regular file",
    ),
    "compared folder": (("compare", "folder", "folder"), "cannot read folder/run.json: not a regular file"),
    "reported folder": (("report", "folder"), "folder is not the folder of a training run"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("kind", NO_FILES)
def test_a_pipe_is_said_to_be_none(tmp_path: Path, rolegraph: Command, kind: str) -> None:
    for name, roles in SPECS.items():
        text = f"rolegraph: 2\nname: {name}\nroles: {roles}\n".replace("ROLE", ROLE)
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "1"}) + "\n")
    (tmp_path / "folder").mkdir()
    for name in ("p.csv", "p.j2", "p.yaml", "p.test.yaml", "p.py", "p.jsonl", "p.model"):
        os.mkfifo(tmp_path / name)
    for name in ("run.json", "episodes.jsonl"):
        os.mkfifo(tmp_path / "folder" / name)
    words, says = NO_FILES[kind]
    done = rolegraph(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "did you mean p." not in done.stderr.replace("'", "")
    assert "Traceback" not in done.stderr
