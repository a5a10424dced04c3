"""Datasets: tasks from a seed, a file or the hub, and errors with file and line."""

from __future__ import annotations

import csv
import datetime
import decimal
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from rolegraph.engine.errors import DataError
from rolegraph.engine.limits.records import ROW_TEXT
from rolegraph.engine.vocabulary import BadOptions, Dataset, ItemCall, Split, UnknownName, open_dataset
from rolegraph.roles.countdown import is_solution
from tests.counting import calls


def opened(yaml: object, folder: Path = Path(), split: Split = "train") -> Dataset:
    return open_dataset(ItemCall.parse(yaml), split=split, folder=folder)


def rows(
    yaml: object, folder: Path, limit: int | None = None, split: Split = "train"
) -> list[dict[str, Any]]:
    return [dict(row) for row in opened(yaml, folder, split).rows(limit)]


def jsonl(folder: Path, *lines: object, name: str = "tasks.jsonl") -> str:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    return name


def table(folder: Path, kind: str, content: list[dict[str, Any]]) -> str:
    """Write rows to a file of one of the three formats; return its name."""
    path = folder / f"tasks.{kind}"
    if kind == "jsonl":
        return jsonl(folder, *content)
    if kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(content[0]))
            writer.writeheader()
            writer.writerows(content)
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(content), path)
    return path.name


KINDS = ["jsonl", "csv", "parquet"]


# countdown


def test_countdown_is_there_without_a_file_and_hides_the_solution() -> None:
    made = opened({"countdown": {"count": 20, "numbers": [3], "operators": "+-", "seed": 7}})
    tasks = list(made.rows(None))
    assert len(tasks) == 20
    assert made.hidden == {"solution"}
    assert all(set(made.columns) == set(task) for task in tasks)
    assert all(is_solution(task["solution"], task["nums"], task["target"]) for task in tasks)
    assert all(len(task["nums"]) == 3 for task in tasks)
    assert tasks[:3] == list(made.rows(3))
    assert tasks != list(opened("countdown").rows(20))


def test_the_splits_of_countdown_share_no_task() -> None:
    train, validation = (
        {(tuple(sorted(t["nums"])), t["target"]) for t in opened("countdown", split=split).rows(500)}
        for split in ("train", "validation")
    )
    assert not train & validation


@pytest.mark.parametrize(
    "options",
    [
        {"count": 0},
        {"count": 10**12},
        {"numbers": []},
        {"numbers": [0]},
        {"numbers": [100_000]},
        {"low": 5, "high": 3},
        {"high": 10**12},
        {"operators": "^"},
        {"size": 3},
        {"split": "validation"},
    ],
    ids=str,
)
def test_countdown_refuses_what_makes_no_task_or_takes_forever(options: dict[str, Any]) -> None:
    with pytest.raises(BadOptions):
        opened({"countdown": options})


# files


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_is_read_as_its_own_name_says(tmp_path: Path, kind: str) -> None:
    real = tmp_path / table(tmp_path, kind, [{"question": "q"}])
    (tmp_path / f"link.{kind}").symlink_to(real.rename(tmp_path / "real"))
    assert rows(f"link.{kind}", tmp_path) == [{"id": "link-train-0", "question": "q"}]


def test_a_name_that_no_file_can_have_is_a_clear_fault(tmp_path: Path) -> None:
    for name in (".jsonl", "a" * 300 + ".jsonl", "a\0b.jsonl"):
        with pytest.raises(DataError, match=r"no file|cannot read"):
            opened(name, tmp_path)
    jsonl(tmp_path, {"question": "q"}, name=".jsonl")
    assert rows(".jsonl", tmp_path)[0]["question"] == "q"


