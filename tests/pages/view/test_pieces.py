"""Tests of the texts that a page shows for token ids."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.pages.view.pieces import PiecesOf, pieces_of
from tests.edge import write_spec
from tests.models.edges import write_tokenizer

SPEC = """\
rolegraph: 2
name: shown
model: {provider: local, name: NAME}
roles:
  a: {prompt: hi}
"""


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PiecesOf, dict[str, int]]:
    """Return the texts of tokens that are a byte each, and the id of each byte's letter."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    folder = write_tokenizer(tmp_path / "rolegraph" / "bytes")
    plan = compile_file(write_spec(tmp_path, SPEC.replace("NAME", "bytes")))
    return pieces_of(plan.spec), dict(load_tokenizer(folder).get_vocab())


@pytest.mark.parametrize("id", [-1, 10**26])
def test_a_number_that_is_no_token_has_no_text(id: int, shown: tuple[PiecesOf, dict[str, int]]) -> None:
    assert shown[0]("a", 1, [0, id]) == ()


def test_a_character_of_several_tokens_stands_at_the_last_of_them(
    shown: tuple[PiecesOf, dict[str, int]],
) -> None:
    pieces, vocabulary = shown
    ids = [vocabulary[letter] for letter in ("a", "Ã", "©", "ð", "Ł", "Ķ", "İ", "b")]  # aé🔎b
    assert pieces("a", 1, ids) == ["a", "", "é", "", "", "", "🔎", "b"]


def test_bytes_that_are_no_characters_are_shown_in_linear_time(
    shown: tuple[PiecesOf, dict[str, int]],
) -> None:
    pieces, vocabulary = shown
    began = time.process_time()
    found = pieces("a", 1, [vocabulary["Ã"]] * 40_000)
    assert len(found) == 40_000
    assert "".join(found) == "\ufffd" * 40_000
    # Some 0.5 s; decoding all bytes again for each takes more than a minute.
    assert time.process_time() - began < 20
