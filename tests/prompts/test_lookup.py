"""Tests of looking templates up by file name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from tests.edge import write_spec


def fault(folder: Path, prompt: str) -> tuple[str, str]:
    text = f"rolegraph: 2\nname: x\nroles: {{solver: {{prompt: {prompt}}}}}"
    (found,) = check_file(write_spec(folder, text)).diagnostics
    return found.message, found.expected


@pytest.mark.parametrize("name", ["a" * 300 + ".j2", "b/" * 3000 + "c.j2", '"a\\0b.j2"'])
def test_a_name_that_no_template_can_have_is_a_fault_like_any_other(tmp_path: Path, name: str) -> None:
    (tmp_path / "prompts").mkdir()
    message, expected = fault(tmp_path, name)
    assert message.startswith("no template ")
    assert expected == "a file beside the spec or in prompts/"


def test_a_folder_is_no_template(tmp_path: Path) -> None:
    (tmp_path / "prompts.j2").mkdir()
    message, expected = fault(tmp_path, "prompts.j2")
    assert message == "the template 'prompts.j2' is not a file"
    assert expected == "a file with a template's text"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("judge", "did you mean judge.j2?"),
        ("jugde", "did you mean judge.j2?"),
        ("judge.txt", "did you mean judge.j2?"),
        ("prompts/mine", "name a template's file NAME.j2"),
    ],
)
def test_a_word_that_is_meant_as_a_file_is_a_fault(tmp_path: Path, word: str, hint: str) -> None:
    path = write_spec(tmp_path, f"rolegraph: 2\nname: x\nroles: {{a: {{prompt: {word}}}}}")
    (found,) = check_file(path).diagnostics
    assert found.message == f"{word!r} is no template: a text of one word"
    assert found.expected.endswith(f"as a text, `{word}` is {{{{ {word!r} }}}}")
    assert (found.hint, found.place.column) == (hint, 21)


@pytest.mark.parametrize("text", ["hi", "yes", "Say.", "{{ 'judge.txt' }}", "judge.txt is a file", "''"])
def test_other_words_are_texts(tmp_path: Path, text: str) -> None:
    path = write_spec(tmp_path, f'rolegraph: 2\nname: x\nroles: {{a: {{prompt: "{text}"}}}}')
    assert not check_file(path).diagnostics


def test_a_link_that_leads_to_itself_is_no_template(tmp_path: Path) -> None:
    (tmp_path / "loop.j2").symlink_to("loop.j2")
    assert fault(tmp_path, "loop.j2")[0] == "no template 'loop.j2'"
