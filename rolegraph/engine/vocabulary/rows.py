"""Datasets from numbered rows: the code that all sources of tasks share. Knows no file format."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic_core import to_jsonable_python

from rolegraph.engine.errors import DataError, UsageError, did_you_mean
from rolegraph.engine.records import SEEDS, Split, Task
from rolegraph.engine.vocabulary.call import ItemCall
from rolegraph.engine.vocabulary.foreign import short_repr
from rolegraph.engine.vocabulary.items import Dataset, checked_rows, datasets
from rolegraph.engine.vocabulary.labels import LabelCheck
from rolegraph.engine.vocabulary.registry import BadOptions

T = TypeVar("T")
Row = Mapping[str, Any]
"""One row of a table, by column."""

SUFFIXES = (".jsonl", ".parquet", ".csv", ".tsv")
"""Suffixes of the files that the dataset `file` reads."""


def open_dataset(call: ItemCall, *, split: Split, folder: Path) -> Dataset:
    """Open the dataset that a spec's `data` names.

    Args:
        call: A registered dataset, or the name of a file that ends in one of `SUFFIXES`.
        split: The split to read, "train" or "validation".
        folder: The spec's folder; files lie in it or below it.

    Raises:
        UnknownName: No dataset has that name.
        BadOptions: The dataset does not take these options.
        DataError: The file or the dataset cannot be read.
    """
    if not call.name.endswith(SUFFIXES):
        dataset = datasets.build(call, split=split, folder=folder)
        return replace(dataset, rows=partial(checked_rows, call.name, dataset.rows))
    file = ItemCall("file", call.name, datasets.option_values(call, "file"), has_value=True)
    try:
        return datasets.build(file, split=split, folder=folder)
    except BadOptions as error:
        error.call = call  # the places of its errors are looked up in what the spec wrote
        raise


def withheld(dataset: Dataset, permissions: Sequence[str]) -> Dataset:
    """Return a dataset whose rows raise UsageError with the permissions that the user did not give."""

    def rows(limit: int | None) -> Iterator[Task]:
        flags = " ".join(f"--allow {shlex.quote(name)}" for name in permissions)
        raise UsageError(f"these tasks are read only where that is allowed: {flags}")

    return replace(dataset, rows=rows)


def labelled(dataset: Dataset, readers: Mapping[str, LabelCheck], shown: str) -> Dataset:
    """Return the dataset of a file whose rows raise DataError if a reward's label is missing.

    Args:
        dataset: A dataset with `lines`; any other is returned unchanged.
        readers: The check of each role's reward, by role.
        shown: The name of the file in messages.
    """
    if dataset.lines is None:
        return dataset

    def faults(row: Row) -> str:
        lacks = ((role, fault) for role, check in readers.items() for fault in check.faults(row))
        return next((f"{fault}, and the reward of {role} compares with it" for role, fault in lacks), "")

    def rows(limit: int | None) -> Iterator[Task]:
        for position, row in enumerate(dataset.rows(limit)):
            if fault := faults(row):
                lines = _lines_of(dataset, position, lambda row: bool(faults(row)))
                raise DataError(f"{shown}:{lines}: {fault}; {_MEND}")
            yield row

    return replace(dataset, rows=rows)


_MEND = "give the row its answer, or leave the row out"
_LINES_SHOWN = 10
"""Number of lines that a message lists."""


def _lines_of(dataset: Dataset, start: int, is_faulty: Callable[[Row], bool]) -> str:
    """Return line numbers for a message: the line of the faulty row at `start`, and the lines of later faulty
    rows.

    Reads the file again.
    """
    assert dataset.lines is not None
    pairs = islice(zip(dataset.lines(), dataset.rows(None), strict=True), start, None)
    first_line, *others = [line for line, row in pairs if is_faulty(row)]
    listed_lines = ", ".join(map(str, others[:_LINES_SHOWN])) + (", …" if len(others) > _LINES_SHOWN else "")
    return f"{first_line} (and {len(others):,} more: {listed_lines})" if others else f"{first_line}"


def part_of(whole: Dataset, split: Split, *, share: float, seed: int) -> Dataset:
    """Return the rows of a data set that belong to a split.

    The rows with the lowest digests are held out, as many as the share says. A digest is computed from a
    row's values without its id and from the seed. So the division does not depend on the order of the rows,
    equal rows are never in both parts, and added rows move other rows to the other part only as far as the
    share of the new number of rows demands. A threshold for each digest would move no rows, but held out 6 to
    18 of 60 rows for a share of 0.2. Ids that the data set generated are replaced by the row's digest.

    Args:
        whole: The data set, opened for training; its rows are read twice.
        split: `validation` takes the share, `train` the rest.
        share: Share of the rows that is held out, between 0 and 1; each part has at least one row.
        seed: Seed of the division.
    """
    rows = partial(_part, whole, split, share, seed)
    return Dataset(whole.columns, whole.hidden, rows, whole=whole, file=whole.file)


def _first(rows: Iterator[T], limit: int | None) -> Iterator[T]:
    # A run.json may hold any limit, and `islice` takes none above sys.maxsize.
    return islice(rows, None if limit is None else min(limit, sys.maxsize))


def _part(whole: Dataset, split: Split, share: float, seed: int, limit: int | None) -> Iterator[Task]:
    copies: Counter[str] = Counter()
    held_out_digests = _held_out(Counter(map(row_digest, whole.rows(None))), share, seed)

    def rows() -> Iterator[Task]:
        for position, row in enumerate(whole.rows(None)):
            digest = row_digest(row)
            if (digest in held_out_digests) != (split == "validation"):
                continue
            copies[digest] += 1
            if row["id"] != f"{whole.stem}-train-{position}":
                yield row
            else:
                copy = f"-{copies[digest]}" if copies[digest] > 1 else ""
                yield {**row, "id": f"{whole.stem}-{digest[:16]}{copy}"}

    yield from _first(rows(), limit)
    if not copies and limit != 0:
        raise DataError(f"data.split leaves no row for {split}: give rows that differ, or a file for each")


def _held_out(copies: Mapping[str, int], share: float, seed: int) -> set[str]:
    """Return the digests of the rows to hold out for validation: about `share` of all rows, chosen by `seed`.

    `copies` is the number of equal rows by digest; equal rows stay together.
    """

    def rank(digest: str) -> bytes:
        return sha256(f"{seed}:{digest}".encode()).digest()

    ordered_digests = sorted(copies, key=rank)
    counts = [*accumulate(copies[digest] for digest in ordered_digests[:-1])]
    wanted_count = share * sum(copies.values())
    cut_index = min(range(len(counts)), key=lambda number: abs(counts[number] - wanted_count), default=-1)
    return {*ordered_digests[: cut_index + 1]}


def row_digest(row: Row) -> str:
    """Return a digest of a row's values, without its id."""
    values = {key: value for key, value in row.items() if key != "id"}
    return sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def shared_rows(train: Iterable[Task], validation: Iterable[Task]) -> list[Task]:
    """Return the validation tasks whose values, without the id, equal those of a training task."""
    digests = {row_digest(task) for task in train}
    return [task for task in validation if row_digest(task) in digests]


