"""What a run trains with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Observer, RunFolder, Task
from rolegraph.engine.run import Isolation
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.policies import Policies


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What a run trains with. Whoever opened the models, services and workers in it closes them."""

    plan: Plan
    seed: int
    steps: int
    tasks: Sequence[Task]
    """The training tasks."""
    validation_tasks: Sequence[Task]
    """None where the spec has none."""
    policies: Policies
    models: Mapping[ModelRef, LimitedModel]
    """Those of the roles that are not trained, and the teachers."""
    isolation: Isolation
    folder: RunFolder
    observe: Observer
