"""Rows of .jsonl, .csv, .tsv and .parquet files, one at a time, each with its line number.

Rows hold plain JSON values, because an episode is recorded with its task. The values of a .csv or .tsv file
are text. Every fault of a file is a DataError that names the file, and the line where there is one.
"""

from __future__ import annotations

import importlib
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from rolegraph.engine.limits.records import PARQUET_MEMORY, PARQUET_ROWS, RECORD_PARTS, ROW_TEXT
from rolegraph.engine.limits.tools import CALL_MEMORY
from rolegraph.engine.records import check_plain
from rolegraph.engine.records.jsonl import parts_of
from rolegraph.engine.vocabulary import SUFFIXES, DataError, Row, did_you_mean, require_library, short_repr
from rolegraph.engine.vocabulary.imports import Loaded
from rolegraph.engine.vocabulary.isolation import CallLimit, Isolation
from rolegraph.roles.delimited import read_delimited


def find_table(folder: Path, name: str) -> Path:
    """Return the path of a file of rows in or below a folder. A link keeps its own name, whose suffix decides
    the format.

    Args:
        folder: The spec's folder.
        name: The file's name or relative path, which ends in one of `SUFFIXES`.

    Raises:
        DataError: The file does not exist, is outside of the folder, or has another suffix.
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
        raise DataError(f"there is no file {name!r} beside the spec", hint)
    return path


def read_table(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) for each row; in a Parquet file the number is the row's position, from 1.

    Args:
        path: The file, as `find_table` returns it.

    Raises:
        DataError: The file or a row cannot be read.
        UsageError: The library for parquet files is not installed.
    """
    readers = {".jsonl": _jsonl, ".parquet": _parquet, ".csv": _delimited, ".tsv": _delimited}
    try:
        yield from next(read for suffix, read in readers.items() if path.name.endswith(suffix))(path)
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
                fault = "not an object with a row's fields"
                raise DataError(f"{path.name}:{number}: {fault}; {ONE_A_LINE}")
            yield number, cast("Row", row)


def parse_row(line: str, where: str, check: Callable[[object], None] | None = None) -> object:
    """Parse a line of JSON; raise DataError if it is not JSON, repeats a key, or has too many parts.

    Args:
        line: The line.
        where: The line's place, for messages.
        check: Function that raises ValueError for a value that no row may have.
    """
    try:
        if len(line) > RECORD_PARTS.most and parts_of(line.encode()) > RECORD_PARTS.most:
            raise ValueError(RECORD_PARTS.exceeded("it has"))
        value = from_json(line)
        if check is not None:
            check(value)
    except ValueError as error:
        reason = str(error).replace("line 1 ", "")
        hint = f"; {ONE_A_LINE}" if reason.startswith(_CUT_OR_SEVERAL) else ""
        raise DataError(f"{where}: not JSON: {reason}{hint}") from error
    _check_keys(line, where)
    return value


ONE_A_LINE = "a .jsonl file has one object a line"
"""Hint for a JSON array, and for objects that span several lines."""
_CUT_OR_SEVERAL = ("EOF while parsing", "trailing characters")
"""Beginnings of the errors for a line that has a part of a value, or more than one value."""


