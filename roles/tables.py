"""Files of tasks: the rows of a .jsonl, .csv or .parquet file, one at a time, each with its line's number.

Rows come out as plain JSON values, so that an episode can be written with its task. A .csv file's values are
all text. Whatever is wrong with a file is a DataError that names it, and the line where there is one.
"""

from __future__ import annotations

import csv
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from pydantic_core import from_json

from rolegraph.engine.limits.records import PARQUET_MEMORY, PARQUET_ROWS, RECORD_PARTS, ROW_TEXT
from rolegraph.engine.records import check_plain
from rolegraph.engine.records.jsonl import parts_of
from rolegraph.engine.vocabulary import SUFFIXES, DataError, Row, UsageError, did_you_mean
from rolegraph.roles.parquet_rows import MEMORY
from rolegraph.roles.processes import without_keys


def find_table(folder: Path, name: str) -> Path:
    """The file of that name at or below `folder`; raises DataError where it is elsewhere or nowhere.

    A link keeps its own name, which says how the file is read.
    """
    if not name.endswith(SUFFIXES):
        raise DataError(f"cannot read {name!r}; expected a file that ends in {', '.join(SUFFIXES)}")
    try:
        path = folder.resolve() / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{name} lies outside the spec's folder; put it beside the spec or below it")
        if path.exists() and not path.is_file():
            raise DataError(f"cannot read {name!r}: not a file that holds rows")
        if not path.is_file():
            beside = [entry.name for entry in path.parent.glob("*") if entry.suffix in SUFFIXES]
            hint = did_you_mean(path.name, beside)
            raise DataError("; ".join(filter(None, (f"there is no file {name!r} beside the spec", hint))))
    except DataError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # links that go in circles; a name with a NUL
        raise DataError(f"cannot read {name!r}: {error}") from error
    return path


def read_table(path: Path) -> Iterator[tuple[int, Row]]:
    """Each row with its number: its line, or in a parquet file its place, from 1."""
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
            row = _json(line, f"{path.name}:{number}", check_plain)
            if not isinstance(row, dict):
                raise DataError(f"{path.name}:{number}: not an object with a row's fields")
            yield number, cast("Row", row)


def _json(line: str, where: str, check: Callable[[object], None] | None = None) -> object:
    """What a line says, if it is not too much; raises DataError."""
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
    """The lines of a file, of which none is held that is too long."""
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
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("parquet files need the library pyarrow: pip install 'rolegraph[data]'")
    number, left = 0, PARQUET_ROWS.most + 100 * path.stat().st_size
    process = subprocess.Popen(
        [sys.executable, "-P", str(_PARQUET), str(path), str(PARQUET_MEMORY.most)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={**without_keys(), **_HONEST_SIZES},
    )
    with process:
        assert process.stdout
        try:
            for number, line in enumerate(_lines(process.stdout, path, "row"), 1):
                said = _json(line, f"{path.name}:{number}")
                if isinstance(said, str):
                    raise DataError(said)
                left -= len(line) + 1_000
                if left < 0:
                    most = f"{PARQUET_ROWS} and a hundred times the file's size"
                    raise DataError(
                        f"{path.name}:{number}: the rows so far come to more than {most}; {_MEND}"
                    )
                yield number, cast("Row", said)
            if code := process.wait():
                raise DataError(f"{path.name}: after row {number}: {_died(code)}; {_MEND}")
        finally:
            process.kill()


_PARQUET = Path(__file__).with_name("parquet_rows.py")
_HONEST_SIZES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
"""So that what is reserved is what is used."""
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
