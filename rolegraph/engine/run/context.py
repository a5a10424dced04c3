"""The variables of an episode's prompts and conditions, as far as the episode has run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import InputEdge
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.prompts import SELF, Expression, PromptError, Template
from rolegraph.engine.prompts.evaluate import CHANCE, DRAW, PER
from rolegraph.engine.records import SEEDS, Observer, Task, derive_seed
from rolegraph.engine.run.environment import EnvironmentSession
from rolegraph.engine.run.turn import EpisodeJob, EpisodeSession, NodeResult
from rolegraph.engine.vocabulary import SelfView, Upstream, View, Views
from rolegraph.engine.vocabulary.isolation import Isolation

NO_UPSTREAM: Upstream = {}
NO_ARGUMENTS: Mapping[str, Any] = {}
T = TypeVar("T")


def turns_taken(edge: InputEdge, results: Sequence[T | None]) -> list[tuple[int, T]]:
    """Return (node, result) of an edge's turns that ran; of each instance only its last, unless all are
    read. `results` has None for a node that has not run."""
    last = {
        position // edge.turns_per_instance: (node, result)
        for position, node in enumerate(edge.nodes)
        if (result := results[node]) is not None
    }
    return list(last.values())


class EpisodeContext(EpisodeSession):
    """State of one running episode, and the source of the variables that its templates and rewards read.

    Nodes, blocks and roles are given by their positions in the plan.
    """

    def __init__(
        self,
        plan: Plan,
        job: EpisodeJob,
        isolation: Isolation,
        observe: Observer | None,
        models: Sequence[LimitedModel] = (),
    ) -> None:
        super().__init__(job, isolation, observe)
        self.plan, self.task, self.models = plan, job.task, models
        self.step = plan.last_step if job.step is None else job.step - 1
        """Training step that expressions read, from 0."""
        self.results: list[NodeResult | None] = [None] * len(plan.nodes)
        """Result of each node; None for a node that has not run."""
        self.environments: list[EnvironmentSession] = []
        self.env_of: dict[int, EnvironmentSession] = {}
        """Environment of the loop of each role."""
        for env in plan.envs:
            self.environments.append(EnvironmentSession(env, self.task))
            self.env_of |= dict.fromkeys(env.turns, self.environments[-1])
        self.upstream: list[Upstream] = [NO_UPSTREAM] * len(plan.blocks)
        """Results that the nodes of each block see; set when the block opens."""
        self.arguments: dict[int, Mapping[str, Any]] = {}
        """Arguments of the call that a node answers, by node."""
        self.restarted: set[int] = set()
        """Nodes whose turn began its conversation anew (`memory.reset`)."""
        self.uncomputed = 0
        """Number of conditions that could not be computed."""
        self._visible_task = _without(self.task, plan.hidden)

    def set_upstream(self, block: int, edges: Sequence[InputEdge]) -> None:
        """Store the views of the earlier turns that a block reads, by name; call it when all of them have
        ended."""
        self.upstream[block] = {edge.name: self.views(edge) for edge in edges}

    def views(self, edge: InputEdge) -> Views:
        """Return the turns of an edge that ran, as views."""
        return Views([result.public for _, result in turns_taken(edge, self.results)])

    def of_block(self, role: RolePlan, block: int) -> Mapping[str, Any]:
        """Return the template variables that all turns of a block share: `task`, and the roles that they
        read."""
        task = self._task_of(role) if role.spec.sees else self._visible_task
        return {"task": task, **self.upstream[block]}

    def of_node(self, node: int) -> Mapping[str, Any]:
        """Return the template variables of one turn: `task`, `self`, and the roles that it reads."""
        plan_node = self.plan.nodes[node]
        role, environment = self.plan.roles[plan_node.role], self.env_of.get(plan_node.role)
        earlier = range(node - role.count * (plan_node.id.round - 1), node, role.count)
        history = Views([result.public for turn in earlier if (result := self.results[turn]) is not None])
        observation = environment.observation(plan_node) if environment is not None else ""
        given = self.arguments.get(node, NO_ARGUMENTS)
        place = (plan_node.round, role.times, history, observation, given, plan_node.outer)
        self_view = SelfView(role.name, plan_node.id.index, plan_node.lineage, role.count, *place)
        task = self._task_of(role) if role.spec.sees else self._visible_task
        return {"task": task, SELF: self_view, **self.upstream[plan_node.block]}

    def of_turn_end(self, node: int, view: View, texts: Iterable[Expression | Template]) -> Mapping[str, Any]:
        """Return what the expressions and texts of a reward read of a turn that has ended, with all
        fields of the task; `self` alone costs work, and is made where one of `texts` reads it."""
        instance = {SELF: self.of_node(node)[SELF]} if any("self" in it.mentions for it in texts) else {}
        return {
            **instance,
            "task": self.task,
            "action": view.known_action,
            "response": view.response,
            "thought": view.thought,
            "ok": not view.failure,
            "tokens": view.tokens,
            "calls": view.calls,
            "step": self.step,
        }

    def group_keys(self, node: int, role: RolePlan) -> Mapping[str, str | None]:
        """Return by expression a digest of its value for a turn, by which rewards are grouped; None if it
        fails.

        The expressions see all fields of the task, and no record has their value.
        """
        variables = {"task": self.task, SELF: self.of_node(node)[SELF]}
        digests: dict[str, str | None] = {}
        for expression in role.group_keys:
            try:
                value = expression.text(variables).encode()
                digests[expression.source] = hashlib.blake2b(value, digest_size=8).hexdigest()
            except PromptError:
                digests[expression.source] = None
        return digests

    def of_loop_end(self, edges: Sequence[InputEdge]) -> Mapping[str, Any]:
        """Return the variables that a loop's `until` or `when` reads: visible task fields and the roles of
        `edges`."""
        return {"task": self._visible_task, **{edge.name: self.views(edge) for edge in edges}}

    def holds(
        self, condition: Expression, variables: Mapping[str, Any], owner: str, turns: Sequence[int] = ()
    ) -> bool:
        """Return the truth of a condition; where it is unknown or cannot be computed, count that in
        `uncomputed` and return False.

        Args:
            condition: The condition.
            variables: What it reads.
            owner: The role or the loop that it belongs to.
            turns: Nodes that it is evaluated for: the role's turn, or those of the round that has ended.
        """
        if CHANCE in condition.mentions:
            ids = [tuple(self.plan.nodes[node].id) for node in turns]
            variables = {**variables, DRAW: partial(self._draw, owner, ids)}
        with suppress(PromptError):
            if isinstance(truth := condition.truth(variables), bool):
                return truth
        self.uncomputed += 1
        return False

    def _draw(self, owner: str, turns: Sequence[tuple[object, ...]], per: str, key: str | int) -> float:
        """Return the number from 0 to below 1 that `chance` compares, the same whenever the episode runs.

        An episode without a seed draws with that of the spec's sampling, else with 0.
        """
        seed = self.plan.spec.sampling.seed if self.job.seed is None else self.job.seed
        place = (self.task["id"], self.job.rollout, turns)[: PER.index(per) + 1]
        shared = key if isinstance(key, str) else (owner, key)
        return derive_seed(seed or 0, CHANCE, shared, *place) / (SEEDS + 1)

    def _task_of(self, role: RolePlan) -> Mapping[str, Any]:
        """Return the task's fields that a role's prompts may read: the visible ones and those that it
        `sees`."""
        return _without(self.task, self.plan.hidden.difference(role.spec.sees))


def _without(task: Task, hidden: Set[str]) -> Mapping[str, Any]:
    return {name: value for name, value in task.items() if name not in hidden}
