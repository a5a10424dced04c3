"""A wheel carries everything: installed away from the checkout, it runs a shipped spec."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rolegraph.engine.records.episodes import read_episodes
from tests.conftest import OUTSIDE

pytest.importorskip("torch", reason="needs the extra `local`")
pytestmark = pytest.mark.service
ROOT = Path(__file__).parent.parent


def test_an_installed_wheel_runs_a_shipped_spec_on_the_shipped_model(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], env=OUTSIDE, check=True)
    (wheel,) = tmp_path.glob("rolegraph-*.whl")
    written = {"report.html.j2", "report.css", "report.js", "preview.html.j2", "preview.css"}
    assert written <= files(wheel, "rolegraph/engine/report/")
    assert {"README.md.j2", "rewards.py.j2", "test.py.j2"} <= files(wheel, "rolegraph/engine/starter/")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    command = [
        sys.executable,
        "-c",
        "from rolegraph.engine.cli import main; main()",
        "run",
        "solver_judge",
        "--limit",
        "4",
    ]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [*command, "--out", "out"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(read_episodes(tmp_path / "out" / "episodes.jsonl"))) == 4


def files(wheel: Path, start: str) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name.removeprefix(start) for name in archive.namelist() if name.startswith(start)}
