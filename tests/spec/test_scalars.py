"""Tests that a diagnostic underlines the exact expression in every style of YAML scalar."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.compile import check_file
from rolegraph.engine.spec import Diagnostic
from rolegraph.engine.spec.diagnostics import place_within
from rolegraph.engine.spec.yaml_source import parse_yaml
from tests.edge import write_spec

HEAD = "rolegraph: 2\nname: x\ndata: {validation: countdown}\nroles:\n  solver:\n    count: 1\n"


def only_fault(folder: Path, rest: str, *overrides: str) -> Diagnostic:
    (fault,) = check_file(write_spec(folder, HEAD + rest), overrides).diagnostics
    return fault


def underlined(fault: Diagnostic) -> tuple[int, str, str]:
    """Return the line number, the underlined text and the text before it."""
    place = fault.place
    start = place.column - 1
    return place.line, place.text[start : start + place.width], place.text[:start].strip()


@pytest.mark.parametrize(
    ("rest", "line", "before"),
    [
        ("    prompt: 'solution {{ task.solution }}'", 7, "solution {{ task."),
        ('    prompt: "a \\u0073olution\\tsolution\\n{{ task.solution }}"', 7, "\\n{{ task."),
        ("    prompt: 'it''s the solution\n\n      solution {{ task.solution }}'", 9, "{{ task."),
        ("    prompt: the solution\n        is {{ task.solution }}", 8, "is {{ task."),
        ("    prompt: |\n        solution\n\n        a {{ task.solution }}", 10, "a {{ task."),
        ("    prompt: >-4\n          solution\n        {{ task.solution }}", 9, "{{ task."),
        ("    prompt: &p !!str |  # solution\n        {{ task.solution }}", 8, "{{ task."),
        ("    prompt: |\n        solution \\\n        {{ task\n        .solution }}", 10, "."),
    ],
)
def test_a_leaked_label_is_underlined_where_it_is_read(
    tmp_path: Path, rest: str, line: int, before: str
) -> None:
    where, what, ahead = underlined(only_fault(tmp_path, rest))
    assert (where, what) == (line, "solution")
    assert ahead.endswith(before)


def test_a_leaked_label_is_underlined_in_an_override(tmp_path: Path) -> None:
    rest = "    prompt: Hi"
    fault = only_fault(tmp_path, rest, "roles.solver.prompt='solution {{ task.solution }}'")
    assert fault.place.file == "command line"
    assert underlined(fault)[1:] == ("solution", "roles.solver.prompt='solution {{ task.")


def test_in_an_extended_spec(tmp_path: Path) -> None:
    write_spec(tmp_path, HEAD + "    prompt: 'solution {{ task.solution }}'", "base.yaml")
    path = write_spec(tmp_path, "extends: base.yaml\nname: y")
    (fault,) = check_file(path).diagnostics
    assert Path(fault.place.file).name == "base.yaml"
    assert underlined(fault)[2].endswith("solution {{ task.")


def test_a_leaked_label_is_underlined_in_a_template_s_own_file(tmp_path: Path) -> None:
    (tmp_path / "p.j2").write_text("The solution:\nthe solution is {{ task.solution }}\n")
    fault = only_fault(tmp_path, "    prompt: p.j2")
    assert (Path(fault.place.file).name, *underlined(fault)) == (
        "p.j2",
        2,
        "solution",
        "the solution is {{ task.",
    )


def test_a_misspelt_field_is_underlined_in_a_demonstration(tmp_path: Path) -> None:
    rest = (
        "    prompt: Hi\n    signal:\n      imitation: null\n"
        "      demonstration: 'solutoin {{ task.solutoin }}'"
    )
    assert underlined(only_fault(tmp_path, rest))[1:] == (
        "solutoin",
        "demonstration: 'solutoin {{ task.",
    )


@pytest.mark.parametrize(
    ("rest", "line", "what"),
    [
        ("    prompt: |\n        fine\n        {{ 1 + }}\n        fine", 9, "}"),
        ("    prompt: 'fine\n\n        {{ 1 + }} x\n        fine'", 9, "}"),
        ("    prompt: 'fine {{ 1 + }}'", 7, "}"),
    ],
)
def test_a_syntax_error_underlines_its_token(tmp_path: Path, rest: str, line: int, what: str) -> None:
    fault = only_fault(tmp_path, rest)
    assert fault.message.startswith("not a valid template")
    assert underlined(fault)[:2] == (line, what)


WORDS = st.lists(
    st.sampled_from(["word", "it's", 'say "so"', "\\n", "a: b", "#", " ", "\n", "\n\n", "é", "\t"])
)


@given(WORDS, WORDS, st.sampled_from([None, "'", '"', "|", ">"]), st.integers(20, 80))
def test_a_word_is_found_however_the_text_is_written(
    before: list[str], after: list[str], style: str | None, width: int
) -> None:
    text = f"{' '.join(before)} word {{{{ word }}}} {' '.join(after)}"
    source = yaml.safe_dump({"a": {"b": text}}, default_style=style, width=width, allow_unicode=True)
    parsed = parse_yaml(source, "x.yaml")
    value = parsed.positions["a", "b"].value
    place = place_within(value, source, parsed.data["a"]["b"], text.index("{{"), "word")
    lines = source.splitlines()
    assert lines[place.line - 1] == place.text or place.text == lines[place.line - 1].rstrip()
    rest = place.text[place.column - 1 :] + " ".join(lines[place.line :])
    assert rest.startswith("word")
    behind = rest.removeprefix("word").replace("\\", "").lstrip(' n"')
    assert behind.startswith("}}")
