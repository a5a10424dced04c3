"""A compiled workflow: everything the scheduler needs, resolved and immutable. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from engine.compile.graph import Instance
from engine.prompts.templates import Template
from engine.records import Step
from engine.spec.models import ModelRef, OnFailure, Sampling, Spec
from engine.vocabulary import Dataset, Estimator, LossName, Metric, Parser, Reward, Split

Advantages = Callable[[Step, Sequence[float] | None], Sequence[float]]


@dataclass(frozen=True, slots=True)
class SignalPlan:
    """A role's signal, with its names resolved. `advantages` or `demonstration` is given."""

    advantages: Advantages | None
    teacher: ModelRef | None
    demonstration: Template | None
    weight: float


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role, with its names resolved. `needs` and `feeds` are positions in `Plan.roles`."""

    name: str
    count: int
    needs: tuple[int, ...]
    feeds: tuple[int, ...]
    prompt: Template
    system: Template | None
    parser: Parser
    reward: Reward | None
    estimator: Estimator | None
    signal: SignalPlan | None
    loss: LossName
    trainable: bool
    model: ModelRef
    sampling: Sampling
    on_failure: OnFailure
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One workflow, ready to run."""

    name: str
    spec: Spec
    resolved: str
    """The spec in one YAML file: extended and overridden."""
    hash: str
    """Hex digest over the spec, its templates and the vocabulary it uses."""
    roles: tuple[RolePlan, ...]
    """In the order of the spec, which is the order of an episode's trajectories."""
    scoring: tuple[int, ...]
    """Positions of the roles whose reward reads other roles' scores, each after those it reads."""
    correct: int
    """The role whose correctness is the episode's."""
    metrics: Mapping[str, Metric]
    hidden: frozenset[str]
    """Task fields that no prompt sees."""
    data: Mapping[Split, Dataset]
    graph: nx.DiGraph[Instance]

    @property
    def trained(self) -> dict[str, RolePlan]:
        """The roles that training changes, by name."""
        return {role.name: role for role in self.roles if role.trainable}

    @property
    def signals(self) -> dict[str, SignalPlan]:
        """What trained roles learn from in place of a reward, by role."""
        return {name: role.signal for name, role in self.trained.items() if role.signal is not None}
