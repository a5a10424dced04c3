"""Variables of an episode's prompts and conditions at the current point of the episode."""

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
    """Return (node, result) of the turns of an input edge that ran: only each instance's last turn, unless
    the edge reads all.

    `results` has None for a node that has not run.
    """
    last_turns = {
        position // edge.turns_per_instance: (node, result)
        for position, node in enumerate(edge.nodes)
        if (result := results[node]) is not None
    }
    return list(last_turns.values())


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
        """Environment of the loop that each role is in, by the role's position."""
        for env in plan.envs:
            self.environments.append(EnvironmentSession(env, self.task))
            self.env_of |= dict.fromkeys(env.turns, self.environments[-1])
        self.upstream: list[Upstream] = [NO_UPSTREAM] * len(plan.blocks)
        """Results that the nodes of each block read, by block; set when the block opens."""
        self.arguments: dict[int, Mapping[str, Any]] = {}
        """Arguments of the tool call that a node answers, by node."""
        self.restarted: set[int] = set()
        """Nodes whose turn began its conversation anew (`memory.reset`)."""
        self.uncomputed = 0
        """Number of conditions that were unknown or could not be computed."""
        self._visible_task = _without(self.task, plan.hidden)

    def set_upstream(self, block: int, edges: Sequence[InputEdge]) -> None:
        """Store the views of the turns that a block reads; call it when all of these turns have ended."""
        self.upstream[block] = {edge.name: self.views(edge) for edge in edges}

    def views(self, edge: InputEdge) -> Views:
        """Return the views of the turns of an input edge that ran."""
        return Views([result.public for _, result in turns_taken(edge, self.results)])

    def of_block(self, role: RolePlan, block: int) -> Mapping[str, Any]:
        """Return the template variables that all turns of a block share: `task`, and the roles that the block
        reads."""
        task = self._task_of(role) if role.spec.sees else self._visible_task
        return {"task": task, **self.upstream[block]}

    def of_node(self, node: int) -> Mapping[str, Any]:
        """Return the template variables of one turn: `task`, `self`, and the roles that it reads."""
        plan_node = self.plan.nodes[node]
        role, environment = self.plan.roles[plan_node.role], self.env_of.get(plan_node.role)
        nodes = range(node - role.count * (plan_node.id.round - 1), node, role.count)
        history = Views([result.public for turn in nodes if (result := self.results[turn]) is not None])
        observation = environment.observation(plan_node) if environment is not None else ""
        call_arguments = self.arguments.get(node, NO_ARGUMENTS)
        self_fields = (plan_node.round, role.times, history, observation, call_arguments, plan_node.outer)
        self_view = SelfView(role.name, plan_node.id.index, plan_node.lineage, role.count, *self_fields)
        task = self._task_of(role) if role.spec.sees else self._visible_task
        return {"task": task, SELF: self_view, **self.upstream[plan_node.block]}

    def of_turn_end(self, node: int, view: View, texts: Iterable[Expression | Template]) -> Mapping[str, Any]:
        """Return the variables that a turn's reward reads after the turn: `self`, the turn, and all fields of
        the task.

        `self` is built only if one of `texts` reads it, because it costs work.
        """
        instance = {SELF: self.of_node(node)[SELF]} if any("self" in text.mentions for text in texts) else {}
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
        """Return a digest of each group key of a turn, by the key's expression; None for a key that cannot be
        computed.

        The expressions may read hidden fields, so records have only the digests.
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
        """Return True if a condition is true; if it is unknown or cannot be computed, count it in
        `uncomputed` and return False.

        Args:
            condition: The condition.
            variables: Variables that the condition reads.
            owner: The role or loop that the condition belongs to.
            turns: Nodes for which it is evaluated: the role's turn, or the turns of the round that has ended.
        """
        if CHANCE in condition.mentions:
            ids = [tuple(self.plan.nodes[node].id) for node in turns]
            variables = {**variables, DRAW: partial(self._draw, owner, ids)}
        with suppress(PromptError):
            if isinstance(truth_value := condition.truth(variables), bool):
                return truth_value
        self.uncomputed += 1
        return False

    def _draw(self, owner: str, turns: Sequence[tuple[object, ...]], per: str, key: str | int) -> float:
        """Return a number from 0 to below 1 for `chance` to compare; a repeated episode gets the same
        numbers.

        The seed is the episode's, else that of the spec's sampling, else 0.

        Args:
            owner: The role or loop whose condition draws.
            turns: Nodes for which the condition is evaluated.
            per: Scope of the draw: `turn`, `episode` or `task`.
            key: Key of the call, else its position.
        """
        seed = self.plan.spec.sampling.seed if self.job.seed is None else self.job.seed
        seed_parts = (self.task["id"], self.job.rollout, turns)[: PER.index(per) + 1]
        draw_key = key if isinstance(key, str) else (owner, key)
        return derive_seed(seed or 0, CHANCE, draw_key, *seed_parts) / (SEEDS + 1)

    def _task_of(self, role: RolePlan) -> Mapping[str, Any]:
        """Return the task fields that a role's prompts may read: visible fields, and the hidden ones in its
        `sees`."""
        return _without(self.task, self.plan.hidden.difference(role.spec.sees))


def _without(task: Task, hidden: Set[str]) -> Mapping[str, Any]:
    return {name: value for name, value in task.items() if name not in hidden}
