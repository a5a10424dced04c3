"""The package reasoning-gym, as far as it is used here: its kinds of tasks, their options, tasks and scores.

Whatever it prints or draws stays its own, and no scorer of it gets text that would run as code. It takes
seconds to import, so nothing here imports it before it is asked for something.
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
"""The package makes tasks in tables of a size; always the same, a shorter list of them begins a longer."""
BOARDS = frozenset({"arc_agi", "rearc"})
"""Their scorers compare with a tuple of tuples, which JSON gives back as lists."""

Entry = Mapping[str, Any]
"""A task as the package makes it: its question, answer and metadata."""
Config = Mapping[str, Any]
"""The options of a kind of task that a spec writes."""


def kinds() -> Mapping[str, tuple[Callable[[Any], Any], type[Any]]]:
    """Each kind of task by its name: its class, and that of its options."""
    return importlib.import_module("reasoning_gym.factory").DATASETS


def configured(name: str, config: Config, *, seed: int = 0, size: int = CHUNK) -> Any:
    """The options of a kind, checked; raises ValidationError, or what the package's own check raises."""
    made = TypeAdapter(kinds()[name][1]).validate_python({**config, "seed": seed, "size": size})
    if hasattr(made, "validate"):
        made.validate()
    return made


def entries(name: str, config: Config, seed: int) -> Iterator[Entry | None]:
    """Tasks without an end; None for one that the package's search did not find."""
    make = kinds()[name][0]
    for start in count(seed, CHUNK):
        table = make(configured(name, config, seed=start))
        for index in range(CHUNK):
            yield _drawn(table, index, seed=start + index)


def _drawn(table: Any, index: int, *, seed: int) -> Entry | None:
    import numpy as np

    state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)  # some of its generators draw from what the whole process shares
    try:
        with redirect_stdout(io.StringIO()):
            return table[index]
    except (AssertionError, LookupError, RuntimeError, ValueError):
        return None
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def score(name: str, config: Config, entry: Entry, answer: str) -> float:
    """What the package's scorer gives an answer, from 0 to 1; 0 where it cannot read the answer.

    `entry` may have been JSON in between. An answer that would run as code counts as an empty one; raises
    ValueError for an entry that would.
    """
    metadata = dict(entry["metadata"])  # some scorers write in it
    if not is_harmless_row(name, entry["answer"], metadata):
        raise ValueError(f"a row of {name} holds what would run as code")
    if name in BOARDS:
        metadata["output"] = tuple(tuple(row) for row in metadata["output"])
    scorer = _scorer(name, json.dumps(config, sort_keys=True))
    try:
        return float(scorer(answer if is_harmless(name, answer) else "", {**entry, "metadata": metadata}))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return 0.0


@lru_cache(maxsize=64)
def _scorer(name: str, config: str) -> Callable[[str, Entry], float]:
    table = kinds()[name][0](configured(name, json.loads(config), size=1))
    return cast("Callable[[str, Entry], float]", table.score_answer)
