"""Tests that the code in the documentation runs, as notebook cells or as a script."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from rolegraph.engine.records import RunFolder
from rolegraph.local.launcher import LocalService
from tests.documents import LANGUAGE, is_spec
from tests.trainings import STEP, train

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.service


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_on_python_runs_cell_by_cell_in_one_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], service: LocalService
) -> None:
    """Run all cells with one service for every model that the page loads, in sweeps too."""
    monkeypatch.chdir(tmp_path)
    for opens in ("load", "sweep_async"):
        monkeypatch.setattr(rg, opens, partial(getattr(rg, opens), base_url=service.base_url))
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    monkeypatch.setenv("TINKER_BASE_URL", service.base_url)
    cells = blocks(ROOT / "docs" / "python.md", "python")
    names: dict[str, Any] = {"__name__": "__main__"}

    async def notebook() -> None:
        for cell in cells:
            code = compile(cell, "docs/python.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if (done := eval(code, names)) is not None:
                await done

    asyncio.run(notebook())
    said = capsys.readouterr().out
    assert "countdown-validation-0:1 " in said
    assert str(Path("runs/trained/report.html")) in said
    assert (tmp_path / "runs" / "mine" / "episodes.jsonl").read_text().count("\n") == 2


def test_the_snippet_of_the_readme_runs_as_a_script(tmp_path: Path) -> None:
    """Run the snippet without `if __name__ == "__main__"`: reward processes must not execute it again."""
    (snippet,) = blocks(ROOT / "README.md", "python")
    script = tmp_path / "snippet.py"
    script.write_text(snippet)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        len(re.findall(r"^countdown-validation-[0-3]:[01] (?:True|False) ", done.stdout, re.MULTILINE)) == 8
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", LANGUAGE, ids=lambda page: page.stem)
def test_the_first_example_of_a_page_of_the_language_runs_on_the_shipped_model(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: LocalService
) -> None:
    (first, *_) = blocks(page, "yaml")
    assert is_spec(first)
    spec = tmp_path / "example.yaml"
    spec.write_text(first, "utf-8")
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    flow = rg.load(spec, "sampling.max_tokens=24", base_url=service.base_url)
    rg.run(flow, limit=1, out=tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "episodes.jsonl").read_text("utf-8").count("\n") == 1


def test_the_loss_of_the_page_on_estimators_trains(tmp_path: Path, service: LocalService) -> None:
    (snippet,) = blocks(ROOT / "docs" / "training" / "estimators.md", "python")
    exec(snippet, {})
    words = (*STEP, "roles.solver.loss={clipped_gap: {bound: 1}}", "sampling.max_tokens=24")
    trained = train(tmp_path / "run", "solver_judge", *words, service=service)
    assert 0 < RunFolder(trained.folder).metrics()[-1]["loss/solver/kept"] <= 1
