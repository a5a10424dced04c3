"""Strict tables: what a lenient reader guesses is an error with its line, before a token is spent."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.cli.main import run
from rolegraph.engine.errors import DataError
from rolegraph.roles.delimited import read_delimited
from rolegraph.roles.tables import read_table

SPEC = """
rolegraph: 2
name: t
data: {train: TABLE, validation: TABLE}
roles:
  solver:
    prompt: "Q: {{ task.q }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: exact_match
    estimator: grpo
train: {batch_size: 1, rollouts: 2}
"""
Rows = list[tuple[int, dict[str, str]]]


def read(folder: Path, text: str, name: str = "t.csv") -> Rows:
    (folder / name).write_bytes(text.encode())
    return [(line, {**row}) for line, row in read_table(folder / name)]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('q,a\n1,2\nx,"2\n3,4\n5,6\n', 3, "never closed"),
        ('q,a\n"x\ny",1\nz,"2\n3,4\n', 4, "never closed"),
        ('q,a\n"x\ny","2\n3,4\n', 3, "never closed"),
        ('q,a\n1,"2\n3,4\n5,"6"\n', 2, "closing quote"),
        ('q,a\n5" pipe,2\n"6" pipe",3\n', 3, "closing quote"),
        ('q,a\n1,"x" \n', 2, "closing quote"),
        ('q,a\n1, "2"\n', 2, "space"),
        ("q,a\n1,2,3\n", 2, "3"),
        ('q,a\n"1\n2",3\n\n4\n', 5, "1"),
        ("q,a\n1,2\n3,4\0\n", 3, "NUL"),
        ("q,a,q\n1,2,3\n", 1, "'q'"),
        ("q, q\n1,2\n", 1, "'q'"),
        ("\nq,\n1,2\n", 2, "without a name"),
        ("q,a, \n1,2,3\n", 1, "without a name"),
        (
            'q,a\n1,2\n"' + ("x" * 6_000_000 + "\n") * 2 + '",3\n',
            3,
            r"10,000,000 characters \(limit: row_text",
        ),
        ('q,a\r1,2\r3,"4\r', 3, "never closed"),
    ],
)
def test_what_a_strict_reader_refuses_is_an_error_with_its_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    with pytest.raises(DataError, match=rf"^t\.csv:{line}: .*{reason}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('q,a\n5" pipe,2\n', [(2, {"q": '5" pipe', "a": "2"})]),
        ('q,a\n"6"" pipe",2\n', [(2, {"q": '6" pipe', "a": "2"})]),
        ('q,a\n" ""x""",2\n', [(2, {"q": ' "x"', "a": "2"})]),
        ('\ufeffq,a\r\n"1\r\n2",3\r\n\r\n4,5', [(2, {"q": "1\r\n2", "a": "3"}), (5, {"q": "4", "a": "5"})]),
        ("q;a\n1;2,5\n", [(2, {"q": "1", "a": "2,5"})]),
        ("q\ta\n1\t2;5\n", [(2, {"q": "1", "a": "2;5"})]),
        ('"q;x",a\n1,2\n', [(2, {"q;x": "1", "a": "2"})]),
        ("q\n1;2\n", [(2, {"q": "1;2"})]),
    ],
)
def test_rows_have_the_number_of_their_first_line(tmp_path: Path, text: str, rows: Rows) -> None:
    assert read(tmp_path, text) == rows


def test_the_delimiter_of_a_tsv_file_is_a_tab_unless_its_header_has_none(tmp_path: Path) -> None:
    assert read(tmp_path, "q, long\ta\n1\t2\n", "t.tsv") == [(2, {"q, long": "1", "a": "2"})]
    assert read(tmp_path, "q,a\n1,2\n", "t.tsv") == [(2, {"q": "1", "a": "2"})]


CELLS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@given(rows=st.lists(st.tuples(CELLS, CELLS), max_size=5), delimiter=st.sampled_from(",;\t"))
def test_what_the_csv_module_writes_is_read_as_it_was(
    rows: list[tuple[str, str]], delimiter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([("q", "a"), *rows])
    with path.open(newline="", encoding="utf-8") as file:
        assert [tuple(row.values()) for _, row in read_delimited(file, "t.csv")] == rows


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("command", ["validate", "preview", "run", "train"])
def test_every_command_refuses_a_table_with_an_open_quote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    (tmp_path / name).write_text('q,answer\n1,"2\n3,4\n')
    (tmp_path / "s.yaml").write_text(SPEC.replace("TABLE", name))
    assert run([command, str(tmp_path / "s.yaml")]) == 2
    assert f"{name}:2: " in capsys.readouterr().err


def test_a_cell_may_be_as_long_as_a_row_of_jsonl(tmp_path: Path) -> None:
    cell = "x" * 200_000
    assert read(tmp_path, f'q,answer\n{cell},1\n"{cell}\n{cell}",2\n') == [
        (2, {"q": cell, "answer": "1"}),
        (3, {"q": f"{cell}\n{cell}", "answer": "2"}),
    ]
    (tmp_path / "s.yaml").write_text(SPEC.replace("TABLE", "t.csv"), encoding="utf-8")
    assert run(["validate", str(tmp_path / "s.yaml")]) == 0
