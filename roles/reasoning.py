"""Tasks of the package reasoning-gym and their reward: a hundred kinds, each with its scorer (2505.24760).

Rows hold the scorer's inputs (`answer`, `metadata`, `config`) as JSON values, which no prompt may show. A
question is in one split only, whatever the seed: with seeds alone, kinds with few questions would overlap.
"""

from __future__ import annotations

import difflib
import json
import os
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from rolegraph.engine.limits.records import ROW_TEXT
from rolegraph.engine.records import Split, Task, derive_seed
from rolegraph.engine.vocabulary import (
    BadOptions,
    BadParts,
    DataError,
    Dataset,
    ItemCall,
    Option,
    Reward,
    RewardInputs,
    Row,
    Score,
    UnknownName,
    json_row,
    option_error,
    options_of,
    require_library,
)
from rolegraph.engine.vocabulary.isolation import CallLimit, shared_isolation
from rolegraph.roles import gym
from rolegraph.roles.equality import as_text

COLUMNS = ("id", "question", "answer", "metadata", "config")
HIDDEN = frozenset({"answer", "metadata", "config"})
SECONDS = 10.0
DRAW_SECONDS = 60.0
"""Time limit for one task of the package, which takes at most seconds with honest options."""
KIND = "reasoning-gym task"

CALL_ROWS = 64
"""Largest number of rows that a call of the process makes."""
MISSES = 500
"""Number of tasks in a row that fail or are of the other split, after which a dataset gives up."""
REFUSED = {
    "codeio": "it runs programs of its own data in this process",
    "composite": "write the names under tasks, each with its weight",
}
FOLLOW_HASHES = frozenset({"isomorphic_strings", "polynomial_multiplication", "ransom_note"})
"""Kinds whose questions depend on the order of sets of text, which differs between processes."""


class MixtureShare(BaseModel):
    """Part of one kind of tasks in a mixture."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Number of rows for each row of a kind with weight 1."""
    config: dict[str, Any] = {}
    """Options of the kind of tasks."""


def _in_full(written: object) -> object:
    """Expand the short form of a reasoning reward, a number, to `{weight: number}`; others are unchanged."""
    is_weight = isinstance(written, int | float) and not isinstance(written, bool)
    return {"weight": written} if is_weight else written


WrittenShare = Annotated[MixtureShare, BeforeValidator(_in_full, json_schema_input_type=float | MixtureShare)]


def dataset(
    *,
    task: str | None = None,
    tasks: dict[str, WrittenShare] | None = None,
    config: dict[str, Any] | None = None,
    size: Annotated[int, Field(ge=1, le=1_000_000)] = 500,
    seed: int = 0,
    split: Split = "train",
) -> Dataset:
    """Generate tasks of the package reasoning-gym, of one kind or a mixture; no question is in both splits.

    task: the kind's name, such as mini_sudoku
    tasks: several names in its place, each with its weight, or with {weight: …, config: …}
    config: the task's own options, such as {min_terms: 3}
    size: how many rows
    seed: the same seed gives the same rows
    """
    require_library("reasoning_gym", "reasoning-gym", "reasoning-gym's tasks")
    if (task is None) == (not tasks):
        raise ValueError("it needs {task: mini_sudoku}, or several, {tasks: {chain_sum: 2, mini_sudoku: 1}}")
    if tasks and config:
        raise ValueError("config is that of one task; of several each has its own, {chain_sum: {config: …}}")
    shares = tasks or {str(task): MixtureShare(config=config or {})}
    if faults := dict(_faults(shares, mixed=bool(tasks))):
        raise BadParts(faults)
    return Dataset(COLUMNS, HIDDEN, partial(_rows, shares, size, seed, split))


def _faults(
    shares: Mapping[str, MixtureShare], *, mixed: bool
) -> Iterator[tuple[tuple[int | str, ...], UnknownName | BadOptions]]:
    """Yield the errors of names and options, each with its path in the spec."""
    kinds = gym.kinds()
    for name, share in shares.items():
        place = ("tasks", name) if mixed else ("task",)
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=5, cutoff=0.5)
            yield place, UnknownName(KIND, name, near or sorted(kinds.keys() - REFUSED.keys()))
        elif reason := _refused(name):
            yield (
                place,
                BadOptions(KIND, name, ItemCall(name), [option_error((), reason)], None, []),
            )
        else:
            options = options_of(kinds[name][1], context=("seed", "size"))
            if errors := _errors(name, share.config, options):
                call = ItemCall(name, options=share.config)
                inside = (*place, "config") if mixed else ("config",)
                yield inside, BadOptions(KIND, name, call, errors, None, options)


def _refused(name: str) -> str | None:
    if name in FOLLOW_HASHES and os.environ.get("PYTHONHASHSEED", "random") == "random":
        return "its questions follow Python's hash seed; set PYTHONHASHSEED=0 to get the same ones again"
    return REFUSED.get(name)


