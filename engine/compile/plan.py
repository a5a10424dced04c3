"""A compiled workflow: everything that running and training need, resolved and immutable. Plain data.

Roles, endpoints, nodes, blocks and joins are known by their positions in the plan's tables. A plan can be
pickled; it brings along what has to be imported before it is whole again. What every turn reads is a
dataclass: a field of a NamedTuple takes several times as long to read, though it is made faster.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from rolegraph.engine.prompts import Condition, Template
from rolegraph.engine.records import MAIN, NodeId
from rolegraph.engine.spec import Credit, GroupBy, Lora, Loss, ModelRef, OnFailure, Path, Sampling, Spec
from rolegraph.engine.vocabulary import (
    Dataset,
    Environment,
    Estimator,
    Import,
    Metric,
    Pairs,
    Parser,
    Reward,
    SelfView,
    Signal,
    Split,
    Tool,
    Views,
)

if TYPE_CHECKING:
    import networkx as nx


class Endpoint(NamedTuple):
    """Where a node's answers come from: a policy's latest weights, or a model as it is."""

    model: ModelRef
    """The model; that which the policy starts from, where there is one."""
    policy: str | None = None


class PolicyPlan(NamedTuple):
    """What a policy that is trained is trained with."""

    model: ModelRef
    """What it starts from; its `checkpoint`, if any, are weights of that model."""
    lora: Lora
    learning_rate: float
    """Before the schedule."""


class SignalPlan(NamedTuple):
    """A role's signal, with what it names resolved."""

    signal: Signal
    teacher: ModelRef | None
    demonstration: Template | None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a role does in place of asking a model."""

    name: str
    """The tool's."""
    tool: Tool
    value: Template | None
    """Rendered, what its function is asked; None for a tool that picks from what the role sees."""
    pairs: Pairs
    """Those that the tool wants to know."""


class Permission(NamedTuple):
    """Something in a plan that a person must allow."""

    name: str
    """As `--allow` names it."""
    path: Path
    """Where in the spec it is asked for."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role, with its names resolved."""

    name: str
    count: int
    needs: tuple[str, ...]
    prompt: Template | None
    """None for a role that runs a tool."""
    run: RunPlan | None
    system: Template | None
    parser: Parser
    reward: Reward | None
    credit: Credit
    group: GroupBy
    estimator: Estimator | None
    signal: SignalPlan | None
    loss: Loss
    trainable: bool
    weight: float
    """What its losses count."""
    earns_late: bool
    """Whether its reward reads more than its own turn."""
    earns_sum: bool
    """Whether an instance earns what its turns earn together, and not what the last does."""
    endpoints: tuple[int, ...]
    """Of each instance; none where no model is asked."""
    samplings: tuple[Sampling, ...]
    """Of each instance; none where no model is asked."""
    on_failure: OnFailure
    timeout: float | None
    when: Condition | None
    """Where it is false, an instance is skipped."""
    loop: int | None
    """The loop that it is in."""
    rounds: int
    """How many turns an instance takes at most."""
    nodes: range
    """Those of its turns: of all instances in the first round, then in the next."""
    asks_each: bool
    """Whether its prompts speak of the instance itself, so that no two are asked the same."""
    tools: tuple[Tool, ...] = ()
    """What its model may call in its turn."""
    calls: int = 1
    """How often a turn asks its model at most."""
    shows: frozenset[str] = frozenset()
    """Hidden task fields that its own prompts and condition see."""
    keeps_chat: bool = False
    """Whether its turns go on with the conversation of those before."""

    @property
    def compares_turns(self) -> bool:
        """Whether its turns are compared, and not its trajectories; where rewards are compared at all."""
        by_reward = self.estimator is not None and self.estimator.compute is not None
        return by_reward and (self.credit.kind != "trajectory" or self.group != "task")


Tail = tuple[tuple[int, int], ...]
"""Joins, each with how many of its nodes lie in the rounds that a loop is spared."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """Roles that take turns for several rounds."""

    name: str
    times: int
    until: Condition | None
    """Where it holds after a round, there is no other on that branch."""
    tails: tuple[Tail, ...]
    """What its end lets go, by the round that would have been the next, less one; nothing where its branches
    end each for itself."""
    branches: int
    """How many of these there are."""


class EnvPlan(NamedTuple):
    """The environment of a loop, and who moves in it.

    Its transitions are in the wiring, one before each round and one after the last: behind the nodes and the
    blocks, numbered on, each waits for the players' turns of the round before and releases those of its own.
    """

    environment: Environment
    loop: int
    players: Mapping[int, int]
    """By role, the number of the player that is its first instance."""
    turns: tuple[tuple[int, ...], ...]
    """By round, less one, the nodes of all players, by their numbers."""


@dataclass(frozen=True, slots=True)
class Node:
    """One turn of one role instance."""

    id: NodeId
    role: int
    block: int
    endpoint: int | None
    salt: int
    """What sets its seeds apart."""
    lineage: tuple[int, ...]
    """The instance's number under each parent; the last is its own."""


