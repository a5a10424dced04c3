"""The Plan of a workflow: plain, immutable data with everything that running and training need, resolved.

Roles, endpoints, nodes, blocks and joins are known by their positions in the plan's tables. A plan can be
pickled; it carries the modules that must be imported before its vocabulary can be unpickled. Records that are
read in every turn are dataclasses: reading a field of a NamedTuple takes several times as long.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from rolegraph.engine.prompts import PromptError, Template
from rolegraph.engine.records import MAIN, NodeId
from rolegraph.engine.shipped import BASE_NAME, taught_prompts
from rolegraph.engine.spec import Credit, Lora, Loss, ModelRef, Path, Role, Sampling, Spec
from rolegraph.engine.vocabulary import (
    Dataset,
    Environment,
    Estimator,
    Function,
    Import,
    Metric,
    Pairs,
    Parser,
    Reward,
    Signal,
    Split,
    Tool,
    View,
)


class Endpoint(NamedTuple):
    """Model that answers a node's calls: with the latest weights of `policy`, or unchanged if that is
    None."""

    model: ModelRef
    """The model; the one that the policy starts from, where there is a policy."""
    policy: str | None = None
    """Name of a policy in training; None for a model as it is."""
    past: str | None = None
    """Name of a policy of past selves, whose copies answer in training steps in place of `model`."""


class PolicyPlan(NamedTuple):
    """Training settings of one policy."""

    model: ModelRef
    """The model that the policy starts from; its `checkpoint`, if any, names weights of that model."""
    lora: Lora
    learning_rate: float
    """Before the schedule."""


class PastPlan(NamedTuple):
    """Frozen copies of a policy in training."""

    of: str
    """Name of the policy in training."""
    every: int
    """Updates between two copies."""
    keep: int
    """Number of copies that are kept."""
    pick: Literal["uniform", "latest"]
    """Copy that a task plays against: a draw of those kept, or the newest."""


class SignalPlan(NamedTuple):
    """Signal of a role, with the teacher and the template that it names."""

    signal: Signal
    teacher: ModelRef | Literal["base"] | None
    """Model to compare with; `base` is the start of the policy itself."""
    demonstration: Template | None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Tool that a role runs in place of asking a model."""

    name: str
    """Name of the tool."""
    tool: Tool
    value: Template | None
    """Template of the tool's argument; None for a tool that picks from the role's inputs."""
    pairs: Pairs
    """Pairs of instances for `Tool.pairs`."""
    parser: Parser | None = None
    """Parser of the result; None where the result is the action as it is."""
    session: tuple[Tool, ...] = ()
    """Tools of the role whose function the tool calls (`Tool.session`)."""


@dataclass(frozen=True, slots=True)
class GroupingPlan:
    """One way of comparing a role's rewards."""

    by: str = "task"
    """`task`, `turn`, `prompt`, `episode`, or the expression of the group's key."""
    key: Template | None = None
    """The expression; None for a short form."""
    of_turns: bool = False
    """True where turns are compared, not trajectories."""
    credit: Credit = field(default_factory=Credit)
    weight: float = 1.0
    """Factor of the advantages."""


@dataclass(frozen=True, slots=True)
class StateKey:
    """Key of an estimator's state: an expression over the visible fields of a task."""

    expression: Template
    hidden: frozenset[str]
    """Task fields that it does not see."""

    def of(self, task: Mapping[str, Any]) -> str:
        """Return the key of a task; empty where it cannot be computed."""
        visible = {name: value for name, value in task.items() if name not in self.hidden}
        try:
            value = self.expression.value({"task": visible})
        except PromptError:
            return ""
        return value if isinstance(value, str) else json.dumps(value)


