"""The Plan of a workflow: plain, immutable data with everything that running and training need, resolved.

A plan is a set of tables whose rows refer to each other by position. R roles have N instances each, and take
V turns in B blocks:

    Plan         roles [R], nodes [V], blocks [B], endpoints [E], loops [L], envs [G], waits [B + transitions]
    RolePlan     count N; nodes, a range of N * rounds in `Plan.nodes`; endpoints [N], samplings [N]
    Node         one turn of one instance: role, block; id, a NodeId of role name, index 1…N and round
    Block        turns of one role in one round that become ready together: role, round, nodes, inputs
    InputEdge    earlier turns that a block reads under one name: role, nodes [instances * turns_per_instance]
    Wait         nodes, and the sets of nodes that must end before they start
    LoopPlan     largest number of rounds of a loop, with the conditions that end or skip the loop
    EnvPlan      environment of a loop: player_nodes [times, players], one transition more than rounds
    Endpoint     model that answers: its ModelRef, or the weights of a policy
    GroupingPlan one way of comparing a role's rewards

RolePlan and the rows below Wait are in `role_plan.py`, Wait is in `wiring.py`.

A plan can be pickled; it carries the modules that must be imported before its vocabulary can be unpickled.
Records that are read in every turn are dataclasses: reading a field of a NamedTuple takes several times as
long.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import networkx as nx

from rolegraph.engine.compile import role_plan
from rolegraph.engine.compile.numbers import StepNumbers
from rolegraph.engine.compile.role_plan import RolePlan
from rolegraph.engine.compile.structure import ancestors, frozen, role_graph
from rolegraph.engine.compile.wiring import Vertex, Wait, Wiring, counters, dag_of, turn_graph
from rolegraph.engine.limits.specs import SPEC_WORDS
from rolegraph.engine.prompts import SELF, PromptError
from rolegraph.engine.records import MAIN, NodeId, Trajectory
from rolegraph.engine.spec import ModelRef, Spec, Stage
from rolegraph.engine.vocabulary import Dataset, Import, Lineage, SelfView, Split, Views

TeacherKey = ModelRef | str
"""Weights of a teacher: a model, or the name of a policy in training for its weights of the step."""


_OF_ITS_PLACE = frozenset(("self", "self.index", "self.count", "self.round", "self.times", "self.outer"))
"""Names in a `when` that are known for each turn before a run."""


@dataclass(frozen=True, slots=True)
class Node:
    """One turn of one instance of a role: a node of the unrolled DAG."""

    id: NodeId
    role: int
    """Position in `Plan.roles` of the turn's role."""
    block: int
    """Position in `Plan.blocks` of the block that the turn belongs to."""
    salt: int
    """Constant of this node in the seeds of its calls."""
    lineage: tuple[int, ...]
    """Numbers, from 1, of the ancestors among their siblings, the oldest first, then of the instance itself.
    """
    round: int = 1
    """Round of the role's loop; `id.round` counts through the rounds of the loop around it."""
    outer: int = 1
    """Round of the outer loop around the role's loop; 1 without one."""


class InputEdge(NamedTuple):
    """Earlier turns that the prompts of a block of turns read under one name, such as `solver`."""

    name: str
    role: int
    """Position in `Plan.roles` of the role that is read."""
    nodes: Sequence[int]
    """Positions in `Plan.nodes`, [instances * turns_per_instance]: ordered by instance; in a history, by
    round."""
    turns_per_instance: int = 1
    """Number of consecutive `nodes` that belong to one instance; the edge reads the last of these that
    ran."""
    is_parent: bool = False
    """True for an edge that fans out: a node is skipped if all its parents were skipped."""


