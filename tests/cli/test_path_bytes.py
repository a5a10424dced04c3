"""Runs in folders whose names have bytes that are not UTF-8."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rolegraph.engine.records import RunFolder, read_episodes
from tests.cli.conftest import ENVIRONMENT
from tests.cli.printed import write_spec
from tests.cli.test_next_as_printed import rows
from tests.forks import run_forked
from tests.models.edges import Endpoint, chat_answer, serving


def run(folder: bytes, *words: str | bytes) -> subprocess.CompletedProcess[str]:
    decoded = ("run", *map(os.fsdecode, words))
    return run_forked(decoded, cwd=Path(os.fsdecode(folder)), env=ENVIRONMENT)


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    place = os.fsencode(tmp_path / "r_") + b"\xff"
    try:
        Path(os.fsdecode(place)).mkdir()
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    here = Path(os.fsdecode(place))
    write_spec(here, "exact_match")
    rows(here)
    return place


def model(endpoint: Endpoint) -> tuple[str, ...]:
    return ("--base-url", endpoint.base_url)


def test_a_run_whose_spec_has_such_a_path_names_it_and_goes_on_once_it_is_given(folder: bytes) -> None:
    spec = folder + b"/own.yaml"
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        made = run(folder, spec, *model(endpoint), "--limit", "1", "--out", "out")
        assert made.returncode == 0, made.stderr
        refused = run(folder, "--resume", "--limit", "2", "--out", "out")
        assert refused.returncode == 2 and "bytes that are not UTF-8" in refused.stderr
        done = run(folder, spec, "--resume", "--limit", "2", "--out", "out")
        assert done.returncode == 0, done.stderr
    assert len([*read_episodes(RunFolder(Path(os.fsdecode(folder)) / "out").episodes)]) == 2


def test_a_run_in_such_a_folder_is_resumed(folder: bytes) -> None:
    """The rows, an import and --out have such names, too."""
    out, code = b"out_\xff", b"code_\xff.py"
    Path(os.fsdecode(folder + b"/" + code)).touch()
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        made = run(folder, "own.yaml", *model(endpoint), "--limit", "1", "--import", code, "--out", out)
        assert made.returncode == 0, made.stderr
        refused = run(folder, "--resume", "--limit", "2", "--out", out)
        assert refused.returncode == 2 and "Traceback" not in refused.stderr
        done = run(folder, "--resume", "--limit", "2", "--out", out, "--import", code)
        assert done.returncode == 0, done.stderr
    assert len([*read_episodes(RunFolder(Path(os.fsdecode(folder + b"/" + out))).episodes)]) == 2