class InputEdge(NamedTuple):
    """What the nodes of a block see under a name."""

    name: str
    role: int
    nodes: Sequence[int]
    each: int = 1
    """So many in a row are turns of one instance, of which the last that ran is seen."""
    single: int = 0
    """The one instance that it can be, whose fields are read directly; 0 where it may be several."""
    parents: bool = False
    """Whether there is one of the role for each of these: where all of them are skipped, so is it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes that become ready together and see the same."""

    role: int
    round: int
    nodes: Sequence[int]
    sees: tuple[InputEdge, ...]
    ends: tuple[InputEdge, ...] = ()
    """What the end of the loop is read from: of the round before, on the same branch."""
    may_skip: bool = False
    """Whether its nodes may be skipped."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Who waits for whom, in counters: a join is done when so many nodes are, a block waits for joins.

    So 256 nodes that wait for 256 others are 512 counts, not 65,536 edges.
    """

    joins: tuple[int, ...]
    """How many nodes each join counts."""
    feeds: tuple[tuple[int, ...], ...]
    """The joins that each node counts for."""
    releases: tuple[tuple[int, ...], ...]
    """The blocks that wait for each join."""
    waits: tuple[int, ...]
    """How many joins each block waits for."""
    starts: tuple[int, ...]
    """The blocks that wait for nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One workflow, ready to run."""

    name: str
    spec: Spec
    resolved: str
    """The spec in one YAML file: extended and overridden."""
    hash: str
    """Hex digest over the spec, its templates and the vocabulary it uses."""
    imports: tuple[Import, ...]
    """What another process must import before it knows the vocabulary; nothing for what is installed."""
    roles: tuple[RolePlan, ...]
    """In the order of the spec, which is the order of an episode's trajectories."""
    endpoints: tuple[Endpoint, ...]
    policies: Mapping[str, PolicyPlan]
    """Those that training changes, by name."""
    nodes: tuple[Node, ...]
    """In the order of the roles, then of index."""
    never: frozenset[int]
    """Nodes that never run: their condition is false of them, and reads nothing else."""
    blocks: tuple[Block, ...]
    wiring: Wiring
    reads: Mapping[int, tuple[InputEdge, ...]]
    """By node, the turns that its reward reads, under their role's name."""
    loops: tuple[LoopPlan, ...]
    env: EnvPlan | None
    scoring: tuple[int, ...]
    """The roles whose reward reads more than their own turn, each after those it reads."""
    correct: int
    """The role whose correctness is the episode's."""
    metrics: Mapping[str, Metric]
    hidden: frozenset[str]
    """Task fields that no prompt sees."""
    data: Mapping[Split, Dataset]
    permissions: tuple[Permission, ...]
    """What its vocabulary asks for."""
    withheld: tuple[Permission, ...]
    """What of it was not allowed: a plan with any does not run."""

    @property
    def asking(self) -> tuple[RolePlan, ...]:
        """The roles that ask a model."""
        return tuple(role for role in self.roles if role.run is None)

    @property
    def trained(self) -> dict[str, RolePlan]:
        """The roles that training changes, by name."""
        return {role.name: role for role in self.roles if role.trainable}

    @property
    def signals(self) -> dict[str, SignalPlan]:
        """What trained roles learn from in place of a reward, by role."""
        return {name: role.signal for name, role in self.trained.items() if role.signal is not None}

    @property
    def teachers(self) -> list[ModelRef]:
        """The models that signals compare with, each once."""
        return list(dict.fromkeys(signal.teacher for signal in self.signals.values() if signal.teacher))

    @property
    def may_skip(self) -> bool:
        """Whether there are turns that need not run."""
        conditions = any(role.when for role in self.roles) or any(loop.until for loop in self.loops)
        return conditions or self.env is not None

    def transition_at(self, block: int) -> int | None:
        """The place behind the nodes of the transition that stands behind the blocks; None for a block."""
        return None if block < len(self.blocks) else len(self.nodes) + block - len(self.blocks)

    def endpoints_of(self, role: RolePlan) -> list[Endpoint]:
        """Where a role's answers come from, each once."""
        return [self.endpoints[number] for number in dict.fromkeys(role.endpoints)]

    def policies_of(self, role: str) -> set[str]:
        """The policies in training whose weights a role's instances have."""
        (plan,) = (plan for plan in self.roles if plan.name == role)
        return {endpoint.policy for endpoint in self.endpoints_of(plan) if endpoint.policy is not None}

    def policy_of(self, role: str, index: int) -> str:
        """The policy in training whose weights an instance has; `main` for one that has none."""
        (plan,) = (plan for plan in self.roles if plan.name == role)
        return (self.endpoints[plan.endpoints[index - 1]].policy if plan.endpoints else None) or MAIN

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Sequence[Import], bytes]]:
        return _restored, (self.imports, pickle.dumps([getattr(self, field.name) for field in fields(self)]))


def _restored(imports: Sequence[Import], values: bytes) -> Plan:
    for wanted in imports:
        wanted.ensure()
    unpickled: list[Any] = pickle.loads(values)
    return Plan(*unpickled)


_NO_TURNS = Views(())


def own_of(role: RolePlan, node: Node, history: Views = _NO_TURNS, observation: str = "") -> SelfView:
    """A node's instance as its own prompts and conditions see it."""
    _, index, number = node.id
    return SelfView(role.name, index, node.lineage, role.count, number, role.rounds, history, observation)


def graph(plan: Plan) -> nx.DiGraph[NodeId]:
    """The DAG of turns that the wiring stands for."""
    import networkx as nx  # takes longer to import than a spec to compile

    drawn: nx.DiGraph[NodeId] = nx.DiGraph()
    drawn.add_nodes_from(node.id for node in plan.nodes)
    for place, node in enumerate(plan.nodes):
        drawn.add_edges_from((node.id, plan.nodes[after].id) for after in _after(plan, place))
    return drawn


def _after(plan: Plan, place: int) -> Iterator[int]:
    """The nodes that wait for one, or for an environment's answer to it."""
    for join in plan.wiring.feeds[place]:
        for block in plan.wiring.releases[join]:
            transition = plan.transition_at(block)
            yield from plan.blocks[block].nodes if transition is None else _after(plan, transition)
