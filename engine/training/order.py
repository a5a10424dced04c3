"""Which tasks a step learns from, and with which seeds: all follows from the run's seed and the step."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Task, derive_seed
from rolegraph.engine.spec import Train


def planned_steps(train: Train, rows: int) -> int:
    """How many steps a run has; raises UsageError where the data does not fill one batch."""
    each = _steps_in_epoch(train, rows)
    ends = [n for n in (train.steps, train.epochs and train.epochs * each) if n]
    return min(ends, default=each)


def validation_tasks(plan: Plan) -> list[Task]:
    """The validation tasks; none where the spec has none."""
    dataset = plan.data.get("validation")
    return [] if dataset is None else list(dataset.rows(plan.spec.train.validation.tasks))


def batch(rows: Sequence[Task], train: Train, seed: int, step: int) -> list[Task]:
    """The tasks of step `step`, counted from 1. Each epoch goes through the data in an order of its own.

    What does not fill a batch at the end of an epoch is left out of that epoch.
    """
    epoch, position = divmod(step - 1, _steps_in_epoch(train, len(rows)))
    start = position * train.batch_size
    return shuffled(rows, seed, epoch)[start : start + train.batch_size]


def shuffled(rows: Sequence[Task], seed: int, epoch: int = 0) -> list[Task]:
    """The data in the order of an epoch, counted from 0."""
    order = list(range(len(rows)))
    random.Random(derive_seed(seed, "order", epoch)).shuffle(order)
    return [rows[i] for i in order]


def _steps_in_epoch(train: Train, rows: int) -> int:
    if rows < train.batch_size:
        raise UsageError(
            f"the training data has {rows} tasks, which do not fill a batch of {train.batch_size}; "
            "lower `train.batch_size` or give more data"
        )
    return rows // train.batch_size
