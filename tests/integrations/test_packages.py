"""Tests of entry points: the package of docs/packages.md, and integrations whose folder was deleted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
INTEGRATIONS = sorted(file.parent.name for file in (ROOT / "rolegraph/integrations").glob("*/__init__.py"))
WITHOUT = """
import sys
from rolegraph.cli.main import run
words = ["--help", "list tools", "list environments", "list datasets", "validate solver_judge"]
codes = [run(line.split()) for line in words]
print(codes, file=sys.stderr)
sys.exit(any(codes))
"""


@pytest.fixture
def team_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the second package of docs/packages.md, as pip leaves it."""
    page = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8").partition("## Commands, observers")[2]
    module, toml = (part.partition("\n```")[0] for part in re.split(r"```(?:python|toml)\n", page)[1:3])
    site = tmp_path / "site"
    info = site / "team_parts-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-parts\nVersion: 1.0\n")
    points = tomllib.loads(toml)["project"]["entry-points"]
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in it.items())
            for group, it in points.items()
        )
    )
    (site / "team_parts").mkdir()
    (site / "team_parts" / "__init__.py").write_text(module)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "team_parts", raising=False)


@pytest.mark.usefixtures("team_parts")
def test_a_package_adds_a_command_and_an_observer(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    (tmp_path / "sums.yaml").write_text(
        "rolegraph: 2\nname: sums\ndata: {validation: tasks.jsonl}\nmodel: replay:none.jsonl\n"
        'roles:\n  adder: {run: {calculator: "3 + 4"}}\n'
    )
    done = rolegraph("run", "sums.yaml", "--out", "runs/mine", "--observe", "lines=episodes.txt")
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "episodes.txt").read_text().split()[::2]) == ["a:0", "b:0"]
    assert rolegraph("newest").stdout.strip() == str(Path("runs/mine"))
    assert "Print the folder of the newest run." in rolegraph("--help").stdout


def test_a_package_that_ends_the_process_at_its_import_is_a_usage_error(
    rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "rude-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n")
    points = "".join(f"[rolegraph.{group}]\nrude = rude:rude\n" for group in ("commands", "observers"))
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "site" / "rude.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    for words in (["rude"], ["run", "solver_judge", "--limit", "1", "--observe", "rude=x"]):
        done = rolegraph(*words)
        assert done.returncode == 2 and "'rude' of rude cannot be loaded: SystemExit" in done.stderr
    shown = rolegraph("--help")
    assert shown.returncode == 0 and "rude" in shown.stdout


def test_an_unknown_observer_is_a_usage_error(rolegraph: Command) -> None:
    done = rolegraph("run", "solver_judge", "--limit", "1", "--observe", "otpl=x")
    assert done.returncode == 2 and "did you mean 'otlp'" in done.stderr


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_the_command_works_without_the_folder_of_an_integration(integration: str, tmp_path: Path) -> None:
    package = tmp_path / "rolegraph"
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rolegraph", package, copy_function=os.link, ignore=caches)
    shutil.rmtree(package / "integrations" / integration)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
