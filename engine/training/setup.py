"""What a run trains with, and who looks on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.compile.plan import Plan
from engine.models.limit import Gate
from engine.records import Task
from engine.records.folder import RunFolder
from engine.run.isolation import Isolation
from engine.spec.models import ModelRef
from engine.training.learner import Learner
from engine.training.signals import Teacher


class Watcher(Protocol):
    """Whoever looks on: a table, a tracker."""

    def note(self, text: str) -> None:
        """What is going on just now."""
        ...

    def warn(self, text: str) -> None:
        """Something that the person should know."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step's metrics, which are safe on disk; step 0 is the validation before training."""
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run trains with."""

    plan: Plan
    seed: int
    steps: int
    rows: Sequence[Task]
    """The training tasks."""
    held_out: Sequence[Task]
    """The validation tasks; none where the spec has none."""
    learner: Learner
    gates: Mapping[ModelRef, Gate]
    """The models of the roles that are not trained."""
    teachers: Mapping[ModelRef, Teacher]
    isolation: Isolation
    folder: RunFolder
    watcher: Watcher