def _errors(name: str, config: gym.Config, options: Sequence[Option]) -> list[ErrorDetails]:
    """Return the errors in the options of a reasoning-gym data set."""
    unknown = config.keys() - {option.name for option in options}
    if unknown:
        kind = "unexpected_keyword_argument"
        return [option_error((key,), "unknown option", kind) for key in sorted(unknown)]
    try:
        gym.configured(name, config)
    except ValidationError as error:
        return error.errors(include_url=False)
    except (AssertionError, TypeError, ValueError) as error:  # of the package's own check
        return [option_error((), str(error) or "reasoning-gym refuses these options")]
    return []


def _rows(
    shares: Mapping[str, MixtureShare], size: int, seed: int, split: Split, limit: int | None
) -> Iterator[Task]:
    most = size if limit is None else min(size, limit)
    streams = {
        name: _drawn(name, share.config, derive_seed(seed, name, split), split, most)
        for name, share in shares.items()
    }
    drawn: Counter[str] = Counter()
    for _ in range(most):
        # The kind that lags most comes next, so that every beginning has the shares of the mixture.
        name = max(shares, key=lambda name: shares[name].weight / (drawn[name] + 1))
        identity = f"{name}-{split}-{drawn[name]}"
        drawn[name] += 1
        yield {"id": identity, **next(streams[name])}


def _drawn(name: str, config: gym.Config, seed: int, split: Split, most: int) -> Iterator[Row]:
    """Yield rows of one kind without ids, made in a process: its options may take any time and memory."""
    pool, at, wanted = shared_isolation(), 0, 1
    while True:
        try:
            rows, at = pool.run_blocking(Draw(), name, config, seed, split, at, wanted, limit=DRAW_SECONDS)
        except (CallLimit, RuntimeError) as error:
            raise DataError(f"reasoning-gym's {name} makes no task with these options: it {error}") from None
        yield from rows
        wanted = min(2 * wanted, most, CALL_ROWS)


class _Imported:
    """Function for a worker, which imports the package when it unpickles the object, before the limits."""

    def __getstate__(self) -> bool:
        return True  # without a state, __setstate__ is not called

    def __setstate__(self, state: bool) -> None:
        gym.kinds()


class Draw(_Imported):
    """Function that makes rows of one kind and split."""

    def __call__(
        self, name: str, config: gym.Config, seed: int, split: Split, start: int, wanted: int
    ) -> tuple[list[Row], int]:
        """Make rows without ids, and give up after MISSES tries in a row.

        Args:
            name: The kind.
            config: Its options.
            seed: The seed of all its tasks.
            split: The split.
            start: The position among all tasks, of both splits, to start at.
            wanted: The number of rows. Fewer are made where they take more than a second, but at least one.

        Returns:
            The rows, and the position after the last.
        """
        rows: list[Row] = []
        at, missed, began = start, 0, time.monotonic()
        for at, entry in enumerate(gym.entries(name, config, seed, start), start + 1):
            if entry is not None and split_of(entry["question"]) == split:
                missed = 0
                rows.append(row_of(entry, config))
                if len(rows) == wanted or time.monotonic() - began > 1:
                    return rows, at
            elif (missed := missed + 1) == MISSES:
                break
        if rows:
            return rows, at
        raise DataError(
            f"reasoning-gym's {name} made no {split} task in {MISSES} tries: its options leave too few"
        )


def split_of(question: str) -> Split:
    """Return the split of a question; about a fifth of all are for validation."""
    return "validation" if zlib.crc32(question.encode()) % 5 == 0 else "train"


def row_of(entry: gym.Entry, config: gym.Config) -> Row:
    """Convert a task of the package to a row of JSON values, without an id.

    Args:
        entry: The task.
        config: The options of its kind.
    """
    given = {column: entry[column] for column in ("question", "answer", "metadata")}
    row = json_row({**given, "config": config}, "reasoning-gym")
    if len(json.dumps(row)) > ROW_TEXT.most:
        raise DataError(ROW_TEXT.exceeded("a task of reasoning-gym has"))
    return row


def reward(*, timeout: Annotated[float, Field(gt=0)] = SECONDS) -> Reward:
    """Score the action with reasoning-gym's own scorer, from 0 to 1, on rows of its dataset.

    timeout: seconds until a score is given up
    """
    require_library("reasoning_gym", "reasoning-gym", "reasoning-gym's tasks")
    return Reward(_Scored(), ("answer", "metadata"), ("answer", "metadata"), timeout=timeout)


class _Scored(_Imported):
    """Score function."""

    def __call__(self, task: Task, action: Any, inputs: RewardInputs) -> Score:
        metadata: object = task["metadata"]
        name = cast("Row", metadata).get("source_dataset", "") if isinstance(metadata, Mapping) else ""
        if name not in gym.kinds():
            raise TypeError("task.metadata must be that of a row of the dataset reasoning_gym")
        value = gym.score(name, task.get("config") or {}, task, as_text(action))
        return Score(value, value >= 1.0)
