"""Datasets: tasks that are generated, read from a file, or loaded from Hugging Face.

Making a Dataset reads at most a header and a first row, so that a spec can be checked against its columns;
`rows` yields the tasks. A row's `id` is text without a colon (an episode's id is `task:rollout`): the row's
own, or the dataset's name and the row's number.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rolegraph.engine.connections import naming_variables
from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import DataError, Dataset, Row, Split, dataset_of, json_row, require_library
from rolegraph.roles import countdown as countdown_task
from rolegraph.roles.tables import find_table, read_table

_HUB_NAME = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")


Number = Annotated[int, Field(ge=1, le=1_000_000)]
Size = Annotated[int, Field(ge=1, le=10)]


def countdown(
    *,
    count: Number = 2048,
    seed: int = 0,
    numbers: Annotated[list[Size], Field(min_length=1, max_length=100)] = [*countdown_task.NUMBERS],  # noqa: B006  # read only
    low: Number = countdown_task.LOW,
    high: Number = countdown_task.HIGH,
    operators: str = countdown_task.OPERATORS,
    split: Split = "train",
) -> Dataset:
    """Generate solvable Countdown tasks from a seed: combine the numbers, each once, into the target.

    count: how many tasks
    seed: the same seed gives the same tasks
    numbers: how many numbers a task has, in turn
    low: the smallest number
    high: the largest number, whose square is the largest target
    operators: the operators that a solution may use
    """
    settings: dict[str, Any] = {"numbers": numbers, "low": low, "high": high, "operators": operators}
    make_tasks = partial(countdown_task.generate, seed=seed, split=split, **settings)
    make_tasks(min(count, len(numbers)))  # raises for settings that allow no task

    def rows(limit: int | None) -> Iterator[Task]:
        yield from make_tasks(count if limit is None else min(count, limit))

    columns = tuple(countdown_task.CountdownTask.__annotations__)
    return Dataset(columns, frozenset({"solution"}), rows)


def file(
    path: str, /, *, hidden: list[str] | None = None, split: Split = "train", folder: Path = Path()
) -> Dataset:
    """Read the rows of a .jsonl, .csv, .tsv or .parquet file beside the spec or below it.

    path: the file's name; the name alone, as in `train: tasks.jsonl`, means the same
    hidden: columns that no prompt may show
    """
    table_path = find_table(folder, path)
    read_rows = partial(read_table, table_path)
    dataset = dataset_of(read_rows, hidden=hidden or [], stem=table_path.stem, split=split, shown=path)
    return replace(dataset, file=table_path, lines=lambda: (line for line, _ in read_rows()))


def huggingface(
    name: str,
    /,
    *,
    subset: str | None = None,
    split_name: str | None = None,
    hidden: list[str] | None = None,
    split: Split = "train",
) -> Dataset:
    """Load a dataset of the Hugging Face hub, or one cached on this machine (the datasets library).

    name: its name on the hub, such as openai/gsm8k
    subset: its configuration, where it has several
    split_name: its split, where that is not called train or validation
    hidden: columns that no prompt may show
    """
    require_library("datasets", "data", "Hugging Face datasets")
    # The library prefers a folder of this name to the hub's dataset, wherever the folder lies.
    if not _HUB_NAME.fullmatch(name) or Path(name).exists():
        raise DataError(f"{name!r} is not the name of a dataset on the hub, such as openai/gsm8k")
    load_rows = partial(_hub_rows, name, subset, split_name or split)
    return dataset_of(load_rows, hidden=hidden or [], stem=name.rpartition("/")[2], split=split, shown=name)


def _hub_rows(name: str, subset: str | None, split_name: str) -> Iterator[tuple[int, Row]]:
    with naming_variables("HF_"):
        library: Any = importlib.import_module("datasets")
    try:
        loaded_rows = library.load_dataset(name, subset, split=split_name)
    except Exception as error:  # of the library, the hub, the network, or Python itself
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot load the dataset {name!r}, split {split_name!r}: {reason}") from error
    for number, row in enumerate(loaded_rows, 1):
        yield number, json_row(row, f"{name}:{number}")