class Permission(NamedTuple):
    """Permission that a plan needs from a person."""

    name: str
    """Value for `--allow`."""
    path: Path
    """Key of the spec that needs the permission."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role: its part of the spec, and what its names resolved to."""

    name: str
    spec: Role
    """Settings as they are written, such as `weight` or `timeout`."""
    count: int
    """Number of instances."""
    prompt: Template | None
    """None for a role that runs a tool."""
    run: RunPlan | None
    system: Template | None
    parser: Parser
    reward: Reward | None
    estimator: Estimator | None
    signal: SignalPlan | None
    loss: Loss
    endpoints: tuple[int, ...]
    """Position in `Plan.endpoints` of each instance; empty for a role that runs a tool."""
    samplings: tuple[Sampling, ...]
    """Sampling of each instance; empty for a role that runs a tool."""
    when: Template | None
    """An instance is skipped where this condition is false."""
    loop: int | None
    """Position in `Plan.loops`."""
    rounds: int
    """Turns of one instance at most, in all rounds of all loops around the role."""
    times: int
    """Rounds of the role's own loop at most; 1 outside loops."""
    nodes: range
    """The role's turns in `Plan.nodes`: all instances in the first round, then all in the next."""
    prompt_per_instance: bool
    """True where the prompts read `self` or continue a chat, so that each instance has its own."""
    tools: tuple[Tool, ...]
    """Tools that the model may call in its turn, roles aside."""
    kept_back: frozenset[str]
    """Functions of the tools that the model is not offered, because another role's `run` calls them."""
    formulas: Mapping[str, Template]
    """Expressions that the reward reads the value of, by their text."""
    groupings: tuple[GroupingPlan, ...]
    """Groups in which its rewards are compared; their advantages are added."""
    state_key: StateKey | None
    """Key of the estimator's state; None where the role has one state."""
    frozen: frozenset[int] = frozenset()
    """Indices, from 1, of instances that are never trained, because past selves answer for them."""
    callees: tuple[CalleePlan, ...] = ()
    """Roles that the model may call in its turn."""
    group_keys: tuple[Template, ...] = field(init=False)
    """Expressions of the groupings, computed for each turn."""

    def __post_init__(self) -> None:
        keys = tuple(grouping.key for grouping in self.groupings if grouping.key is not None)
        object.__setattr__(self, "group_keys", keys)  # a frozen dataclass has no other way

    @property
    def prompt_files(self) -> list[str]:
        """Files of the role's system prompt and prompt, as messages show them: `judge.j2 (shipped)`."""
        return [template.file for template in (self.system, self.prompt) if template and template.file]

    @property
    def adds_signal(self) -> bool:
        """True where the signal's advantages are added to those that the estimator computes."""
        return self.signal is not None and self.estimator is not None and self.estimator.compute is not None

    @property
    def compares_turns(self) -> bool:
        """True where an estimator compares rewards, and compares those of turns, not of trajectories."""
        return any(grouping.of_turns for grouping in self.groupings)

    def number_of(self, view: View) -> int:
        """Return the number of a turn among all of its instance, as identities and records count."""
        return (view.outer - 1) * self.times + view.round

    @property
    def why_unrated(self) -> str:
        """Cause of an answer without a reward, for messages."""
        raters = dict.fromkeys((*self.reward.views, *self.reward.roles) if self.reward else ())
        if not raters:
            return "its reward was none"
        return f"{' and '.join(raters)} did not run or gave no rating that can be read"


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """One loop of a spec."""

    name: str
    times: int
    """Rounds at most."""
    until: Template | None
    """A branch of the loop exits after a round in which this condition holds."""
    branches: int
    """Number of branches that exit separately."""
    when: Template | None = None
    """The loop is skipped where this condition is false."""
    outer: int | None = None
    """Position in `Plan.loops` of the loop that this one is in."""


class CalleePlan(NamedTuple):
    """Role that a role's model may call."""

    role: int
    function: Function
    """Name, description and arguments for the model; the scheduler runs the role in place of `call`."""
    parallel: int
    """Most calls of the role in one answer."""


class EnvPlan(NamedTuple):
    """Environment of a loop, and its players.

    The environment's transitions are part of the wiring: one before each round and one after the last. They
    are numbered behind the blocks, and as nodes behind the nodes, after those of the environments before it.
    A transition waits for the players' turns of the round before, and the players' turns of its own round
    wait for it.
    """

    environment: Environment
    loop: int
    """Position in `Plan.loops`."""
    transitions: range
    """Positions of its transitions as nodes."""
    players: Mapping[int, int]
    """By role, the player number of its first instance."""
    player_nodes: tuple[tuple[int, ...], ...]
    """For each round, the nodes of the players in the order of their numbers."""
    turns: Mapping[int, int]
    """By role of the loop, the turns of an instance in a round; more than 1 in a loop in the loop."""


@dataclass(frozen=True, slots=True)
class Node:
    """One turn of one role instance."""

    id: NodeId
    role: int
    block: int
    salt: int
    """Constant of this node in the seeds of its calls."""
    lineage: tuple[int, ...]
    """The instance's number under each parent; the last is its own."""
    round: int = 1
    """Round of the role's loop; `id.round` counts through the rounds of the loop around it."""
    outer: int = 1
    """Round of the loop around the role's loop."""