def _check_keys(line: str, where: str) -> None:
    """Raise DataError if an object in a line of valid JSON repeats a key, at any depth.

    The parser of `parse_row` keeps the last value without a warning.
    """

    def check(pairs: list[tuple[str, None]]) -> None:
        keys = Counter(key for key, _ in pairs)
        if len(keys) < len(pairs):
            (repeated_key, _), *_ = keys.most_common(1)
            raise DataError(
                f"{where}: an object has the key {short_repr(repeated_key)} twice; write each key once"
            )

    json.loads(line, object_pairs_hook=check)


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file; raise DataError for a line longer than `row_text`."""
    for number, line in enumerate(iter(partial(file.readline, ROW_TEXT.most + 1), ""), 1):
        if len(line) > ROW_TEXT.most:
            raise DataError(ROW_TEXT.exceeded(f"{path.name}:{number}: the line has"))
        yield line


def _delimited(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from read_delimited(_lines(lines, path), path.name)


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (row number, row) of a Parquet file, read in a separate process with a memory limit.

    A file of some hundred bytes may unpack to gigabytes, more than the sizes in it state; pyarrow has no
    limit.
    """
    require_library("pyarrow", "data", "parquet files")
    number, bytes_left = 0, PARQUET_ROWS.most + 100 * path.stat().st_size
    pool = Isolation(workers=1, env=_MALLOC)
    next_rows = Loaded(_next_rows, "pyarrow.parquet")
    call = partial(pool.submit, next_rows, str(path), limit=_SECONDS, memory=PARQUET_MEMORY.most)
    try:
        for number, row in enumerate(chain.from_iterable(iter(lambda: call().future.result(), [])), 1):
            if isinstance(row, DataError):
                raise row
            row_place, text = f"{path.name}:{number}", row.decode()
            if len(text) > ROW_TEXT.most:
                raise DataError(ROW_TEXT.exceeded(f"{row_place}: the row has"))
            bytes_left -= len(text) + 1_000
            if bytes_left < 0:
                limit_text = f"{PARQUET_ROWS} and a hundred times the file's size"
                raise DataError(f"{row_place}: the rows so far take more than {limit_text}; {_MEND}")
            yield number, cast("Row", parse_row(text, row_place))
    except (CallLimit, RuntimeError) as error:  # C++ aborts where it gets no memory
        no_memory = str(error).endswith((f"exit code {-signal.SIGABRT}", f"({CALL_MEMORY.label})"))
        reason = PARQUET_MEMORY.exceeded("to unpack the next rows takes") if no_memory else f"it {error}"
        raise DataError(f"{path.name}: after row {number}: {reason}; {_MEND}") from None
    finally:
        pool.close()


_SECONDS = 600.0
"""Time limit in seconds of reading a batch of rows."""
_MALLOC = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
"""Environment that makes allocators reserve no more memory than they use, since the limit is on reserved
memory."""
_BATCH, _BATCH_BYTES = 64, 4 << 20
"""Largest number of rows in a worker's memory, and their largest size in bytes as the file states it."""
_MEND = "write the file as .jsonl, or with smaller row groups"


def _next_rows(path: str) -> list[bytes | DataError]:
    """Return the next batch of a file's rows as JSON, empty at the end; the last item may be a DataError.

    Called in the worker, which keeps the file open between calls.
    """
    return next(_batches(path), None) or []


@cache
def _batches(path: str) -> Iterator[list[bytes | DataError]]:
    pyarrow: Any = importlib.import_module("pyarrow")  # it has no type stubs
    parquet: Any = importlib.import_module("pyarrow.parquet")
    pyarrow.set_cpu_count(1)
    name, number = Path(path).name, 0
    rows: list[bytes | DataError] = []
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
            columns: Counter[str] = Counter(file.schema_arrow.names)
            if twice := [column for column in columns if columns[column] > 1]:
                yield [
                    DataError(f"{name} has the column {short_repr(twice[0])} twice; name each column once")
                ]
                return
            for batch in file.iter_batches(_batch_size(file.metadata), use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    rows.append(to_json(row, inf_nan_mode="constants"))
                if rows:
                    yield rows
                rows = []
        return
    except MemoryError:
        raise
    except UnicodeDecodeError as error:
        fault = f"{name} is not UTF-8 text: {error.reason} at byte {error.start}"
    except OSError as error:
        fault = f"cannot read {name}: {error.strerror or str(error).strip()}"
    except pyarrow.ArrowException as error:
        fault = f"{name} is not a parquet file: {error}"
    except PydanticSerializationError as error:  # such as bytes that are no text
        reason = str(error).removeprefix("Error serializing to JSON: ")
        fault = f"{name}:{number}: a value is neither text, number, list nor mapping: {reason}"
    except (ValueError, OverflowError) as error:  # such as a date that Python does not have
        fault = f"{name}: cannot read a value soon after row {number}: {error}"
    yield [*rows, DataError(fault)]


def _batch_size(metadata: Any) -> int:
    """Return the number of rows to read at once; smaller if the file states that they are large."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    largest_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return min(_BATCH, max(1, _BATCH_BYTES // max(largest_bytes, 1)))
