"""Tests of the tutorial's commands, the examples in CONTRIBUTING.md, and common mistakes."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rolegraph.cli.main import run
from rolegraph.engine.vocabulary import ItemCall, estimators
from tests.cli.conftest import SETTINGS, Command
from tests.documents import ROOT, TUTORIAL, blocks

if TYPE_CHECKING:
    from rolegraph.local.launcher import LocalService

SMALLER = {
    "run": ["--limit", "2"],
    "train": [
        "train.steps=1",
        "train.batch_size=2",
        "train.rollouts=2",
        "train.validation={every: 0, tasks: 2, rollouts: 1}",
    ],
    "eval": ["--tasks", "2", "--rollouts", "1"],
}
"""Extra options that make the tutorial's commands faster, by verb."""


def commands() -> Iterator[list[str]]:
    """Yield the tutorial's commands in page order, and write the tutorial's files in between."""
    for language, text in blocks(TUTORIAL, "sh", "python", "yaml", "jinja", "toml"):
        if language == "jinja":
            Path("prompts/check.j2").write_text(text)
        elif language == "toml":
            Path("rolegraph.toml").write_text(text)
        elif language != "sh":
            Path(text.split()[1]).write_text(text)  # the first line of the block is `# FILE`
        else:
            yield from map(shlex.split, text.replace("\\\n", " ").splitlines())


@pytest.mark.service
def test_who_follows_the_tutorial_gets_to_its_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    registries: None,
    service: LocalService,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    for name, value in {**SETTINGS, "TINKER_API_KEY": service.api_key}.items():
        monkeypatch.setenv(name, value)
    for command in commands():
        match command:
            case ["cd", folder]:
                monkeypatch.chdir(folder)
            case ["python", script]:
                runpy.run_path(script)
            case ["rolegraph", verb, *words]:
                served = [*SMALLER[verb], "--base-url", service.base_url] if verb in SMALLER else []
                assert run([verb, *words, *served]) == 0, capsys.readouterr().err
            case _:
                raise AssertionError(command)
    said = capsys.readouterr().out
    assert "policies.checker.checkpoint=runs/taught" in said
    assert "rolegraph train checked.yaml" in said
    assert_rows_are_apart()
    written = {str(path) for path in Path().rglob("*")}
    assert {"checked.svg", "seen.html", "runs/taught/report.html", "runs/second/run.json"} <= written
    assert "runs/taught/adapter/adapter_model.safetensors" in written


def assert_rows_are_apart() -> None:
    """Assert that the 78 rows have 78 different pairs of numbers, so that none is in both files."""
    files = [Path(f"own_{split}.jsonl").read_text().splitlines() for split in ("train", "validation")]
    pairs = [tuple(sorted(json.loads(line)["nums"])) for lines in files for line in lines]
    assert [len(lines) for lines in files] == [40, 38]
    assert len(set(pairs)) == 78


@pytest.fixture
def extras(tmp_path: Path) -> None:
    """Write the Python examples of CONTRIBUTING.md to one file, and the spec that uses them to another."""
    examples = blocks(ROOT / "CONTRIBUTING.md", "python", "yaml")
    (tmp_path / "extras.py").write_text(
        "\n".join(text for language, text in examples if language == "python")
    )
    (tmp_path / "guessing.yaml").write_text(
        "".join(text for language, text in examples if language == "yaml")
    )


def test_what_contributing_adds_to_the_vocabulary_is_used_by_its_spec(
    rolegraph: Command, extras: None
) -> None:
    done = rolegraph("preview", "guessing.yaml", "--import", "extras.py")
    assert done.returncode == 0, done.stderr
    assert "Guess my number, 1 to 5." in done.stdout  # the environment's first observation
    assert "Advice: ['first', 'second']" in done.stdout  # output of the parser and the tool
    compute = estimators.build(ItemCall("over_median")).compute
    assert compute is not None
    (advantages,) = compute([np.array([0.0, 1.0, 5.0])], [])
    assert advantages.tolist() == [-1.0, 0.0, 4.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("validate guessing.yaml", "unknown parser 'lines'"),
        ("run my.yaml", "no spec 'my.yaml': there is no such file"),
        ("run react", "needs a permission"),
        ("train solver_judge --model openai:gpt-5", "a model of openai cannot be trained"),
        ("run solver_judge --model openai:gpt-5", "OPENAI_API_KEY is not set"),
        ("run solver_judge --model openai:x --base-url http://127.0.0.1:9/v1", "Nothing answers at http://"),
        ("run solver_judge --model local:nowhere", "there is no model folder"),
    ],
)
def test_the_messages_of_the_page_on_trouble_are_said(
    rolegraph: Command, extras: None, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = rolegraph(*words.split())
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stderr.split())
    known = re.sub(r"unknown \w+ '\w+'", "unknown reward 'near'", said)
    assert known in (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