class InputEdge(NamedTuple):
    """Earlier turns that a block's prompts and tools read under one name, such as `solver`."""

    name: str
    role: int
    nodes: Sequence[int]
    turns_per_instance: int = 1
    """Length of the runs of `nodes` that belong to one instance; the last turn of a run that ran is read."""
    only_instance: int = 0
    """Number of the one instance that is joined, whose fields are read directly; 0 for several."""
    is_parent: bool = False
    """True for an edge that fans out: a node is skipped where all its parents are."""


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes that become ready together and read the same turns."""

    role: int
    round: int
    nodes: Sequence[int]
    inputs: tuple[InputEdge, ...]
    until_inputs: tuple[InputEdge, ...] = ()
    """Turns of the round before that the `until` of a loop reads on this branch."""
    until_loop: int = -1
    """Position in `Plan.loops` of the loop whose `until` is asked before the block; -1 for none."""
    back: int = 1
    """Number of the role's turns from the block that was asked before, of that loop, to this block."""
    may_skip: bool = False
    """True where some of the nodes may be skipped."""
    chat_before: int | None = None
    """Node of the turn before in the conversation that the block's only node continues."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Order of nodes and blocks as counters.

    A join is done when all its nodes are, and a block is ready when all its joins are. 256 nodes that wait
    for 256 others are one join with 512 counts, not 65,536 edges.
    """

    join_sizes: tuple[int, ...]
    """For each join, the number of its nodes."""
    joins_of_node: tuple[tuple[int, ...], ...]
    """For each node, the joins that it belongs to."""
    blocks_of_join: tuple[tuple[int, ...], ...]
    """For each join, the blocks that wait for it."""
    joins_awaited: tuple[int, ...]
    """For each block, the number of joins that it waits for."""
    initial_blocks: tuple[int, ...]
    """Blocks that wait for no join."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One workflow, ready to run."""

    name: str
    spec: Spec
    resolved: str
    """The spec as one YAML text, with everything that it extends and all overrides merged in."""
    hash: str
    """Hex digest of the spec, its templates and the vocabulary it uses."""
    imports: tuple[Import, ...]
    """Modules that another process must import before it unpickles the plan; none for installed packages."""
    roles: tuple[RolePlan, ...]
    """In the order of the spec, which is the order of an episode's trajectories."""
    endpoints: tuple[Endpoint, ...]
    policies: Mapping[str, PolicyPlan]
    """By name, the policies that training changes."""
    past: Mapping[str, PastPlan]
    """By name, the policies of past selves."""
    nodes: tuple[Node, ...]
    """In the order of roles, then rounds, then instances."""
    blocks: tuple[Block, ...]
    wiring: Wiring
    reward_inputs: Mapping[int, tuple[InputEdge, ...]]
    """By node, the turns that its reward reads; each edge is named after its role."""
    callees: Mapping[int, Mapping[str, Sequence[int]]]
    """By node that may call roles, the nodes for its calls of each, in order. Their blocks become ready when
    the caller has ended: the nodes of calls have a result then, and the others are skipped."""
    loops: tuple[LoopPlan, ...]
    envs: tuple[EnvPlan, ...]
    reward_order: tuple[int, ...]
    """Roles whose reward is deferred (`Reward.is_deferred`), each after the roles that its reward reads."""
    correct: tuple[int, ...]
    """Roles whose correctness is the episode's, as far as they ran."""
    judged: frozenset[str]
    """Roles that can be right: their reward tells right from wrong, or passes on whether another is."""
    metrics: Mapping[str, Metric]
    hidden: frozenset[str]
    """Task fields that prompts do not see."""
    data: Mapping[Split, Dataset]
    permissions: tuple[Permission, ...]
    """Permissions that the vocabulary asks for."""
    withheld: tuple[Permission, ...]
    """Permissions that were not given; a plan with any does not run."""
    interpreter: str = ""
    """Interpreter of the spec's programs, such as `monty`; empty where it has none."""

    @property
    def asking(self) -> tuple[RolePlan, ...]:
        """Roles with a prompt, whose turns call a model; the other roles run a tool."""
        return tuple(role for role in self.roles if role.run is None)

    @property
    def trained(self) -> dict[str, RolePlan]:
        """Roles that training changes, by name."""
        return {role.name: role for role in self.roles if role.spec.is_trained}

    @property
    def signals(self) -> dict[str, SignalPlan]:
        """Signals of trained roles, by role."""
        return {name: role.signal for name, role in self.trained.items() if role.signal is not None}

    @property
    def teachers(self) -> list[ModelRef]:
        """Models that signals compare with, each once."""
        found = (
            self.teacher_of(role.name, index)
            for role in self.trained.values()
            for index in range(1, role.count + 1)
            if role.signal is not None and index not in role.frozen
        )
        return list(dict.fromkeys(filter(None, found)))

    @property
    def taught_by_start(self) -> list[str]:
        """Policies in training whose own start is a teacher."""
        roles = [name for name, signal in self.signals.items() if signal.teacher == "base"]
        return list(dict.fromkeys(policy for name in roles for policy in sorted(self.policies_of(name))))

    def teacher_of(self, role: str, index: int) -> ModelRef | None:
        """Return the teacher of instance `index`, from 1, of a trained role; None without one."""
        teacher = self.signals[role].teacher
        return self.policies[self.policy_of(role, index)].model if teacher == "base" else teacher

    @property
    def untaught(self) -> str:
        """Warning of prompts that a shipped model was not taught; empty where there are none."""
        roles: dict[str, list[str]] = {}
        for role in self.asking:
            model = self.endpoints[role.endpoints[0]].model
            prompts = {template.source for template in (role.system, role.prompt) if template}
            if model.is_shipped and not prompts <= taught_prompts():
                roles.setdefault(model.name or BASE_NAME, []).append(role.name)
        return "; ".join(
            f"{model} was taught the shipped prompts alone, and the prompt of {', '.join(names)} is another; "
            "--model chooses a model"
            for model, names in roles.items()
        )

    @property
    def may_skip(self) -> bool:
        """True where an episode may leave out some of the turns."""
        conditions = any(role.when for role in self.roles) or bool(self.envs or self.callees)
        return conditions or any(loop.until or loop.when for loop in self.loops)

    @property
    def deciding(self) -> str:
        """Names of the roles whose correctness is the episode's, for messages."""
        return " and ".join(self.roles[role].name for role in self.correct)

    @property
    def can_be_correct(self) -> bool:
        """True where one of the roles that decide can be right."""
        return any(self.roles[role].name in self.judged for role in self.correct)

    def env_at(self, block: int) -> tuple[int, int] | None:
        """Return the position in `envs` and as a node of the transition with number `block`; None for a
        block of turns."""
        if block < len(self.blocks):
            return None
        node = len(self.nodes) + block - len(self.blocks)
        return next((place, node) for place, env in enumerate(self.envs) if node in env.transitions)

    def endpoints_of(self, role: RolePlan) -> list[Endpoint]:
        """Return the endpoints of a role's instances, each once."""
        return [self.endpoints[number] for number in dict.fromkeys(role.endpoints)]

    def policies_of(self, role: str) -> set[str]:
        """Return the policies in training whose weights a role's instances have."""
        (plan,) = (plan for plan in self.roles if plan.name == role)
        return {endpoint.policy for endpoint in self.endpoints_of(plan) if endpoint.policy is not None}

    def policy_of(self, role: str, index: int) -> str:
        """Return the policy in training of instance `index`, from 1; `main` for a model as it is."""
        (plan,) = (plan for plan in self.roles if plan.name == role)
        return (self.endpoints[plan.endpoints[index - 1]].policy if plan.endpoints else None) or MAIN

    def untrained_weights(self, role: RolePlan) -> str:
        """Describe the weights of a role's instances that are not trained; empty where all are."""

        def text(endpoint: Endpoint) -> str:
            if endpoint.past is not None:
                return f"past selves of {self.past[endpoint.past].of}"
            return f"the latest of {endpoint.policy}" if endpoint.policy else f"{endpoint.model} as it is"

        found = [
            text(self.endpoints[number])
            for index, number in enumerate(role.endpoints, 1)
            if index in role.frozen or not role.spec.is_trained
        ]
        return " and ".join(dict.fromkeys(found))

    def is_past(self, role: str, index: int) -> bool:
        """Return True if past selves answer for instance `index`, from 1, of a role."""
        return any(plan.name == role and index in plan.frozen for plan in self.roles)

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Sequence[Import], bytes]]:
        return _restored, (self.imports, pickle.dumps([getattr(self, its.name) for its in fields(self)]))


def _restored(imports: Sequence[Import], values: bytes) -> Plan:
    for wanted in imports:
        wanted.ensure()
    unpickled: list[Any] = pickle.loads(values)
    return Plan(*unpickled)
