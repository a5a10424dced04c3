"""Tests of `rolegraph schema`, which writes the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command

REWARD = '''
import rolegraph as rg

@rg.reward("brief")
def brief(task, action) -> float:
    """1 for a short answer."""
    return float(len(str(action)) < 80)
'''


def test_the_schema_goes_to_a_file_or_to_standard_output(rolegraph: Command, tmp_path: Path) -> None:
    done = rolegraph("schema", "--out", "language.json")
    assert done.returncode == 0
    assert done.stdout == (
        "wrote language.json; a spec's first line: # yaml-language-server: $schema=language.json\n"
    )
    written = json.loads((tmp_path / "language.json").read_text("utf-8"))
    assert written.pop("$comment").startswith("written by rolegraph")
    assert written == json.loads(rolegraph("schema").stdout)


def test_what_an_imported_file_registers_is_in_it(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REWARD, encoding="utf-8")
    made = json.loads(rolegraph("schema", "--import", "mine.py").stdout)
    forms = made["$defs"]["rolegraph.rewards"]["anyOf"]
    assert {"const": "brief", "description": "1 for a short answer."} in forms


def test_a_file_that_cannot_be_written_is_named(rolegraph: Command) -> None:
    done = rolegraph("schema", "--out", "nowhere/language.json")
    assert done.returncode == 2
    assert done.stderr == "error: cannot write nowhere/language.json: No such file or directory\n"
