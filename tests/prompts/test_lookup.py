"""Tests of looking templates up by file name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from tests.edge import write_spec


def fault(folder: Path, prompt: str) -> tuple[str, str]:
    text = f"rolegraph: 2\nname: x\nroles: {{solver: {{prompt: {prompt}, trainable: false}}}}"
    (found,) = check_file(write_spec(folder, text)).diagnostics
    return found.message, found.expected


@pytest.mark.parametrize("name", ["a" * 300, "b/" * 3000 + "c", '"a\\0b"'])
def test_a_name_that_no_template_can_have_is_a_fault_like_any_other(tmp_path: Path, name: str) -> None:
    (tmp_path / "prompts").mkdir()
    message, expected = fault(tmp_path, name)
    assert message.startswith("no template ")
    assert expected == "a file beside the spec or in prompts/"


@pytest.mark.parametrize("name", ["prompts", '""'])
def test_a_folder_is_no_template(tmp_path: Path, name: str) -> None:
    (tmp_path / "prompts").mkdir()
    message, expected = fault(tmp_path, name)
    assert message == f"the template {name.strip(chr(34))!r} is not a file"
    assert expected == "a file with a template's text"


def test_so_is_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop.j2").symlink_to("loop.j2")
    assert fault(tmp_path, "loop.j2")[0] == "no template 'loop.j2'"