@pytest.mark.parametrize("value", [["sol"], "sol", 5, False])
def test_a_file_takes_no_value_but_a_mapping_of_options(tmp_path: Path, value: object) -> None:
    name = jsonl(tmp_path, {"question": "q", "sol": "s"})
    with pytest.raises(BadOptions, match="takes no value of its own, only options"):
        opened({name: value}, tmp_path)
    assert opened({name: {"hidden": ["sol"]}}, tmp_path).hidden == {"sol"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_named_by_its_path_and_gives_its_rows_in_order(tmp_path: Path, kind: str) -> None:
    content = [{"question": f"q{n}", "answer": f"a{n}"} for n in range(3)]
    name = table(tmp_path, kind, content)
    made = opened(name, tmp_path)
    assert made.columns == ("id", "question", "answer")
    assert [dict(row) for row in made.rows(None)] == [
        {"id": f"tasks-train-{n}", **row} for n, row in enumerate(content)
    ]
    assert [row["id"] for row in made.rows(2)] == ["tasks-train-0", "tasks-train-1"]
    assert rows({"file": name}, tmp_path) == rows(name, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_keeps_its_own_id_as_text_without_a_colon(tmp_path: Path, kind: str) -> None:
    content = [{"id": "cd:1", "q": "a"}, {"id": "7", "q": "b"}, {"id": "", "q": "c"}]
    found = rows(table(tmp_path, kind, content), tmp_path, split="validation")
    assert [row["id"] for row in found] == ["cd-1", "7", "tasks-validation-2"]


def test_a_number_is_an_id_too(tmp_path: Path) -> None:
    assert [row["id"] for row in rows(jsonl(tmp_path, {"id": 0}, {"id": 7}), tmp_path)] == ["0", "7"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_rows_of_one_id_are_both_named(tmp_path: Path, kind: str) -> None:
    name = table(tmp_path, kind, [{"id": "a", "q": "1"}, {"id": "b", "q": "2"}, {"id": "a", "q": "3"}])
    lines = {"jsonl": (3, 1), "csv": (4, 2), "parquet": (3, 1)}[kind]
    with pytest.raises(DataError, match=rf"{name}:{lines[0]}: the id 'a' is also in line {lines[1]}"):
        rows(name, tmp_path)


def test_columns_are_hidden_where_the_spec_says_so(tmp_path: Path) -> None:
    name = jsonl(tmp_path, {"q": "1", "gold": "2"})
    assert opened({name: {"hidden": ["gold"]}}, tmp_path).hidden == {"gold"}
    assert opened({"file": name, "hidden": ["gold"]}, tmp_path).hidden == {"gold"}
    with pytest.raises(DataError, match="no column 'glod' to hide; it has q, gold"):
        opened({name: {"hidden": ["glod"]}}, tmp_path)


def test_making_a_dataset_reads_no_more_than_the_first_row(tmp_path: Path) -> None:
    name = jsonl(tmp_path, {"q": 1}, "not JSON")
    made = opened(name, tmp_path)
    assert made.columns == ("id", "q")
    assert len(list(made.rows(1))) == 1
    with pytest.raises(DataError, match=r"tasks\.jsonl:2: not JSON"):
        list(made.rows(None))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stream(tmp_path: Path, kind: str) -> None:
    def calls_for_three(rows: int) -> int:
        folder = tmp_path / str(rows)
        folder.mkdir()
        made = opened(table(folder, kind, [{"q": str(n)} for n in range(rows)]), folder)
        return calls(lambda: list(itertools.islice(made.rows(None), 3)))

    assert calls_for_three(50_000) < 2 * calls_for_three(5_000)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"q": 1}', "{q: 2}"], r"tasks\.jsonl:2: not JSON: key must be a string at column 2"),
        (['{"q": 1}', "", "[1]"], r"tasks\.jsonl:3: not an object"),
        (['{"q": 1}', '{"r": 2}'], r"tasks\.jsonl:2: no 'q', which the first row has"),
        (['{"q": NaN}'], r"tasks\.jsonl:1: not JSON"),
        (['{"q": "\\ud800"}'], r"tasks\.jsonl:1: not JSON"),
        (["[" * 1000], r"tasks\.jsonl:1: not JSON"),
        ([""], r"tasks\.jsonl has no rows"),
        (['{"q": 1}', '{"q": 1, "q": 2}'], r"tasks\.jsonl:2: an object has the key 'q' twice"),
        (['{"id": 1, "q": 1, "id": 2}'], r"tasks\.jsonl:1: an object has the key 'id' twice"),
        (['{"q": [{"of": {"a": 1, "b": 2, "a": 1}}]}'], r"tasks\.jsonl:1: an object has the key 'a' twice"),
        (['{"a": 1, "\\u0061": 2}'], r"tasks\.jsonl:1: an object has the key 'a' twice"),
        (['[{"q": 1}]'], r"tasks\.jsonl:1: .*one object a line"),
        (["[", '  {"q": 1}', "]"], r"tasks\.jsonl:1: .*one object a line"),
        (["{", '  "q": 1', "}"], r"tasks\.jsonl:1: .*one object a line"),
        (['{"q": 1}', '{"q": 2}, {"q": 3}'], r"tasks\.jsonl:2: .*one object a line"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows(jsonl(tmp_path, *lines), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q,a\n1,2\n3\n", r"tasks\.csv:3: not as many fields as the header's 2"),
        ("q,a\n1,2,3\n", r"tasks\.csv:2: not as many fields"),
        ("q,q\n1,2\n", r"tasks\.csv:1: the header names a column twice"),
        ("q,\n1,2\n", r"tasks\.csv:1: the header"),
        ("q,a\n", r"tasks\.csv has no rows"),
        ("", r"tasks\.csv has no rows"),
        ("q\n" + "x" * (ROW_TEXT.most + 1) + "\n", r"tasks\.csv:2: the line has .*limit: row_text"),
    ],
)
def test_a_faulty_csv_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tasks.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        rows("tasks.csv", tmp_path)


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.csv"])
def test_a_byte_order_mark_is_passed_over_and_other_encodings_are_refused(tmp_path: Path, name: str) -> None:
    content = {"tasks.jsonl": '{"q": "é"}\n', "tasks.csv": "q\né\n"}[name]
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    assert rows(name, tmp_path)[0]["q"] == "é"
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=f"{name} is not UTF-8 text"):
        rows(name, tmp_path)


def test_a_parquet_file_s_dates_and_decimals_become_text_and_its_bytes_an_error(tmp_path: Path) -> None:
    day, price = datetime.date(2026, 1, 2), decimal.Decimal("1.50")
    name = table(tmp_path, "parquet", [{"day": day, "price": price, "nums": [3, 4], "none": None}])
    found = rows(name, tmp_path)
    assert found == [
        {"id": "tasks-train-0", "day": "2026-01-02", "price": "1.50", "nums": [3, 4], "none": None}
    ]
    to_json(found)
    with pytest.raises(DataError, match=r"tasks\.parquet:1: a value is neither text"):
        rows(table(tmp_path, "parquet", [{"image": b"\xff\xfe"}]), tmp_path)


def test_a_file_that_is_no_parquet_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "tasks.parquet").write_text("q\n1\n")
    with pytest.raises(DataError, match=r"tasks\.parquet is not a parquet file"):
        opened("tasks.parquet", tmp_path)


