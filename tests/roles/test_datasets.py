"""Where tasks come from, and what is said when they do not."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import DataError
from engine.registry import Call
from roles import open_dataset
from roles.vocabulary import Dataset

ROWS = [{"id": "a:1", "question": "q1", "answer": "1"}, {"id": "b", "question": "q2", "answer": "2"}]


def made(raw: Any, folder: Path = Path()) -> Dataset:
    return open_dataset(Call.parse(raw), split="validation", folder=folder)


def write(folder: Path, suffix: str) -> Path:
    path = folder / f"tasks{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        arrow = pytest.importorskip("pyarrow", reason="needs the extra `data`")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_file_beside_the_spec_gives_its_rows(tmp_path: Path, suffix: str) -> None:
    found = made({write(tmp_path, suffix).name: {"hidden": ["answer"]}}, tmp_path)
    assert found.columns == ("id", "question", "answer")
    assert found.hidden == {"answer"}
    assert list(found.rows(None)) == [{**ROWS[0], "id": "a-1"}, ROWS[1]]
    assert len(list(found.rows(1))) == 1


def test_rows_without_an_id_get_one(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"question": "q"}\n{"question": "r"}\n')
    assert [row["id"] for row in made("t.jsonl", tmp_path).rows(None)] == ["t-validation-0", "t-validation-1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.jsonl", "", "has no rows"),
        ("t.jsonl", '{"q": 1}\n[1]\n', r"t\.jsonl:2: not an object"),
        ("t.jsonl", '{"q": 1}\n{"r": 1}\n', r"t\.jsonl:2: no 'q'"),
        ("t.jsonl", '{"id": 1}\n{"id": "1"}\n', r"t\.jsonl:2: the id '1' is that of line 1"),
        ("t.csv", "a,b\n1,2\n3\n", r"t\.csv:3: not as many fields"),
        ("t.parquet", "not parquet", "is not a parquet file"),
    ],
)
def test_a_fault_in_a_file_is_placed(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        list(made(name, tmp_path).rows(None))


def test_a_misspelt_file_gets_the_nearest_and_no_file_outside_the_folder_is_read(tmp_path: Path) -> None:
    write(tmp_path, ".jsonl")
    with pytest.raises(DataError, match=r"did you mean 'tasks\.jsonl'"):
        made("task.jsonl", tmp_path)
    (tmp_path / "inner").mkdir()
    with pytest.raises(DataError, match="outside the spec's folder"):
        made("../tasks.jsonl", tmp_path / "inner")


def test_countdown_comes_from_its_seed_and_hides_its_solutions() -> None:
    one, again, other = (list(made({"countdown": {"seed": s}}).rows(20)) for s in (1, 1, 2))
    assert one == again != other
    assert made("countdown").hidden == {"solution"}
