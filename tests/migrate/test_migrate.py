"""Tests of `rolegraph migrate`, and of the finding for a file of version 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile.compiler import check_file
from rolegraph.migrate.document import Document, Problem
from rolegraph.migrate.files import migrate_file
from tests.cli.conftest import Command, rolegraph
from tests.edge import write_spec

__all__ = ["rolegraph"]
ROLES = "roles:\n  a: {prompt: a.j2, timeout: 9}\n"
OLD = f"# mine\nrolegraph: 1   # the version\nname: x\n\n{ROLES}"


def test_the_header_is_rewritten_and_comments_and_quotes_stay(rolegraph: Command, tmp_path: Path) -> None:
    text = "# mine\n'rolegraph': 1   # the version\r\nname:   \"x\"\n\nx: &x {count: 2}\nroles: {a: *x}\n"
    file = write_spec(tmp_path, text)
    file.chmod(0o640)
    done = rolegraph("migrate", "spec.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "spec.yaml\n", "")
    assert file.read_bytes().decode() == text.replace(": 1 ", ": 2 ")
    assert file.stat().st_mode & 0o777 == 0o640
    again = rolegraph("migrate", "spec.yaml")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("extends: base.yaml\nname: y\n", "rolegraph: 2\nextends: base.yaml\nname: y\n"),
        ("# first\n{extends: base.yaml, name: y}", "# first\n{rolegraph: 2, extends: base.yaml, name: y}"),
        ("rolegraph: 2\nname: y\n", "rolegraph: 2\nname: y\n"),
        ("version: 3\nservices: {}\n", "version: 3\nservices: {}\n"),
        ('{"rolegraph": 1, "name": "y"}', '{"rolegraph": 2, "name": "y"}'),
    ],
)
def test_a_spec_gets_the_version_and_other_files_are_left_alone(
    before: str, after: str, tmp_path: Path
) -> None:
    file = write_spec(tmp_path, before)
    assert migrate_file(file).is_changed == (before != after)
    assert file.read_text() == after
    assert not migrate_file(file).is_changed


def test_yaml_blocks_of_markdown_are_rewritten_alone(rolegraph: Command, tmp_path: Path) -> None:
    page = "`rolegraph: 1` is old.\n\n```yaml\n{OLD}```\n\n- a list\n\n  ```yaml\n  extends: a.yaml\n  ```\n"
    page = page.replace("{OLD}", OLD)
    (tmp_path / "page.md").write_text(page)
    assert rolegraph("migrate", "page.md").stdout == "page.md\n"
    new = page.replace("rolegraph: 1   #", "rolegraph: 2   #")
    assert (tmp_path / "page.md").read_text() == new.replace("  extends", "  rolegraph: 2\n  extends")
    assert rolegraph("migrate", "page.md").stdout == ""


def test_what_is_not_rewritten_is_named_with_its_line(rolegraph: Command, tmp_path: Path) -> None:
    code = f'X = {{"rolegraph": 1, "name": "y"}}\nSPEC = """{OLD}"""\n'
    (tmp_path / "made.py").write_text(code)
    (tmp_path / "broken.yaml").write_text("rolegraph: 1\nname: ]\nroles: {}\n")
    done = rolegraph("migrate", ".")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "broken.yaml:2: not valid YAML",
        "made.py:1: a spec of version 1 in a string of Python, which is not rewritten",
        "made.py:2: a spec of version 1 in a string of Python, which is not rewritten",
    ]
    assert (tmp_path / "made.py").read_text() == code


def test_a_problem_is_named_with_its_line_in_a_page(tmp_path: Path) -> None:
    def refuse(document: Document) -> list[Problem]:
        return [Problem(entry.value.start_mark.index, "no name") for entry in document.entries("name")]

    (tmp_path / "page.md").write_text(f"first\n\n```yaml\n{OLD}```\n")
    assert migrate_file(tmp_path / "page.md", [refuse]).problems == [(6, "no name")]


@pytest.mark.parametrize(("word", "message"), [("none.yaml", "no such file"), ("rows.csv", "is no spec")])
def test_what_is_no_spec_is_a_fault_of_the_user(
    word: str, message: str, rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    done = rolegraph("migrate", word)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    "overlay", ["", "rolegraph: 2\nextends: spec.yaml\nname: y\nroles: {b: {cuont: 1}}\n"]
)
def test_a_file_of_version_1_is_one_finding_with_the_command(overlay: str, tmp_path: Path) -> None:
    file = write_spec(tmp_path, OLD + "loops: 3\n")
    checked = check_file(write_spec(tmp_path, overlay, "over.yaml") if overlay else file)
    (found,) = checked.diagnostics
    assert (found.message, found.expected) == ("this file is of version 1 of the language", "rolegraph: 2")
    assert (found.place.line, found.place.column, found.code) == (2, 12, "version")
    assert found.hint == f"rewrite it: rolegraph migrate {file}"
