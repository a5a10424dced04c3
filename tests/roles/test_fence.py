"""A program is read out of whatever a model writes around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary import ParseFailure
from tests.roles.vocabulary import read

FENCED = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nand so:\n```\nadd(1, 2)\n```\n"


def test_the_last_fenced_block_counts_and_indentation_is_kept() -> None:
    assert read({"fence": "any"}, FENCED) == "add(1, 2)"
    assert read({"fence": "python"}, FENCED) == "def add(a, b):\n    return a + b"


@pytest.mark.parametrize(
    ("fences", "text"),
    [
        ("py sql python3 json", "c"),
        ("sql py", "b"),
        ("sql Python sql", "b"),
        (" sql", "a"),
        ("sql  json", "b"),
    ],
)
def test_a_block_of_the_language_counts_and_without_one_a_block_of_none(fences: str, text: str) -> None:
    blocks = (f"```{name}\n{letter}\n```" for name, letter in zip(fences.split(" "), "abcd", strict=False))
    assert read({"fence": "python"}, "\n".join(blocks)) == text


def test_blocks_of_other_languages_alone_are_malformed() -> None:
    with pytest.raises(ParseFailure, match="no fenced block of python"):
        read({"fence": "python"}, "```sql\nselect 1\n```")


def test_without_a_fence_all_of_the_answer_is_the_program() -> None:
    assert read({"fence": "any"}, "\nprint(1)\n") == "print(1)"
    assert read({"fence": "any"}, "print('```')") == "print('```')"


@pytest.mark.parametrize("text", ["", " \n", "```python\n```", "```python\nx = 1", "```\na\n```\n```py\nb"])
def test_no_program_and_one_that_was_cut_are_malformed(text: str) -> None:
    with pytest.raises(ParseFailure) as raised:
        read({"fence": "any"}, text)
    assert raised.value.name == FailureName.MALFORMED_OUTPUT


@given(st.text(alphabet="a `\n", max_size=40))
def test_what_is_read_has_no_fence_of_its_own(text: str) -> None:
    try:
        program = str(read({"fence": "any"}, text))
    except ParseFailure:
        return
    assert not any(line.strip() == "```" for line in program.splitlines()) or "```" not in text