def test_a_missing_file_brings_the_nearest_name(tmp_path: Path) -> None:
    jsonl(tmp_path, {"q": 1}, name="validation.jsonl")
    with pytest.raises(DataError, match=r"no file 'validaton.jsonl' .*did you mean 'validation.jsonl'"):
        opened("validaton.jsonl", tmp_path)
    with pytest.raises(DataError, match=r"ends in \.jsonl, \.parquet, \.csv"):
        opened({"file": "tasks.txt"}, tmp_path)


def test_no_path_leaves_the_spec_s_folder(tmp_path: Path) -> None:
    inside = tmp_path / "specs"
    (inside / "data").mkdir(parents=True)
    jsonl(tmp_path, {"q": 1})
    jsonl(inside / "data", {"q": 2})
    (inside / "link.jsonl").symlink_to(tmp_path / "tasks.jsonl")
    (inside / "loop.jsonl").symlink_to(inside / "loop.jsonl")
    assert rows("data/tasks.jsonl", inside)[0]["q"] == 2
    assert rows(str(inside / "data" / "tasks.jsonl"), inside)[0]["q"] == 2
    for path in ("../tasks.jsonl", str(tmp_path / "tasks.jsonl"), "data/../../tasks.jsonl", "link.jsonl"):
        with pytest.raises(DataError, match="outside the spec's folder"):
            opened(path, inside)
    for path in ("loop.jsonl", "a" * 5000 + ".jsonl", "data/tasks.jsonl/x.jsonl"):
        with pytest.raises(DataError, match=r"cannot read|no file"):
            opened(path, inside)
    with pytest.raises((DataError, BadOptions)):
        opened("a\0b.jsonl", inside)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    name = jsonl(tmp_path, {"q": 1})
    (tmp_path / name).chmod(0)
    with pytest.raises(DataError, match=r"cannot read tasks\.jsonl: Permission denied"):
        opened(name, tmp_path)


def test_an_unknown_dataset_brings_the_nearest_name() -> None:
    with pytest.raises(UnknownName) as raised:
        opened("countdwn")
    assert raised.value.hint == "did you mean 'countdown'?"


# the hub


@pytest.mark.parametrize(
    "name", ["../data", "/etc", ".", "..", "~/data", "a/b/c", "", "hf://x", "a b", "tests"]
)
def test_a_hub_dataset_s_name_is_never_a_folder_of_this_machine(name: str) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="not the name of a dataset on the hub"):
        opened({"huggingface": name})


def test_a_hub_dataset_gives_its_rows_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("datasets")
    asked: list[object] = []

    def hub(name: str, subset: str | None, split: str) -> Iterable[object]:
        asked.append((name, subset, split))
        return library.Dataset.from_list(
            [{"q": "a", "at": datetime.datetime(2026, 1, 2)}, {"q": "b", "at": None}]
        )

    monkeypatch.setattr(library, "load_dataset", hub)
    yaml = {"huggingface": "someone/sums", "subset": "main", "split_name": "test", "hidden": ["at"]}
    made = opened(yaml, split="validation")
    assert made.columns == ("id", "q", "at")
    assert made.hidden == {"at"}
    assert [dict(row) for row in made.rows(1)] == [
        {"id": "sums-validation-0", "q": "a", "at": "2026-01-02T00:00:00"}
    ]
    assert set(asked) == {("someone/sums", "main", "test")}


def test_a_hub_that_cannot_be_reached_is_one_clear_error() -> None:
    pytest.importorskip("datasets")
    code = """
from pathlib import Path
from rolegraph.engine.vocabulary import ItemCall
from rolegraph.engine.vocabulary import open_dataset
try:
    open_dataset(ItemCall("huggingface", "nobody/nothing", has_value=True), split="train", folder=Path())
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("DataError cannot load the dataset 'nobody/nothing', split 'train': ")
    assert done.stdout.count("\n") == 1


def test_what_is_there_but_no_file_is_not_said_to_be_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.csv")
    with pytest.raises(DataError, match=r"^cannot read 'fifo\.csv': not a file that holds rows$"):
        opened("fifo.csv", tmp_path)
