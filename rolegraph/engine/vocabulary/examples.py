"""Worked examples for prompts: training rows that each row of a data set carries in its field `examples`.

The draw follows from a row's values and a seed, so equal rows have the same examples in every split and run.
A row never carries itself or a row with equal visible fields, which asks the same question.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary.foreign import short_repr
from rolegraph.engine.vocabulary.items import Dataset
from rolegraph.engine.vocabulary.rows import Row, row_digest

EXAMPLES = "examples"
"""Field of a task that holds its examples."""
POOL = 10_000
"""Number of training rows, from the first on, from which examples are drawn; they are kept in memory."""
_TRIES = 4
"""Number of rows that are drawn for each example before the whole pool is searched. A drawn row is rejected
if it is the task's own row or asks the same."""


@dataclass(frozen=True)
class ExamplePool:
    """Training rows, and the rule by which examples are drawn from them."""

    train: Dataset
    """The training rows, without examples."""
    count: int
    """Number of examples of each row."""
    seed: int
    hidden: frozenset[str]
    """Fields that are left out of examples."""
    asked: frozenset[str]
    """Fields that prompts may read; an example and the row that carries it differ in at least one."""
    by: str | None = None
    """Field whose values get equal shares of the examples; None draws from all rows."""

    def draw(self, row: Row) -> list[dict[str, Any]]:
        """Return the examples of a row, without their ids and hidden fields.

        Raises:
            DataError: There are too few training rows with other visible fields.
        """
        rng = random.Random(f"{self.seed}:{row_digest(row)}")
        asked_digest, chosen = _digest(row, self.asked), dict[str, Row]()
        turns = self._turns(rng)
        while len(chosen) < self.count:
            group = next(turns, None)
            if group is None:
                other_groups = (
                    f"{len(chosen)} training rows ask something else than the row {short_repr(row['id'])}"
                )
                raise DataError(f"data.examples: {other_groups}, expected {self.count}; give more rows")
            drawn_entry = _other(rng, group, {asked_digest, *chosen})
            if drawn_entry is not None:
                chosen[drawn_entry[0]] = drawn_entry[1]
        rows = [*chosen.values()]
        rng.shuffle(rows)  # so that the place of an example says nothing of its value
        return [{key: value for key, value in it.items() if key not in {"id", *self.hidden}} for it in rows]

    def _turns(self, rng: random.Random) -> Iterator[Sequence[tuple[str, Row]]]:
        """Yield the group of rows to draw from, for each draw; each round yields every group once, in a
        random order."""
        for _ in range(self.count):
            yield from rng.sample(self._groups, len(self._groups))
        for group in self._groups:  # a group with few rows gives none to later rounds
            yield from [group] * self.count

    @cached_property
    def _groups(self) -> Sequence[Sequence[tuple[str, Row]]]:
        """Return the pool's rows grouped by the value of `by`; each entry is (digest of the row's `asked`
        fields, row)."""
        groups: dict[str, list[tuple[str, Row]]] = {}
        for row in islice(self.train.rows(None), POOL):
            value = "" if self.by is None else json.dumps(row[self.by], sort_keys=True)
            groups.setdefault(value, []).append((_digest(row, self.asked), row))
        return [*groups.values()]


def with_examples(dataset: Dataset, pool: ExamplePool) -> Dataset:
    """Return a data set whose rows carry examples of the pool, which are drawn when a row is read."""

    def rows(limit: int | None) -> Iterator[Task]:
        for row in dataset.rows(limit):
            yield {**row, EXAMPLES: pool.draw(row)}

    return replace(dataset, columns=(*dataset.columns, EXAMPLES), rows=rows)


def _other(
    rng: random.Random, group: Sequence[tuple[str, Row]], taken: Collection[str]
) -> tuple[str, Row] | None:
    """Draw an entry of a group whose digest is not in `taken`; None if all digests are taken."""
    for _ in range(_TRIES):
        if (pair := rng.choice(group))[0] not in taken:
            return pair
    entries_left = [pair for pair in group if pair[0] not in taken]
    return rng.choice(entries_left) if entries_left else None


def _digest(row: Mapping[str, Any], fields: Collection[str]) -> str:
    return row_digest({key: value for key, value in row.items() if key in fields})
