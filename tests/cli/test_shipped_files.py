"""Tests of messages that tell files of the package from those of the user's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.engine.shipped import PROMPTS, SPECS
from tests.cli.conftest import Command


def test_validate_and_preview_say_which_file_a_prompt_is(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "mine.yaml").write_text("extends: solver_judge.yaml\nname: mine\n")
    (tmp_path / "prompts" / "judge.j2").write_text((PROMPTS / "judge.j2").read_text())
    done = rolegraph("validate", "mine.yaml", "--json")
    (row,) = json.loads(done.stdout)["specs"]
    assert row["prompts"] == {"solver": ["solver.j2 (shipped)"], "judge": ["prompts/judge.j2"]}
    shown = rolegraph("validate", "mine.yaml").stdout
    previewed = rolegraph("preview", "mine.yaml", "--limit", "1").stdout
    for name in ("solver.j2 (shipped)", "prompts/judge.j2"):
        assert name in shown and f"prompt: {name}" in previewed


def test_a_fault_in_a_shipped_file_names_no_folder_of_the_installation(
    rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("extends: solver_judge.yaml\nroles: {judge: {needs: []}}\n")
    done = rolegraph("validate", "mine.yaml")
    assert done.returncode == 2
    assert "judge.j2 (shipped):3:21: error" in done.stderr
    assert "solver_judge.yaml (shipped):" in done.stderr
    assert str(SPECS) not in done.stderr and str(PROMPTS) not in done.stderr


@pytest.mark.parametrize(
    ("name", "file", "noted"),
    [
        ("solver_judge", "solver_judge.yaml", True),  # two specs have the name
        ("solver_judge.yaml", None, True),  # the file is missing
        ("solver_judge.yaml", "solver_judge.yaml", False),
        ("solver_judge", None, False),
    ],
)
def test_a_name_that_may_be_another_spec_is_noted(
    name: str, file: str | None, noted: bool, rolegraph: Command, tmp_path: Path
) -> None:
    if file:
        (tmp_path / file).write_text((SPECS / file).read_text())
    done = rolegraph("validate", name)
    assert done.returncode == 0
    assert done.stderr.startswith("note: ") == noted
