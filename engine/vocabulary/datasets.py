"""From numbered rows to a Dataset: what every source of tasks shares. Knows no file format and no source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from pydantic_core import to_jsonable_python

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import SEEDS, Split, Task
from rolegraph.engine.vocabulary.call import ItemCall
from rolegraph.engine.vocabulary.foreign import short_repr
from rolegraph.engine.vocabulary.items import Dataset, checked_rows, datasets
from rolegraph.engine.vocabulary.registry import BadOptions

Row = Mapping[str, Any]

SUFFIXES = (".jsonl", ".parquet", ".csv")
"""How the names end that stand for a file of tasks, which the dataset `file` reads."""


def open_dataset(call: ItemCall, *, split: Split, folder: Path) -> Dataset:
    """The dataset that a spec's `data` names: a registered one, or a file at or below `folder`.

    Raises UnknownName or BadOptions as `Registry.build` does, and DataError.
    """
    if not call.name.endswith(SUFFIXES):
        made = datasets.build(call, split=split, folder=folder)
        return replace(made, rows=partial(checked_rows, call.name, made.rows))
    file = ItemCall("file", call.name, datasets.keywords(call, "file"), has_value=True)
    try:
        return datasets.build(file, split=split, folder=folder)
    except BadOptions as error:
        error.call = call  # places are those of what was written
        raise


def seed_tasks(split: Split, many: int) -> Dataset:
    """Tasks that are only seeds, of which there are always more; `many` without a limit.

    Those to train on count up from 0, those of the validation down from the largest.
    """
    return Dataset(("id", "seed"), frozenset(), partial(_seeds, split, many))


def _seeds(split: Split, many: int, limit: int | None) -> Iterator[Task]:
    for number in range(many if limit is None else limit):
        seed = number if split == "train" else SEEDS - number
        yield {"id": f"seed-{seed}", "seed": seed}


def dataset_of(
    read: Callable[[], Iterator[tuple[int, Row]]],
    *,
    first: Row,
    hidden: Sequence[str],
    stem: str,
    split: Split,
    shown: str,
) -> Dataset:
    """A Dataset of numbered rows that `read` gives anew each time; `first` is the first of them.

    Rows without an id get one from `stem`, the split and their number. `shown` is for messages.
    """
    for name in hidden:
        if name not in first:
            raise DataError(f"{shown} has no column {name!r} to hide; it has {', '.join(first)}")
    columns = ("id", *(column for column in first if column != "id"))
    rows = partial(_tasks, read, columns, stem=f"{stem.replace(':', '-')}-{split}", shown=shown)
    return Dataset(columns, frozenset(hidden), rows)


def json_row(row: Row, where: str) -> Row:
    """The row as JSON values: dates become ISO text, decimals text. Raises DataError for what has no form."""
    try:
        return cast("Row", to_jsonable_python(row))
    except ValueError as error:
        raise DataError(f"{where}: a value is neither text, number, list nor mapping: {error}") from error


def _tasks(
    read: Callable[[], Iterator[tuple[int, Row]]],
    columns: Sequence[str],
    limit: int | None,
    *,
    stem: str,
    shown: str,
) -> Iterator[Task]:
    seen: dict[str, int] = {}
    for position, (line, row) in enumerate(islice(read(), limit)):
        missing = [column for column in columns if column not in row and column != "id"]
        if missing:
            raise DataError(f"{shown}:{line}: no {missing[0]!r}, which the first row has")
        given = row.get("id")
        identity = f"{stem}-{position}" if given in (None, "") else str(given).replace(":", "-")
        if identity in seen:
            raise DataError(
                f"{shown}:{line}: the id {short_repr(identity)} is that of line {seen[identity]} too"
            )
        seen[identity] = line
        yield {**row, "id": identity}
