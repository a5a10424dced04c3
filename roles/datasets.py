"""Datasets: where tasks come from. Generated, read from a file, or from Hugging Face.

Making a Dataset reads no more than a header, so that a spec can be checked against its columns; `rows`
yields the tasks. A row's `id` is text without a colon (an episode's id is `task:rollout`): the row's own, or
the dataset's name and the row's number.
"""

# pyarrow and datasets leave their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from engine.episode import Task
from engine.errors import DataError, UsageError
from engine.registry import Call, nearest
from roles import countdown as countdown_task
from roles.vocabulary import Dataset, Split, datasets

SUFFIXES = (".jsonl", ".parquet", ".csv")

Row = Mapping[str, Any]


def open_dataset(call: Call, *, split: Split, folder: Path) -> Dataset:
    """The dataset that a spec's `data` names: a registered one, or a file at or below `folder`.

    Raises UnknownName or BadOptions as `Registry.build` does, and DataError.
    """
    if call.name.endswith(SUFFIXES):
        call = Call("file", call.name, {**_options(call)}, has_value=True)
    return datasets.build(call, split=split, folder=folder)


def _options(call: Call) -> Mapping[str, Any]:
    return {**(call.value if isinstance(call.value, dict) else {}), **call.options}


@datasets.register("countdown")
def countdown(
    *,
    count: int = 2048,
    seed: int = 0,
    numbers: list[int] = [2, 3],  # noqa: B006  # read only
    low: int = 1,
    high: int = 12,
    operators: str = "+-*/",
    split: Split = "train",
) -> Dataset:
    """Countdown tasks from a seed, each solvable: combine the numbers, each once, into the target."""
    make = partial(
        countdown_task.generate,
        seed=seed,
        split=split,
        numbers=numbers,
        low=low,
        high=high,
        operators=operators,
    )
    make(min(count, len(numbers)))

    def rows(limit: int | None) -> Iterator[Task]:
        yield from make(count if limit is None else min(count, limit))

    columns = tuple(countdown_task.CountdownTask.__annotations__)
    return Dataset(columns, frozenset({"solution"}), rows)


@datasets.register("file")
def file(
    path: str, /, *, hidden: list[str] | None = None, split: Split = "train", folder: Path = Path()
) -> Dataset:
    """The rows of a .jsonl, .parquet or .csv file, looked up beside the spec."""
    where = _inside(folder, path)
    read = _READERS[where.suffix]
    first = next(read(where), None)
    if first is None:
        raise DataError(f"{path} has no rows")
    return _dataset(partial(read, where), first[1], hidden or [], where.stem, split, str(path))


@datasets.register("huggingface")
def huggingface(
    name: str,
    /,
    *,
    subset: str | None = None,
    split_name: str | None = None,
    hidden: list[str] | None = None,
    split: Split = "train",
) -> Dataset:
    """A dataset of the Hugging Face hub, or one cached on this machine (the datasets library)."""
    if importlib.util.find_spec("datasets") is None:
        raise DataError("Hugging Face datasets need the library datasets: pip install 'rolegraph[data]'")
    rows = _hub_rows(name, subset, split_name or split)
    first = next(iter(rows()), None)
    if first is None:
        raise DataError(f"the dataset {name} has no rows in its split {split_name or split}")
    return _dataset(lambda: _numbered(rows()), first, hidden or [], name.rpartition("/")[2], split, name)


def _hub_rows(name: str, subset: str | None, split_name: str) -> Callable[[], Iterator[Row]]:
    from datasets import load_dataset  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    try:
        loaded: Any = load_dataset(name, subset, split=split_name)
    except Exception as error:  # the library raises its own, the hub's, the network's and plain ones alike
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot load the dataset {name!r}, split {split_name!r}: {reason}") from error
    return lambda: iter(loaded)


def _dataset(
    read: Callable[[], Iterator[tuple[int, Row]]],
    first: Row,
    hidden: Sequence[str],
    stem: str,
    split: Split,
    shown: str,
) -> Dataset:
    for name in hidden:
        if name not in first:
            raise DataError(f"{shown} has no column {name!r} to hide; it has {', '.join(first)}")
    columns = ("id", *(column for column in first if column != "id"))
    rows = partial(_tasks, read, columns, stem.replace(":", "-"), split, shown)
    return Dataset(columns, frozenset(hidden), rows)


def _tasks(
    read: Callable[[], Iterator[tuple[int, Row]]],
    columns: Sequence[str],
    stem: str,
    split: Split,
    shown: str,
    limit: int | None,
) -> Iterator[Task]:
    seen: dict[str, int] = {}
    for position, (line, row) in enumerate(islice(read(), limit)):
        missing = [column for column in columns if column not in row and column != "id"]
        if missing:
            raise DataError(f"{shown}:{line}: no {missing[0]!r}, which the first row has")
        own = row.get("id")
        identity = f"{stem}-{split}-{position}" if own in (None, "") else str(own).replace(":", "-")
        if identity in seen:
            raise DataError(f"{shown}:{line}: the id {identity!r} is that of line {seen[identity]} too")
        seen[identity] = line
        yield {**row, "id": identity}


def _numbered(rows: Iterator[Row]) -> Iterator[tuple[int, Row]]:
    return enumerate(rows, 1)


def _jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(_text(lines, path), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path.name}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path.name}:{number}: not an object with a row's fields")
            yield number, cast("Row", row)


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(_text(lines, path))
        try:
            for row in reader:
                if None in row or None in row.values():
                    fields = len(reader.fieldnames or ())
                    raise DataError(
                        f"{path.name}:{reader.line_num}: not as many fields as the header's {fields}"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path.name}:{reader.line_num}: not CSV: {error}") from error


def _text(lines: Iterator[str], path: Path) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("parquet files need the library pyarrow: pip install 'rolegraph[data]'")
    import pyarrow  # pyright: ignore[reportMissingTypeStubs]
    import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]

    try:
        opened: Any = pyarrow.parquet.ParquetFile(path)
        number = 0
        for batch in opened.iter_batches(1024):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except pyarrow.ArrowException as error:
        raise DataError(f"{path.name} is not a parquet file: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[tuple[int, Row]]]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _inside(folder: Path, name: str) -> Path:
    if not name.endswith(SUFFIXES):
        raise DataError(f"cannot read {name!r}; expected a file that ends in {', '.join(SUFFIXES)}")
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise DataError(f"{name} lies outside the spec's folder; put it beside the spec or below it")
    if not path.is_file():
        beside = [entry.name for entry in path.parent.glob("*") if entry.suffix in SUFFIXES]
        close = nearest(path.name, beside)
        raise DataError(
            f"there is no file {name!r} beside the spec" + (f"; did you mean {close!r}?" if close else "")
        )
    return path