@dataclass(frozen=True, slots=True)
class Block:
    """Turns of one role in one round that become ready together and read the same earlier turns."""

    role: int
    """Position in `Plan.roles` of the turns' role."""
    round: int
    nodes: Sequence[int]
    """Positions in `Plan.nodes`: instances of the role that read the same turns."""
    inputs: tuple[InputEdge, ...]
    """Edges to the turns that the block reads, one for each entry of the role's `needs`."""
    until_inputs: tuple[InputEdge, ...] = ()
    """Turns of the previous round, on this branch, that the `until` of a loop reads."""
    until_loop: int = -1
    """Position in `Plan.loops` of the loop whose `until` is evaluated before the block; -1 if there is no
    such loop."""
    back: int = 1
    """Number of turns of the role from one evaluation of the loop's `until` to the next."""
    may_skip: bool = False
    """True if some of the nodes may be skipped."""
    chat_before: tuple[int, ...] = ()
    """Nodes of the conversation that the block's nodes continue, oldest first: the conversation's previous
    turn, then for a fork the turns of its trunk since. Earlier turns are in the block of that previous
    turn."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnGraph:
    """Turns of a workflow, and what each waits for and reads."""

    nodes: tuple[Node, ...]
    """Nodes in the order of roles, then rounds, then instances."""
    blocks: tuple[Block, ...]
    waits: tuple[Wait, ...]
    """For each block, then for each transition of an environment, its nodes and the nodes that they wait
    for."""
    reward_inputs: Mapping[int, tuple[InputEdge, ...]]
    """Turns that the reward of each node reads; each edge is named as the reward names it: `judge`, or
    `judge.history`."""
    signal_inputs: Mapping[int, tuple[InputEdge, ...]]
    """Turns of roles outside of `needs` that the signal of each node reads; edges are named as in
    `reward_inputs`."""
    episode_inputs: tuple[InputEdge, ...]
    """Turns that `episode.correct` and the metrics read; each edge has the name that the expressions use."""
    lineages: Mapping[str, Sequence[Lineage]]
    """For each instance of each role, the instances that it descends from."""
    callees: Mapping[int, Mapping[str, Sequence[int]]]
    """For each node that may call roles: the nodes that answer its calls, by called role, in order. Their
    blocks become ready when the caller has ended: nodes that answered a call have a result then, and the
    others are skipped."""


class StagePlan(NamedTuple):
    """Stage of a training, compiled: the steps in which roles imitate answers."""

    stage: Stage
    first: int
    """Number of the stage's first step, from 1."""
    last: int
    """Number of the stage's last step, from 1."""
    spec: Spec
    """The spec with the estimators and signals of the stage."""
    roles: tuple[role_plan.RolePlan, ...]
    """The plan's roles with the estimators and signals of the stage."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan(TurnGraph):
    """Compiled workflow: roles, turns and blocks with their order, ready to run."""

    name: str
    spec: Spec
    resolved: str
    """The spec as one YAML text, with everything that it extends and all overrides merged in."""
    hash: str
    """Hex digest of the spec, its templates and the vocabulary it uses."""
    imports: tuple[Import, ...]
    """Modules that another process must import before it unpickles the plan; none for installed packages."""
    roles: tuple[role_plan.RolePlan, ...]
    """Roles in the order of the spec, which is the order of an episode's trajectories."""
    endpoints: tuple[role_plan.Endpoint, ...]
    policies: Mapping[str, role_plan.PolicyPlan]
    """Policies that training changes, by name."""
    past: Mapping[str, role_plan.PastPlan]
    """Policies of past selves (frozen copies of a trained policy), by name."""
    loops: tuple[role_plan.LoopPlan, ...]
    envs: tuple[role_plan.EnvPlan, ...]
    reward_order: tuple[int, ...]
    """Roles whose reward is deferred (`Reward.is_deferred`), each after the roles that its reward reads."""
    correct: tuple[role_plan.EpisodeExpression, ...]
    """Expressions that say whether an episode is correct: all of those whose roles ran must hold."""
    judged: frozenset[str]
    """Roles that can be right: their reward judges the answer, or passes on the verdict on another role."""
    metrics: Mapping[str, role_plan.MetricPlan]
    hidden: frozenset[str]
    """Task fields that prompts do not see."""
    data: Mapping[Split, Dataset]
    permissions: tuple[role_plan.Permission, ...]
    """Permissions that items of the vocabulary need."""
    withheld: tuple[role_plan.Permission, ...]
    """Permissions that the plan needs, but were not given; without them the plan does not run."""
    interpreter: str = ""
    """Interpreter of the spec's programs, such as `monty`; empty for a spec without programs."""
    numbers: StepNumbers | None = None
    """Numbers that follow the step of a training; `roles` have the numbers of the last step."""
    scheduled: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values of `numbers` in this plan's roles, by dotted path in the spec."""
    last_step: int = 0
    """Last step of the training, from 0, which expressions read as `step` in a run, an evaluation or a
    validation; 0 where no expression reads it, or the spec has no `train`."""
    stages: tuple[StagePlan, ...] = ()
    """Stages of the training, in their order; RL comes after them."""
    validations: Mapping[str, Plan] = field(default_factory=dict[str, "Plan"])
    """Workflows that validate a training in place of this one, by name."""

    def __repr__(self) -> str:
        return f"<Plan {self.name}, {len(self.roles)} roles>"

    @cached_property
    def reads_step(self) -> bool:
        """True where an expression of a reward, or the gate of a signal, reads `step`."""
        formulas = (formula for role in self.roles for formula in role.formulas.values())
        gate_texts = (signal.gate for signal in self.signals.values() if signal.gate)
        return any("step" in formula.mentions for formula in (*formulas, *gate_texts))

    @cached_property
    def defaults(self) -> dict[str, str]:
        """Action that replaces an unreadable answer, by role; roles without a default are left out."""
        default_actions = {role.name: role.parser.default for role in self.asking}
        return {name: str(action) for name, action in default_actions.items() if action not in (None, "")}

    @cached_property
    def routers(self) -> frozenset[str]:
        """Roles whose action another role's condition `when` reads."""
        mentioned_roles = {
            name.partition(".")[0] for role in self.roles if role.when for name in role.when.mentions
        }
        return frozenset(role.name for role in self.asking if role.name in mentioned_roles)

    @cached_property
    def word_scored(self) -> frozenset[str]:
        """Roles for which a run computes the reward of every word that their parser allows.

        Their rewards are fast to compute, and read nothing that another answer of the role would have
        changed.
        """
        graph = role_graph(self.spec)
        return frozenset(
            role.name
            for role in self.roles
            if (reward := role.reward) is not None
            and 1 < len(role.allowed_answers) <= SPEC_WORDS.most
            and role.loop is None
            and not (reward.reads_environment or reward.delegates or reward.timeout or role.likelihoods)
            and not any(formula.timeout for formula in role.formulas.values())
            and ancestors(graph, role.name).issuperset(reward.read_roles)
        )

    @cached_property
    def wiring(self) -> Wiring:
        """Order of nodes and blocks as counters, for runs."""
        return counters(self.waits)

    @cached_property
    def dag(self) -> nx.DiGraph[Vertex]:
        """Order of nodes and blocks as a DAG, for analyses."""
        return frozen(dag_of(self.waits))

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The DAG of turns, which cannot be changed: `graph.copy()` can.

        A node is named as expressions name its instance, such as `solver[0]`, and `solver[0] round 2` for a
        later round. Its attributes are `role`, `index` and `round`, which count from 1, the name of its
        `policy`, and the model of its `endpoint`; the last two are empty for a role without a model.
        """
        names = [node_name(node.id) for node in self.nodes]
        graph = turn_graph(names, self.dag)
        for name, node in zip(names, self.nodes, strict=True):
            role = self.roles[node.role]
            endpoint = self.endpoints[role.endpoints[node.id.index - 1]] if role.endpoints else None
            policy = (endpoint.past or endpoint.policy) if endpoint else None
            model = str(endpoint.model) if endpoint else ""
            graph.add_node(name, **node.id._asdict(), policy=policy or "", endpoint=model)
        return frozen(graph)

    @property
    def asking(self) -> tuple[role_plan.RolePlan, ...]:
        """Roles with a prompt, whose turns call a model; the other roles run a tool."""
        return tuple(role for role in self.roles if role.run is None)

    @property
    def trained(self) -> dict[str, role_plan.RolePlan]:
        """Roles that training changes, by name."""
        return {role.name: role for role in self.roles if role.spec.is_trained}

    @property
    def named_fields(self) -> dict[str, str]:
        """Task fields that each task must have, each with the key of the spec that reads the field."""
        fields = dict.fromkeys(self.spec.data.hidden, "data.hidden")
        for role in self.roles:
            fields |= dict.fromkeys(role.spec.sees, f"roles.{role.name}.sees")
            if role.reward is not None:
                fields |= dict.fromkeys(role.reward.task_fields, f"roles.{role.name}.reward")
        return fields

    @property
    def signals(self) -> dict[str, role_plan.SignalPlan]:
        """Signals of trained roles, by role."""
        return {name: role.signal for name, role in self.trained.items() if role.signal is not None}

    @property
    def teachers(self) -> list[ModelRef]:
        """Models that teach in signals, each once; for a policy's start, the model that the policy starts
        from."""
        keys = (
            self.weights_of(teacher, role.name, index)
            for role in self.trained.values()
            for index in range(1, role.count + 1)
            if role.signal is not None and index not in role.frozen
            for teacher in role.signal.all_teachers
        )
        return [key for key in dict.fromkeys(keys) if isinstance(key, ModelRef)]

    @property
    def reference_policies(self) -> list[str]:
        """Policies in training whose starting weights a teacher or a loss reads."""
        names = self._policies_of_teachers(start=True)
        roles = [name for name, role in self.trained.items() if role.loss.reads_start]
        names += [policy for name in roles for policy in sorted(self.policies_of(name))]
        return list(dict.fromkeys(names))

    @property
    def teaching_policies(self) -> list[str]:
        """Policies in training whose weights of the step a teacher reads."""
        return self._policies_of_teachers(start=False)

    def _policies_of_teachers(self, *, start: bool) -> list[str]:
        """Return the policies in training that are teachers: with their starting weights if `start`, else
        with their weights of the step."""
        names: dict[str, None] = {}
        for role, signal in self.signals.items():
            for teacher in signal.all_teachers:
                if teacher.model is None and teacher.is_start == start:
                    teacher_policies = [teacher.policy] if teacher.policy else sorted(self.policies_of(role))
                    names |= dict.fromkeys(teacher_policies)
        return list(names)

    def weights_of(self, teacher: role_plan.TeacherPlan, role: str, index: int) -> TeacherKey:
        """Return the weights of the teacher of instance `index`, from 1, of a trained role.

        Returns:
            A model, or the name of a policy, which means the policy's weights of the step. The start of a
            policy is the model that it starts from.
        """
        if teacher.model is not None:
            return teacher.model
        policy = teacher.policy or self.policy_of(role, index)
        return self.policies[policy].model if teacher.is_start else policy

    def stage_at(self, step: int) -> StagePlan | None:
        """Return the stage of a training step, from 1; None for a step of RL."""
        number = self.stage_number(step)
        return None if number is None else self.stages[number - 1]

    def stage_number(self, step: int) -> int | None:
        """Return the number of the stage of a training step, both from 1; None for a step of RL."""
        numbered_stages = enumerate(self.stages, 1)
        return next((number for number, stage in numbered_stages if stage.first <= step <= stage.last), None)

    @property
    def first_step_of_rl(self) -> int:
        """Number of the first step after the stages of imitation, from 1."""
        return self.stages[-1].last + 1 if self.stages else 1

    @property
    def may_skip(self) -> bool:
        """True where an episode may leave out some of the turns."""
        conditions = any(role.when for role in self.roles) or bool(self.envs or self.callees)
        return conditions or any(loop.until or loop.when for loop in self.loops)

    def may_run(self, node: Node) -> bool:
        """Return False for a turn whose `when` is false in every run, such as `self.round > 1` in round 1."""
        role = self.roles[node.role]
        if role.when is None or not role.when.mentions <= _OF_ITS_PLACE:
            return True
        self_fields = (node.lineage, role.count, node.round, role.times, Views(()))
        instance = SelfView(role.name, node.id.index, *self_fields, outer=node.outer)
        try:
            return bool(role.when.value({SELF: instance}))
        except PromptError:
            return True

    @cached_property
    def turns(self) -> Counter[int]:
        """Number of turns of each role that may run, by the role's position in `roles`."""
        return Counter(node.role for node in self.nodes if self.may_run(node))

    @property
    def deciding(self) -> tuple[str, ...]:
        """Roles that decide whether an episode is correct."""
        return tuple(dict.fromkeys(name for expression in self.correct for name in expression.roles))

    @property
    def can_be_correct(self) -> bool:
        """True if an expression in `correct` can hold: it reads a role that can be right, or itself compares
        values."""
        return any(not e.verdicts or self.judged.intersection(e.verdicts) for e in self.correct)

    @property
    def own_metric_names(self) -> tuple[str, ...]:
        """Names of the metrics, after `correct` if an episode can be correct."""
        leading_names = ("correct",) if self.can_be_correct else ()
        return (*leading_names, *(name for name in self.metrics if name not in leading_names))

    @property
    def validation_metric_names(self) -> tuple[str, ...]:
        """Names of the metrics of the validation workflows: the first workflow's, and `NAME/metric` of the
        others. Without such workflows, the names of this workflow's metrics."""
        return tuple(prefix + name for prefix, plan in self.validating for name in plan.own_metric_names)

    @property
    def validating(self) -> list[tuple[str, Plan]]:
        """(prefix of the metrics' names, plan) of each workflow that validates: the prefix is empty for the
        first workflow, `NAME/` for others."""
        named_plans = enumerate(self.validations.items())
        return [(f"{name}/" if index else "", plan) for index, (name, plan) in named_plans] or [("", self)]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics of a training's episodes and of its validations."""
        return tuple(dict.fromkeys((*self.own_metric_names, *self.validation_metric_names)))

    def env_at(self, block: int) -> tuple[int, int] | None:
        """Return (index in `envs`, number in the node table) of the environment transition `block`; None for
        a block of turns.

        Transitions have the numbers after those of the blocks and of the nodes.
        """
        if block < len(self.blocks):
            return None
        node = len(self.nodes) + block - len(self.blocks)
        return next((index, node) for index, env in enumerate(self.envs) if node in env.transitions)

    def endpoint_of(self, node: Node) -> role_plan.Endpoint:
        """Return the endpoint that answers a node of a role with a model."""
        return self.endpoints[self.roles[node.role].endpoints[node.id.index - 1]]

    def endpoints_of(self, role: role_plan.RolePlan) -> list[role_plan.Endpoint]:
        """Return the endpoints of a role's instances, each once."""
        return [self.endpoints[number] for number in dict.fromkeys(role.endpoints)]

    def policies_of(self, role: str) -> set[str]:
        """Return the names of the policies in training that answer for a role's instances."""
        (plan,) = (plan for plan in self.roles if plan.name == role)
        return {endpoint.policy for endpoint in self.endpoints_of(plan) if endpoint.policy is not None}

    def policy_of(self, role: str, index: int) -> str:
        """Return the policy in training of instance `index`, from 1; `main` for an untrained model."""
        (plan,) = (plan for plan in self.roles if plan.name == role)
        return (self.endpoints[plan.endpoints[index - 1]].policy if plan.endpoints else None) or MAIN

    def cost(self, trajectory: Trajectory) -> float | None:
        """Return the dollars of a trajectory's answers; None where neither the endpoint reports dollars nor
        the spec has a price.

        Args:
            trajectory: A trajectory of this workflow.
        """
        role = next((role for role in self.roles if role.name == trajectory.name), None)
        if role is None or not role.endpoints:
            return None
        price = self.endpoints[role.endpoints[trajectory.index - 1]].model.price
        costs = [
            step.usage.get("cost", price and price.of(step.prompt_tokens, step.response_tokens))
            for step in trajectory.steps
        ]
        known_costs = [cost for cost in costs if cost is not None]
        return sum(known_costs) if known_costs else None

    def untrained_weights(self, role: role_plan.RolePlan) -> str:
        """Return a text that describes the untrained weights of a role's instances; empty if all instances
        are trained."""

        def text(endpoint: role_plan.Endpoint) -> str:
            if endpoint.past is not None:
                return f"past selves of {self.past[endpoint.past].of}"
            if endpoint.policy is not None:
                return f"the latest of {endpoint.policy}"
            weights = endpoint.model.weights
            return f"{endpoint.model} " + (f"with the weights {weights}" if weights else "as it is")

        numbers = enumerate(role.endpoints, 1)
        untrained_numbers = [
            number for index, number in numbers if index in role.frozen or not role.spec.is_trained
        ]
        return " and ".join(dict.fromkeys(text(self.endpoints[number]) for number in untrained_numbers))

    def is_past(self, role: str, index: int) -> bool:
        """Return True if frozen copies of a policy answer for instance `index`, from 1, of a role."""
        return any(plan.name == role and index in plan.frozen for plan in self.roles)

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Sequence[Import], bytes]]:
        return _restored, (self.imports, pickle.dumps([getattr(self, f.name) for f in fields(self)]))


