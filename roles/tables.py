"""Rows of .jsonl, .csv and .parquet files, one at a time, each with its line number.

Rows hold plain JSON values, because an episode is recorded with its task. The values of a .csv file are text.
Every fault of a file is a DataError that names the file, and the line where there is one.
"""

from __future__ import annotations

import csv
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from pydantic_core import from_json

from rolegraph.engine.limits.records import PARQUET_MEMORY, PARQUET_ROWS, RECORD_PARTS, ROW_TEXT
from rolegraph.engine.records import check_plain
from rolegraph.engine.records.jsonl import parts_of
from rolegraph.engine.vocabulary import SUFFIXES, DataError, Row, did_you_mean, require_library
from rolegraph.roles.parquet_rows import MEMORY
from rolegraph.roles.processes import start_worker


def find_table(folder: Path, name: str) -> Path:
    """Find a file of rows at or below a folder. A link keeps its own name, whose suffix decides the format.

    Args:
        folder: The spec's folder.
        name: The file's name or relative path, which ends in one of `SUFFIXES`.

    Raises:
        DataError: The file does not exist, lies elsewhere, or has another suffix.
    """
    if not name.endswith(SUFFIXES):
        raise DataError(f"cannot read {name!r}; expected a file that ends in {', '.join(SUFFIXES)}")
    folder = folder.resolve()
    path = folder / name
    try:
        is_inside, is_file = path.resolve().is_relative_to(folder), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a cycle of links; a name with a NUL
        raise DataError(f"cannot read {name!r}: {error}") from error
    if not is_inside:
        raise DataError(f"{name} lies outside the spec's folder; put it beside the spec or below it")
    if not is_file and path.exists():
        raise DataError(f"cannot read {name!r}: not a file that holds rows")
    if not is_file:
        hint = did_you_mean(path.name, [entry.name for entry in path.parent.glob("*")])
        raise DataError("; ".join(filter(None, (f"there is no file {name!r} beside the spec", hint))))
    return path


def read_table(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield each row with its line number, or in a parquet file with its position, from 1.

    Args:
        path: The file, as `find_table` returns it.

    Raises:
        DataError: The file or a row cannot be read.
        UsageError: The library for parquet files is not installed.
    """
    try:
        yield from next(read for suffix, read in _READERS.items() if path.name.endswith(suffix))(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise DataError(f"cannot read {path.name}: {error.strerror or str(error).strip()}") from error


def _jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(_lines(lines, path), 1):
            if not line.strip():
                continue
            row = parse_row(line, f"{path.name}:{number}", check_plain)
            if not isinstance(row, dict):
                raise DataError(f"{path.name}:{number}: not an object with a row's fields")
            yield number, cast("Row", row)


def parse_row(line: str, where: str, check: Callable[[object], None] | None = None) -> object:
    """Parse a line of JSON; raise DataError where it is no JSON or has too many parts.

    Args:
        line: The line.
        where: The line's place, for messages.
        check: Function that raises ValueError for a value that no row may hold.
    """
    try:
        if len(line) > RECORD_PARTS.most and parts_of(line.encode()) > RECORD_PARTS.most:
            raise ValueError(RECORD_PARTS.exceeded("it has"))
        value = from_json(line)
        if check is not None:
            check(value)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {str(error).replace('line 1 ', '')}") from error
    return value


def _lines(file: IO[str], path: Path, what: str = "line") -> Iterator[str]:
    """Yield the lines of a file; raise DataError for a longer line than `row_text` allows."""
    number = 0
    while line := file.readline(ROW_TEXT.most + 1):
        number += 1
        if len(line) > ROW_TEXT.most:
            raise DataError(ROW_TEXT.exceeded(f"{path.name}:{number}: the {what} has"))
        yield line


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(_lines(lines, path))
        try:
            header = reader.fieldnames or ()
            if "" in header or len(set(header)) < len(header):
                raise DataError(
                    f"{path.name}:1: the header names a column twice, or leaves one without a name"
                )
            for row in reader:
                if None in row or None in row.values():
                    message = f"not as many fields as the header's {len(header)}"
                    raise DataError(f"{path.name}:{reader.line_num}: {message}")
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path.name}:{reader.line_num}: not CSV: {error}") from error


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    require_library("pyarrow", "data", "parquet files")
    number, left = 0, PARQUET_ROWS.most + 100 * path.stat().st_size
    process = start_worker("parquet_rows.py", str(path), str(PARQUET_MEMORY.most), env=_MALLOC)
    with process:
        assert process.stdout
        try:
            for number, line in enumerate(_lines(process.stdout, path, "row"), 1):
                row = parse_row(line, f"{path.name}:{number}")
                if isinstance(row, str):
                    raise DataError(row)
                left -= len(line) + 1_000
                if left < 0:
                    most = f"{PARQUET_ROWS} and a hundred times the file's size"
                    raise DataError(
                        f"{path.name}:{number}: the rows so far come to more than {most}; {_MEND}"
                    )
                yield number, cast("Row", row)
            if code := process.wait():
                raise DataError(f"{path.name}: after row {number}: {_died(code)}; {_MEND}")
        finally:
            process.kill()


_MALLOC = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
"""Allocators that reserve no more memory than they use: the limit is on reserved memory."""
_MEND = "write the file as .jsonl, or with smaller row groups"


def _died(code: int) -> str:
    if code in (MEMORY, -signal.SIGABRT):  # C++ aborts where it gets none
        return PARQUET_MEMORY.exceeded("to unpack the next rows takes")
    return f"the process that unpacks the file has died (exit code {code})"


_READERS: dict[str, Callable[[Path], Iterator[tuple[int, Row]]]] = {
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".csv": _csv,
}
