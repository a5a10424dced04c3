"""`data.jsonl` of a folder: digests of the rows that a run uses, without which it is not resumed.

A line stands for a split. It holds the digest of the data file, a digest for each column, and 8 characters
for each row, so a million rows take 8 MB. Rows are compared by their position: the used rows must still come
first, in their order. No value can be recovered from the file, so messages name only rows and fields.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rolegraph.engine.errors import DataError, UsageError, os_errors_as
from rolegraph.engine.limits.records import DIGESTED_ROWS
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.episode import Task
from rolegraph.engine.records.jsonl import json_line, parse_json, read_jsonl

DATA_FILE = "data.jsonl"
SHOWN = 5
"""Largest number of rows that a message names."""
_SIZE = 8
"""Number of characters of a row's digest."""


@dataclass(frozen=True, slots=True)
class UsedRows:
    """The rows of a data split that a run uses, always from the first row on, with their source."""

    split: str
    """`train`, `validation`, or `tasks` for tasks given in Python."""
    source: str
    """Name of the data file or of the data set."""
    tasks: Sequence[Task]
    read: Callable[[int], Sequence[Task]]
    """Function that reads at most the given number of rows; it may read more rows than `tasks` has."""
    file: Path | None = None
    """The data file."""
    fixed: bool = False
    """True if additional rows would change the run, as in training, which draws its order from all rows."""

    def record(self) -> DataRecord:
        """Return the digests of the rows and of the file; raises DataError if the file cannot be read."""
        digest = None
        if self.file is not None:
            with os_errors_as(DataError, f"cannot read {self.file}"), self.file.open("rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
        columns, rows = _digests(self.tasks)
        kept_digests = rows[: DIGESTED_ROWS.most * _SIZE]
        return DataRecord(
            split=self.split,
            source=self.source,
            file=digest,
            count=len(self.tasks),
            columns=columns,
            rows=kept_digests,
        )


class DataRecord(BaseModel):
    """Line of `data.jsonl`: the rows of a split that a run uses, as digests."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    split: str
    """Split, as in UsedRows."""
    source: str = ""
    """Name of the data file or of the data set."""
    file: str | None = None
    """SHA-256 of the data file, to find the version of the file. It also covers rows that are not used, so
    nothing is compared with it."""
    count: Annotated[int, Field(ge=0)]
    """Number of rows."""
    columns: dict[str, str]
    """Digest of each column's values."""
    rows: str
    """Digests of all rows, one after the other."""

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        # Reading follows the count, so that a damaged file must not name more rows than it has digests of.
        if len(self.rows) != min(self.count, DIGESTED_ROWS.most) * _SIZE:
            raise ValueError("the number of rows is not that of their digests")
        return self


def write_data(file: Path, used: Sequence[UsedRows], *, anew: bool = False) -> None:
    """Write the digests of rows; keep lines of other splits, and lines with more rows of the same split.

    Args:
        file: The folder's `data.jsonl`.
        used: The rows, which `check_data` has compared with the file.
        anew: True to keep nothing of an earlier file.

    Raises:
        DataError: A data file or the present `data.jsonl` cannot be read.
        WorldError: The file cannot be written.
    """
    records = {} if anew else _read(file)
    for rows in used:
        old_record = records.get(rows.split)
        if old_record is None or old_record.count < len(rows.tasks):
            records[rows.split] = rows.record()
    write_whole(file, b"".join(json_line(record.model_dump()) for record in records.values()))


def count_rows(file: Path) -> int:
    """Return the number of rows in all splits that `file`, a `data.jsonl`, records; 0 if the file is missing.

    Raises DataError if the file is damaged.
    """
    return sum(record.count for record in _read(file).values())


def check_data(file: Path, used: Sequence[UsedRows]) -> None:
    """Check that a resumed run uses the rows that it was started with.

    Args:
        file: The folder's `data.jsonl`; folders of earlier versions have no such file.
        used: The rows that the run would use now.

    Raises:
        UsageError: Rows have changed; the message names the file, the rows and their fields.
        DataError: `data.jsonl` is damaged.
    """
    records = _read(file)
    changes = [
        f"{rows.source} ({rows.split}): {change}"
        for rows in used
        if rows.split in records
        for change in _changes(records[rows.split], rows)
    ]
    if changes:
        lines = "\n".join(changes)
        raise UsageError(
            f"{file.parent} was started with other data, and can be resumed only with the same rows:\n"
            f"{lines}\nRestore the data, or start anew with another --out"
        )


def _read(file: Path) -> dict[str, DataRecord]:
    if not file.exists():
        return {}
    lines = read_jsonl(file, lambda text: DataRecord.model_validate(parse_json(text)), "a record of data")
    return {line.value.split: line.value for line in lines}


def _changes(before: DataRecord, now: UsedRows) -> Iterator[str]:
    """Yield a text for each difference between rows now and at the start: number, order, values."""
    common_count = min(before.count, DIGESTED_ROWS.most)
    tasks = now.tasks if len(now.tasks) >= common_count else now.read(common_count)
    if len(tasks) < common_count or (now.fixed and len(tasks) > before.count):
        yield f"{before.count:,} rows at the start, {len(tasks):,} now"
    tasks = tasks[: before.count]
    columns, rows = _digests(tasks)
    old, new_rows = _split(before.rows)[: len(tasks)], _split(rows)
    numbers = [number for number, pair in enumerate(zip(old, new_rows, strict=False)) if pair[0] != pair[1]]
    fields = _changed_fields(before.columns, columns) if len(tasks) == before.count else ""
    if numbers and sorted(old) == sorted(new_rows):
        yield f"the same rows in another order, from {_row(tasks, numbers[0])} on"
    elif numbers:
        further_rows = f" and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else ""
        verb = "differs" if len(numbers) == 1 else "differ"
        names = ", ".join(_row(tasks, number) for number in numbers[:SHOWN])
        yield f"{names}{further_rows} {verb}{fields}"
    elif fields:
        yield f"a row behind the first {len(old):,} differs{fields}"


def _changed_fields(before: dict[str, str], now: dict[str, str]) -> str:
    """Return ` in FIELDS`, the columns whose digests differ, with new and missing ones marked; empty without
    a difference."""
    names = [
        f"{name} ({'new' if name not in before else 'gone'})" if (name in before) != (name in now) else name
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    return f" in {', '.join(names)}" if names else ""


def _row(tasks: Sequence[Task], number: int) -> str:
    return f"row {number + 1:,} ({str(tasks[number].get('id'))[:60]})"


def _split(digests: str) -> list[str]:
    return [digests[start : start + _SIZE] for start in range(0, len(digests), _SIZE)]


def _digests(tasks: Sequence[Task]) -> tuple[dict[str, str], str]:
    """Return (digest of each column by name, digests of all rows as one text), each digest of fixed
    length."""
    columns: defaultdict[str, Any] = defaultdict(sha256)
    rows: list[str] = []
    for number, task in enumerate(tasks):
        row = sha256()
        for name in sorted(task):
            value = _text(task[name])
            columns[name].update(f"{number} {value}\n".encode())
            row.update(f"{json.dumps(name)} {value}\n".encode())
        rows.append(base64.b64encode(row.digest()[: _SIZE * 3 // 4]).decode())
    return {name: digest.hexdigest()[:32] for name, digest in columns.items()}, "".join(rows)


def _text(value: object) -> str:
    """Return a value as JSON with sorted keys; for a value that JSON cannot express, the name of its type."""
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return type(value).__name__