def seed_tasks(split: Split, count: int) -> Dataset:
    """Return a dataset whose tasks have only an id and a seed.

    Training seeds count up from 0, validation seeds down from the largest, so the splits do not overlap.

    Args:
        split: The split of the tasks.
        count: Number of tasks if `Dataset.rows` gets no limit; a limit may be larger.
    """
    return Dataset(("id", "seed"), frozenset(), partial(_seeds, split, count))


def _seeds(split: Split, count: int, limit: int | None) -> Iterator[Task]:
    for number in range(count if limit is None else limit):
        seed = number if split == "train" else SEEDS - number
        yield {"id": f"seed-{seed}", "seed": seed}


def dataset_of(
    read: Callable[[], Iterator[tuple[int, Row]]],
    *,
    hidden: Sequence[str],
    stem: str,
    split: Split,
    shown: str,
    columns: Sequence[str] | None = None,
) -> Dataset:
    """Return a Dataset of numbered rows, which must all have its columns.

    Args:
        read: Function that yields (line number, row) pairs from the start, each time it is called.
        hidden: Columns that no prompt may show.
        stem: Beginning of the generated ids `STEM-SPLIT-NUMBER` of rows without an `id`.
        split: The split of the rows.
        shown: Name of the source in messages.
        columns: Names of the columns; None reads them from the first row.

    Raises:
        DataError: There are no rows, or a hidden column does not exist. Reading the rows raises it for a
            missing column, and for an `id` that two rows share.
    """
    if columns is None:
        first_row = next((row for _, row in read()), None)
        if first_row is None:
            raise DataError(f"{shown} has no rows")
        columns = [*first_row]
    for name in hidden:
        if name not in columns:
            hint = did_you_mean(name, columns)
            columns_text = f"it has {', '.join(columns)}{f'; {hint}' if hint else ''}"
            raise DataError(f"{shown} has no column {name!r} to hide; {columns_text}")
    columns = ("id", *(column for column in columns if column != "id"))
    stem = stem.replace(":", "-")

    def rows(limit: int | None) -> Iterator[Task]:
        lines: dict[str, int] = {}
        for position, (line, row) in enumerate(_first(read(), limit)):
            missing_columns = [column for column in columns if column not in row and column != "id"]
            if missing_columns:
                raise DataError(f"{shown}:{line}: no {missing_columns[0]!r}, which the first row has")
            given = row.get("id")
            # An episode's id is `task:rollout`, so a task's id has no colon.
            identity = f"{stem}-{split}-{position}" if given in (None, "") else str(given).replace(":", "-")
            note_id(lines, identity, line, shown)
            yield {**row, "id": identity}

    return Dataset(columns, frozenset(hidden), rows, stem=stem)


def note_id(lines: dict[str, int], identity: str, line: int, shown: str) -> None:
    """Record the line of a row's id.

    Args:
        lines: The line of each id so far; the row's line is added.
        identity: The id of the row.
        line: The row's line.
        shown: The name of the source in messages.

    Raises:
        DataError: An earlier row has the same id.
    """
    if identity in lines:
        problem = f"the id {short_repr(identity)} is also in line {lines[identity]}"
        raise DataError(f"{shown}:{line}: {problem}")
    lines[identity] = line


def json_row(row: Row, where: str) -> Row:
    """Convert the values of a row to JSON values; dates and decimals become text.

    Args:
        row: The row as its source gives it.
        where: The row's place, for messages.

    Raises:
        DataError: A value has no JSON form.
    """
    try:
        return cast("Row", to_jsonable_python(row))
    except ValueError as error:
        raise DataError(f"{where}: a value is neither text, number, list nor mapping: {error}") from error
