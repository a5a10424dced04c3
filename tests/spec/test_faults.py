"""Tests that the messages for common mistakes say what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.spec.loader import load_spec
from tests.edge import write_spec

SPEC = "rolegraph: 2\nname: x\n{top}\nroles:\n  writer: {{prompt: Hi{role}}}\n"
LONG = "é" + ", 'x'" * 11


def fault(folder: Path, top: str = "", role: str = "") -> tuple[str, str, str]:
    (found,) = load_spec(write_spec(folder, SPEC.format(top=top, role=role))).faults
    return found.message, found.expected, found.hint


@pytest.mark.parametrize(
    ("role", "under"),
    [
        ("temperature: 0.5", "sampling"),
        ("max_tokens: 100", "sampling"),
        ("stop: x", "sampling"),
        ("retry: 2", "on_failure"),
        ("base_url: 'http://x'", "model"),
    ],
)
def test_a_key_that_belongs_into_a_mapping_of_the_role_is_sent_there(
    tmp_path: Path, role: str, under: str
) -> None:
    message, _, hint = fault(tmp_path, role=f", {role}")
    assert message == f"unknown key {role.partition(':')[0]!r}"
    assert hint == f"put it under `{under}`"


@pytest.mark.parametrize(("top", "under"), [("temperature: 0.5", "sampling"), ("steps: 3", "train")])
def test_a_key_at_the_top_that_belongs_into_a_mapping_is_sent_there(
    tmp_path: Path, top: str, under: str
) -> None:
    assert fault(tmp_path, top)[2] == f"put it under `{under}`"


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ("data: tasks.jsonl", "data: {train: tasks.jsonl}"),
        ("sampling: 0.7", "sampling: {temperature: 0.7}"),
        ("episode: writer", "episode: {correct: writer}"),
        ("train: {lora: 16}", "lora: {rank: 16}"),
        ("data: 'a: b, #c.jsonl'", "data: {train: 'a: b, #c.jsonl'}"),
        ("data: '5'", "data: {train: '5'}"),
        (f'data: "{LONG}"', "data: {train: '" + LONG.replace("'", "''") + "'}"),
    ],
)
def test_a_bare_value_is_shown_as_the_mapping_that_was_meant(tmp_path: Path, top: str, expected: str) -> None:
    assert fault(tmp_path, top)[1] == f"a mapping, such as {expected}"


def test_what_no_key_takes_is_still_to_be_a_mapping(tmp_path: Path) -> None:
    assert fault(tmp_path, "sampling: [1]")[1] == "a mapping"
    assert fault(tmp_path, "data: true")[1] == "a mapping"


def test_without_its_first_line_a_spec_is_told_to_add_it(tmp_path: Path) -> None:
    text = SPEC.format(top="", role="").removeprefix("rolegraph: 2\n")
    (found,) = load_spec(write_spec(tmp_path, text)).faults
    assert (found.message, found.hint) == ("the spec has no 'rolegraph'", "add `rolegraph: 2`")


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("gpt-5", "did you mean openai:gpt-5?"),
        ("qwen2:7b", "did you mean openai:qwen2:7b?"),
        ("opnai:gpt-5", "did you mean 'openai'?"),
        ("{provider: bedrock}", ""),
    ],
)
def test_a_model_without_its_provider_is_shown_with_one(tmp_path: Path, written: str, hint: str) -> None:
    assert fault(tmp_path, f"model: {written}")[2] == hint
    assert fault(tmp_path, role=f", model: {written}")[2] == hint
    (found,) = load_spec("solver_judge", [f"model={written}"]).faults
    assert (found.place.file, found.hint) == ("command line", hint)
    (found,) = load_spec("solver_judge", model="gpt-5").faults
    assert found.hint == "did you mean openai:gpt-5?"
