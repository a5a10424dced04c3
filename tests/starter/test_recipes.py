"""Tests of `rolegraph new --from RECIPE` and `rolegraph list recipes`, by the real command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rolegraph.api.recipes import recipes
from tests.cli.conftest import Command
from tests.cli.conftest import forked as forked

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["tree-of-thoughts", "Groups over a batch", "reflexion"])
def test_a_recipe_is_written_with_what_it_needs_and_is_valid(
    name: str, tmp_path: Path, forked: Command
) -> None:
    config = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    made = forked("new", "mine", "--from", name, **config)
    assert made.returncode == 0, made.stderr
    checked = forked("validate", "mine/mine.yaml", **config)
    assert checked.returncode == 0, checked.stderr
    assert "error" not in checked.stderr
    assert (tmp_path / "mine" / "alone.yaml").exists() == name.startswith("Groups")
    project = tmp_path / "mine" / "rolegraph.toml"
    assert (tomllib.loads(project.read_text()) if project.exists() else {}) == (
        {"allow": ["python"]} if name == "reflexion" else {}
    )


def test_an_unknown_recipe_has_a_hint_and_the_list_has_every_name(tmp_path: Path, forked: Command) -> None:
    refused = forked("new", "mine", "--from", "werewolff")
    assert (refused.returncode, "did you mean 'werewolf'?" in refused.stderr) == (2, True)
    assert not (tmp_path / "mine").exists()
    listed = forked("list", "recipes").stdout
    assert {line.split()[0] for line in listed.splitlines()[1:]} == set(recipes())
    shown = forked("list", "recipes", "tree-of-thoughts").stdout
    assert shown.startswith("roles:\n  idea:")
    assert forked("list", "recipes", "tree").returncode == 2


def test_a_wheel_holds_the_recipes(tmp_path: Path) -> None:
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        docs = ROOT / "docs"
        for page in (docs / "recipes.md", *(docs / "recipes").iterdir()):
            assert wheel.read(f"rolegraph/{page.relative_to(docs).as_posix()}") == page.read_bytes()