def _restored(imports: Sequence[Import], values: bytes) -> Plan:
    for source_file in imports:
        source_file.ensure()
    field_values: list[Any] = pickle.loads(values)
    return Plan(*field_values)


def node_name(id: NodeId) -> str:
    """Return the name of a turn in `Plan.graph`."""
    return f"{id.role}[{id.index - 1}]" + (f" round {id.round}" if id.round > 1 else "")


class EpisodeBounds(NamedTuple):
    """Bounds of one episode in which no turn is skipped and no call is retried."""

    calls: int
    """Largest number of model calls."""
    chain: int
    """Largest number of model calls on the longest path through the DAG of turns, which is an episode's time
    at best."""

    def __str__(self) -> str:
        plural_ending = "" if self.calls == 1 else "s"
        return f"at most {self.calls:,} model call{plural_ending} an episode, longest chain {self.chain:,}"


def size_of(plan: Plan) -> EpisodeBounds:
    """Return the largest number of model calls of an episode, and of calls in it that wait for each other."""
    calls = [calls_of(role) for role in plan.roles]
    calls_in_turn = [
        # One after the other, each call of the model but the last waits for the longest role that it calls.
        count + (role.spec.max_calls - 1) * max((calls[c.role] for c in role.callees), default=0)
        for count, role in zip(calls, plan.roles, strict=True)
    ]
    for c in (c.role for role in plan.roles for c in role.callees):
        calls_in_turn[c] = 0  # within the turn that calls
    chain: dict[Vertex, int] = {}
    for vertex in nx.topological_sort(plan.dag):
        is_turn = vertex.kind == "node" and vertex.number < len(plan.nodes)
        node = plan.nodes[vertex.number] if is_turn else None
        calls_here = calls_in_turn[node.role] if node is not None and plan.may_run(node) else 0
        chain[vertex] = calls_here + max((chain[earlier] for earlier in plan.dag.pred[vertex]), default=0)
    longest_chain = max(chain.values(), default=0)
    return EpisodeBounds(sum(calls[role] * count for role, count in plan.turns.items()), longest_chain)


def calls_of(role: RolePlan) -> int:
    """Return the largest number of model calls in one turn of a role; 0 for a role that runs a tool."""
    return role.spec.max_calls if role.run is None else 0
