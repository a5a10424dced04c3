"""Tasks of the package reasoning-gym and their reward: a hundred kinds, each with its scorer (2505.24760).

Rows hold the scorer's inputs (`answer`, `metadata`, `config`) as JSON values, which no prompt may show. The
split of a question follows from its text, whatever the seed: with seeds alone, the splits of kinds with few
questions would overlap. No scorer gets text that would run as code.
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import lru_cache, partial
from itertools import count
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
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
    RewardFacts,
    RewardInputs,
    Row,
    Score,
    UnknownName,
    json_row,
    option_error,
    options_of,
    require_library,
)
from rolegraph.engine.vocabulary.imports import Loaded
from rolegraph.engine.vocabulary.isolation import CallLimit, shared_isolation
from rolegraph.integrations.reasoning_gym.harmless import is_harmless, is_harmless_row
from rolegraph.roles.equality import Seconds, as_text

COLUMNS = ("id", "question", "answer", "metadata", "config")
HIDDEN = frozenset({"answer", "metadata", "config"})
SECONDS = 10.0
DRAW_SECONDS = 60.0
"""Time limit for one task of the package, which takes at most seconds with honest options."""
KIND = "reasoning-gym task"
PACKAGE = "reasoning_gym.factory"
"""Module of the package, which is imported at its first use, because the import takes seconds."""
CHUNK = 500
"""Number of tasks in each of the package's tables, so that a shorter dataset is the beginning of a longer
one."""
BOARDS = frozenset({"arc_agi", "rearc"})
"""Kinds whose scorers compare with a tuple of tuples, because JSON turns tuples into lists."""

Entry = Mapping[str, Any]
"""Task of the package: `question`, `answer` and `metadata`."""
Config = Mapping[str, Any]
"""Options of a kind of tasks, as a spec writes them."""

CALL_ROWS = 64
"""Largest number of rows that one call of the process generates."""
MISSES = 500
"""Number of consecutive tasks that fail or belong to the other split, after which a dataset gives up."""
REFUSED = {
    "codeio": "it runs programs of its own data in this process",
    "composite": "write the names under tasks, each with its weight",
}


class MixtureShare(BaseModel):
    """Share of one kind of tasks in a mixture."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Weight of the kind: its number of rows for each row of a kind with weight 1."""
    config: dict[str, Any] = {}
    """Options of the kind of tasks."""


def _in_full(written: object) -> object:
    """Expand a share that is written as a number to `{weight: number}`; return other values unchanged."""
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
    tasks: several names in place of `task`, each with its weight, or with {weight: …, config: …}
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
    """Yield (path in the spec, error) for each unknown kind of tasks and each invalid option."""
    choices = kinds()
    for name, share in shares.items():
        path, options = ("tasks", name) if mixed else ("task",), list[Option]()
        if name not in choices:
            near_names = difflib.get_close_matches(name, choices, n=5, cutoff=0.5)
            yield path, UnknownName(KIND, name, near_names or sorted(choices.keys() - REFUSED.keys()))
            continue
        if name in REFUSED:
            errors = [option_error((), REFUSED[name])]
        else:
            path = (*path, "config") if mixed else ("config",)
            options = options_of(choices[name][1], context=("seed", "size"))
            errors = _errors(name, share.config, options)
        if errors:
            yield path, BadOptions(KIND, name, ItemCall(name, options=share.config), errors, None, options)


def _errors(name: str, config: Config, options: Sequence[Option]) -> list[ErrorDetails]:
    """Return pydantic's error details for the unknown or invalid options of a kind of tasks."""
    unknown_options = config.keys() - {option.name for option in options}
    if unknown_options:
        error_type = "unexpected_keyword_argument"
        return [option_error((key,), "unknown option", error_type) for key in sorted(unknown_options)]
    try:
        configured(name, config)
    except ValidationError as error:
        return error.errors(include_url=False)
    except (AssertionError, TypeError, ValueError) as error:  # of the package's own check
        return [option_error((), str(error) or "reasoning-gym refuses these options")]
    return []


def _rows(
    shares: Mapping[str, MixtureShare], size: int, seed: int, split: Split, limit: int | None
) -> Iterator[Task]:
    row_limit = size if limit is None else min(size, limit)
    streams = {
        name: _drawn(name, share.config, derive_seed(seed, name, split), split, row_limit)
        for name, share in shares.items()
    }
    rows_per_kind: Counter[str] = Counter()
    for _ in range(row_limit):
        # The kind that lags most comes next, so that every beginning has the shares of the mixture.
        name = max(shares, key=lambda name: shares[name].weight / (rows_per_kind[name] + 1))
        identity = f"{name}-{split}-{rows_per_kind[name]}"
        rows_per_kind[name] += 1
        yield {"id": identity, **next(streams[name])}


def _drawn(name: str, config: Config, seed: int, split: Split, most: int) -> Iterator[Row]:
    """Yield `most` rows of one kind, without ids, generated in a process with limits.

    The limits are needed because some options make generation take any time and memory.
    """
    pool, draw_rows, position, row_count = shared_isolation(), Loaded(draw, PACKAGE), 0, 1
    while True:
        try:
            rows, position = pool.run_blocking(
                draw_rows, name, config, seed, split, position, row_count, limit=DRAW_SECONDS
            )
        except (CallLimit, RuntimeError) as error:
            raise DataError(f"reasoning-gym's {name} makes no task with these options: it {error}") from None
        yield from rows
        row_count = min(2 * row_count, most, CALL_ROWS)


