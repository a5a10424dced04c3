"""Tasks and learning rate of each training step; both follow from the spec, the seed and the step number."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import RunFolder, Task, derive_seed
from rolegraph.engine.spec import Schedule, Train


class ValidationSetup(NamedTuple):
    """Workflow that validates a training, with its tasks and the folder of its episodes."""

    plan: Plan
    tasks: Sequence[Task]
    folder: RunFolder
    prefix: str = ""
    """Beginning of its metrics' names: `NAME/`, or empty."""


def planned_steps(train: Train, rows: int) -> int:
    """Return the number of steps of a training.

    Args:
        train: The spec's `train`; the smaller of `steps` and `epochs` counts, one epoch without either.
        rows: Number of training tasks.

    Raises:
        UsageError: If the tasks do not fill one batch, or the stages take more steps than there are.
    """
    steps_per_epoch = _steps_in_epoch(train, rows)
    step_limits = [n for n in (train.steps, train.epochs and train.epochs * steps_per_epoch) if n]
    steps, stage_steps = min(step_limits, default=steps_per_epoch), sum(stage.steps for stage in train.stages)
    if stage_steps > steps:
        raise UsageError(
            f"`train.stages` takes {stage_steps:,} steps, and the training data gives {steps:,}; set "
            "`train.steps` or `train.epochs`, or shorten the stages"
        )
    return steps


def validation_tasks(plan: Plan, count: int | None = None) -> list[Task]:
    """Return the first validation tasks of a plan; none if it has no such data, or other workflows validate.

    Args:
        plan: The plan.
        count: Number of tasks; None takes the plan's `train.validation.tasks`.
    """
    dataset = None if plan.validations else plan.data.get("validation")
    return [] if dataset is None else list(dataset.rows(count or plan.spec.train.validation.tasks))


def batch_tasks(rows: Sequence[Task], train: Train, seed: int, number: int) -> list[Task]:
    """Return the P = `train.batch_size` tasks of a batch.

    Each epoch has an order of its own; an incomplete batch at its end is dropped.

    Args:
        rows: All training tasks.
        train: The spec's `train`.
        seed: The training's seed.
        number: The batch's number, from 1; that of its step, unless earlier steps drew several.
    """
    epoch, position = divmod(number - 1, _steps_in_epoch(train, len(rows)))
    start = position * train.batch_size
    return shuffled(rows, seed, epoch)[start : start + train.batch_size]


def shuffled(rows: Sequence[Task], seed: int, epoch: int = 0) -> list[Task]:
    """Return the tasks in the shuffled order of an epoch, counted from 0."""
    order = list(range(len(rows)))
    random.Random(derive_seed(seed, "order", epoch)).shuffle(order)
    return [rows[i] for i in order]


def learning_rate(schedule: Schedule, rate: float, step: int, steps: int) -> float:
    """Return the learning rate of a step: linear warm-up from 0, then the schedule's decay.

    Args:
        schedule: The spec's `train.schedule`; its `floor` is a fraction of `rate`.
        rate: The peak learning rate.
        step: The step's number, from 1.
        steps: Number of all steps.
    """
    if step <= schedule.warmup:
        return rate * step / schedule.warmup
    progress = (step - 1 - schedule.warmup) / max(1, steps - 1 - schedule.warmup)
    factors = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": (1.0 + math.cos(math.pi * progress)) / 2,
    }
    return rate * (schedule.floor + (1.0 - schedule.floor) * factors[schedule.kind])


def _steps_in_epoch(train: Train, rows: int) -> int:
    if rows < train.batch_size:
        raise UsageError(
            f"the training data has {rows} tasks, which do not fill a batch of {train.batch_size}; "
            "lower `train.batch_size` or give more data"
        )
    return rows // train.batch_size
