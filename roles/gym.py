"""Access to the package reasoning-gym: its kinds of tasks, their options, tasks and scores.

The package's output and use of random generators are hidden, and no scorer gets text that would run as code.
Importing the package takes seconds, so it is imported at its first use.
"""

from __future__ import annotations

import importlib
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import lru_cache
from itertools import count
from typing import Any, cast

from pydantic import TypeAdapter

from rolegraph.roles.harmless import is_harmless, is_harmless_row

CHUNK = 500
"""Size of the package's tables of tasks; with one size, a shorter list begins a longer one."""
BOARDS = frozenset({"arc_agi", "rearc"})
"""Kinds whose scorers compare with a tuple of tuples, which JSON turns into lists."""

Entry = Mapping[str, Any]
"""Task of the package: `question`, `answer` and `metadata`."""
Config = Mapping[str, Any]
"""Options of a kind of tasks, as a spec writes them."""


def kinds() -> Mapping[str, tuple[Callable[[Any], Any], type[Any]]]:
    """Return the class of each kind of tasks, and the class of its options, by the kind's name."""
    return importlib.import_module("reasoning_gym.factory").DATASETS


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
    made = TypeAdapter(kinds()[name][1]).validate_python({**config, "seed": seed, "size": size})
    if hasattr(made, "validate"):
        made.validate()
    return made


def entries(name: str, config: Config, seed: int, start: int) -> Iterator[Entry | None]:
    """Yield tasks from a position, without an end; None for a task that the package fails to make."""
    written = json.dumps(config)  # in its order, which some kinds draw in
    for position in count(start):
        index = position % CHUNK
        yield _drawn(_table(name, written, seed + position - index), index, seed=seed + position)


def _drawn(table: Any, index: int, *, seed: int) -> Entry | None:
    import numpy as np

    state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)  # some kinds use the generator that the whole process shares
    try:
        with redirect_stdout(io.StringIO()):
            return table[index]
    except (AssertionError, LookupError, RuntimeError, ValueError):
        return None
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def score(name: str, config: Config, entry: Entry, answer: str) -> float:
    """Score an answer with the scorer of reasoning-gym.

    Args:
        name: The kind of tasks.
        config: The kind's options.
        entry: The task, also one that was read from JSON.
        answer: The answer; one that would run as code counts as an empty one.

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
