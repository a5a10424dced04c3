"""Parquet files: read in a process of its own, which a file of some hundred bytes cannot make large."""

from __future__ import annotations

import datetime
import decimal
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.errors import DataError
from rolegraph.engine.limits.records import PARQUET_MEMORY, PARQUET_ROWS
from rolegraph.engine.vocabulary import Row
from rolegraph.roles.tables import read_table
from tests.waiting import soon

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="limits a process, and looks at it, as Linux does"
)


def write(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), folder / "t.parquet", compression="zstd", **options)
    return folder / "t.parquet"


def rows(path: Path) -> list[Row]:
    return [row for _, row in read_table(path)]


def children() -> list[int]:
    return [
        int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()
    ]


def test_every_row_comes_as_json_has_it(tmp_path: Path) -> None:
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678)
    columns: dict[str, list[Any]] = {
        "text": ["é\n\u2028", "", None],
        "whole": [2**63 - 1, -(2**63), 0],
        "number": [0.1, math.inf, -1e-320],
        "bytes": [b"abc", None, b""],
        "date": [when.date(), None, None],
        "time": [when, None, None],
        "span": [datetime.timedelta(days=3, seconds=4.5), None, None],
        "price": [decimal.Decimal("1.50"), None, None],
        "nested": [{"a": [1, None], "b": {"c": "d"}}, None, {"a": [], "b": None}],
    }
    found = rows(write(tmp_path, columns, row_group_size=2))
    assert found == [
        {
            "text": "é\n\u2028",
            "whole": 2**63 - 1,
            "number": 0.1,
            "bytes": "abc",
            "date": "2026-01-02",
            "time": "2026-01-02T03:04:05.000678",
            "span": "P3DT4.5S",
            "price": "1.50",
            "nested": {"a": [1, None], "b": {"c": "d"}},
        },
        {name: column[1] for name, column in columns.items()} | {"bytes": None},
        {name: column[2] for name, column in columns.items()} | {"bytes": ""},
    ]


def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["1"]), pyarrow.array(["2"])], names=["q", "q"])
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet has the column 'q' twice"):
        rows(tmp_path / "t.parquet")


def test_thousands_of_rows_and_rows_of_a_megabyte_come_in_order(tmp_path: Path) -> None:
    assert [row["n"] for row in rows(write(tmp_path, {"n": range(3_000)}, row_group_size=700))] == [
        *range(3_000)
    ]
    texts = [os.urandom(500_000).hex() for _ in range(20)]
    assert [
        row["q"] for row in rows(write(tmp_path, {"q": texts}, data_page_size=1, write_batch_size=1))
    ] == texts


def repeated(text: str, times: int) -> Any:
    return pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * times, pyarrow.int32()), pyarrow.array([text])
    )


def listed(values: Any) -> Any:
    return pyarrow.ListArray.from_arrays(pyarrow.array([0, len(values)], pyarrow.int32()), values)


@on_linux
@pytest.mark.parametrize(
    ("column", "says"),
    [
        (
            lambda: repeated("a" * 5_000_000, 2_000),
            f"after row 0: to unpack the next rows takes {{}}{PARQUET_MEMORY}",
        ),
        (
            lambda: repeated("a" * 200_000, 2_000),
            f"the rows so far take {{}}{PARQUET_ROWS} and a hundred times",
        ),
        (
            lambda: listed(pyarrow.repeat(1, 30_000_000)),
            f"after row 0: to unpack the next rows takes {{}}{PARQUET_MEMORY}",
        ),
        (lambda: ["a" * 100_000_000], f"after row 0: to unpack the next rows takes {{}}{PARQUET_MEMORY}"),
        (lambda: ["a" * 12_000_000], "t.parquet:1: the row has {}10,000,000 characters (limit: row_text)"),
        (lambda: [[[]] * 1_010_000], "t.parquet:1: not JSON: it has {}1,000,000 parts (limit: record_parts)"),
        (lambda: [None] * 3_000_000, f"the rows so far take {{}}{PARQUET_ROWS} and a hundred times"),
    ],
    ids=["a value in many rows", "smaller ones", "a list", "a text", "a long row", "many lists", "many rows"],
)
def test_what_is_packed_into_little_is_not_unpacked(tmp_path: Path, column: Any, says: str) -> None:
    path = write(tmp_path, {"q": column()})
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError) as refused:
        for _ in read_table(path):
            pass
    assert says.format("more than ") in str(refused.value)
    assert str(refused.value).startswith("t.parquet:")


def test_a_file_that_breaks_off_or_holds_what_python_does_not_says_where(tmp_path: Path) -> None:
    path = write(tmp_path, {"q": pyarrow.array([0, 10**18], pyarrow.timestamp("ms"))})
    with pytest.raises(DataError, match=r"t\.parquet: cannot read a value soon after row 0: "):
        rows(path)
    path = write(tmp_path, {"q": ["a" * 10, "b"], "b": [b"a", b"\xff"]})
    with pytest.raises(
        DataError, match=r"t\.parquet:2: a value is neither text, number, list nor mapping: invalid"
    ):
        rows(path)
    whole = bytearray(write(tmp_path, {"q": [os.urandom(2_000).hex()]}).read_bytes())
    whole[4:40] = b"\xff" * 36
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"^cannot read t\.parquet: "):
        rows(path)


@on_linux
def test_the_process_sees_no_key_and_ends_with_who_asked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    path = write(tmp_path, {"q": [f"{number} " * 50 for number in range(20_000)]})
    before = {*children()}
    reading = read_table(path)
    assert next(reading)[0] == 1
    (process,) = {*children()} - before
    assert b"SOME_API_KEY" not in Path(f"/proc/{process}/environ").read_bytes()
    del reading
    assert {*children()} <= before
    assert not Path(f"/proc/{process}").exists()


@on_linux
def test_the_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    path = write(tmp_path, {"q": [f"{number} " * 50 for number in range(20_000)]})
    code = (
        "import sys, time, pathlib; from rolegraph.roles.tables import read_table\n"
        "rows = read_table(pathlib.Path(sys.argv[1])); next(rows)\n"
        "tasks = pathlib.Path('/proc/self/task').glob('*/children')\n"
        "print(*[task.read_text() for task in tasks], flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        reader = int(parent.stdout.readline())
        parent.kill()
    assert soon(lambda: not Path(f"/proc/{reader}").exists() or state(reader) == "Z")


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