def draw(
    name: str, config: Config, seed: int, split: Split, start: int, wanted: int
) -> tuple[list[Row], int]:
    """Return rows of one kind and split, without ids, and the next position.

    Args:
        name: The kind.
        config: Options of the kind.
        seed: Seed of all tasks of the kind.
        split: The split.
        start: Position at which to start, among the tasks of both splits.
        wanted: Number of rows. Fewer are returned, but at least one, if they take more than a second.

    Returns:
        (rows, position after the last).

    Raises:
        DataError: `MISSES` consecutive tasks failed or belong to the other split, and there is no row.
    """
    rows: list[Row] = []
    position, missed_tasks, start_time = start, 0, time.monotonic()
    for position, entry in enumerate(entries(name, config, seed, start), start + 1):
        if entry is not None and split_of(entry["question"]) == split:
            missed_tasks = 0
            rows.append(row_of(entry, config))
            if len(rows) == wanted or time.monotonic() - start_time > 1:
                return rows, position
        elif (missed_tasks := missed_tasks + 1) == MISSES:
            break
    if rows:
        return rows, position
    raise DataError(
        f"reasoning-gym's {name} made no {split} task in {MISSES} tries: its options leave too few"
    )


def split_of(question: str) -> Split:
    """Return the split of a question; about a fifth of all are for validation."""
    return "validation" if zlib.crc32(question.encode()) % 5 == 0 else "train"


def row_of(entry: Entry, config: Config) -> Row:
    """Convert a task of the package to a row of JSON values, without an id.

    Args:
        entry: The task.
        config: The options of its kind.
    """
    copied_columns = {column: entry[column] for column in ("question", "answer", "metadata")}
    row = json_row({**copied_columns, "config": config}, "reasoning-gym")
    if len(json.dumps(row)) > ROW_TEXT.most:
        raise DataError(ROW_TEXT.exceeded("a task of reasoning-gym has"))
    return row


def reward(*, timeout: Seconds = SECONDS) -> Reward:
    """Score the action with reasoning-gym's own scorer, from 0 to 1, on rows of its dataset.

    timeout: seconds until a score is given up
    """
    require_library("reasoning_gym", "reasoning-gym", "reasoning-gym's tasks")
    score = Loaded(_score, PACKAGE)
    hidden = ("answer", "metadata")
    facts = RewardFacts(fields=hidden, labels=hidden, required=())  # some kinds keep the answer in metadata
    return Reward(score, facts, timeout=timeout)


def _score(task: Task, action: Any, inputs: RewardInputs) -> Score:
    metadata: object = task["metadata"]
    name = cast("Row", metadata).get("source_dataset", "") if isinstance(metadata, Mapping) else ""
    if name not in kinds():
        raise TypeError("task.metadata must be that of a row of the dataset reasoning_gym")
    value = score_answer(name, task.get("config") or {}, task, as_text(action))
    return Score(value, value >= 1.0)


def kinds() -> Mapping[str, tuple[Callable[[Any], Any], type[Any]]]:
    """Return the class of each kind of tasks, and the class of its options, by the kind's name."""
    return importlib.import_module(PACKAGE).DATASETS


def configured(name: str, config: Config, *, seed: int = 0, size: int = CHUNK) -> Any:
    """Check the options of a kind of tasks.

    Args:
        name: The kind's name.
        config: The options.
        seed: The seed of a table.
        size: The number of tasks in a table.

    Returns:
        The package's object of the options.

    Raises:
        ValidationError: An option has the wrong type.
        AssertionError, TypeError, ValueError: The package's own check fails.
    """
    kind_config = TypeAdapter(kinds()[name][1]).validate_python({**config, "seed": seed, "size": size})
    if hasattr(kind_config, "validate"):
        kind_config.validate()
    return kind_config


def entries(name: str, config: Config, seed: int, start: int) -> Iterator[Entry | None]:
    """Yield tasks from position `start` on, endlessly; None for a task that the package fails to generate."""
    config_json = json.dumps(config)  # in its order, which some kinds draw in
    for position in count(start):
        index = position % CHUNK
        yield _entry(_table(name, config_json, seed + position - index), index, seed=seed + position)


def _entry(table: Any, index: int, *, seed: int) -> Entry | None:
    random.seed(seed)  # some kinds use the generator that the whole process shares
    try:
        with redirect_stdout(io.StringIO()):
            return table[index]
    except (AssertionError, LookupError, RuntimeError, ValueError):
        return None


def score_answer(name: str, config: Config, entry: Entry, answer: str) -> float:
    """Score an answer with the scorer of reasoning-gym.

    Args:
        name: The kind of tasks.
        config: The kind's options.
        entry: The task, made here or read from JSON.
        answer: The answer; an answer that would run as code counts as empty.

    Returns:
        A number from 0 to 1; 0 where the scorer cannot read the answer.

    Raises:
        ValueError: The entry would run as code.
    """
    metadata = dict(entry["metadata"])  # some scorers change it
    if not is_harmless_row(name, entry["answer"], metadata):
        raise ValueError(f"a row of {name} holds what would run as code")
    if name in BOARDS:
        metadata["output"] = tuple(tuple(row) for row in metadata["output"])
    scorer = _scorer(name, json.dumps(config, sort_keys=True))
    try:
        return float(scorer(answer if is_harmless(name, answer) else "", {**entry, "metadata": metadata}))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return 0.0


@lru_cache(maxsize=8)
def _table(name: str, config: str, seed: int) -> Any:
    return kinds()[name][0](configured(name, json.loads(config), seed=seed))


@lru_cache(maxsize=64)
def _scorer(name: str, config: str) -> Callable[[str, Entry], float]:
    table = kinds()[name][0](configured(name, json.loads(config), size=1))
    return cast("Callable[[str, Entry], float]", table.score_answer)
