"""The resolved roles of a Plan, with their policies, groupings, tools, loops and environments.

Records that are read in every turn are dataclasses: reading a field of a NamedTuple takes several times as
long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rolegraph.engine import vocabulary
from rolegraph.engine.prompts import Expression, PromptError, Template
from rolegraph.engine.records import Extent
from rolegraph.engine.records.episode import REMARKS
from rolegraph.engine.spec import Credit, Lora, ModelRef, Path, Role, Sampling


class Endpoint(NamedTuple):
    """Model that answers a turn's calls, with the weights of a policy or with its own."""

    model: ModelRef
    """The model; with a policy, the model that the policy starts from."""
    policy: str | None = None
    """Name of a policy in training; None for an untrained model."""
    past: str | None = None
    """Name of a policy of past selves: frozen copies that answer in training steps in place of `model`."""

    def same_tokens(self, other: Endpoint) -> bool:
        """Return True if token ids mean the same at both endpoints: both have one base model."""
        one, two = self.model, other.model
        is_same = (one.provider, one.name, one.base_url) == (two.provider, two.name, two.base_url)
        return is_same and (one.names_model or one.checkpoint == two.checkpoint)


class PolicyPlan(NamedTuple):
    """Training settings of one policy."""

    model: ModelRef
    """The model that the policy starts from; its `checkpoint`, if any, names weights of that model."""
    lora: Lora
    learning_rate: float | None
    """Peak learning rate; None computes it from the size of the model (`engine/models/rates.py`)."""


class PastPlan(NamedTuple):
    """Frozen copies of a policy in training."""

    of: str
    """Name of the policy in training that is copied."""
    every: int
    """Number of updates between two frozen copies."""
    keep: int
    """Number of copies that are kept."""
    pick: Literal["uniform", "latest"]
    """Copy that a task plays against: a random one of the kept copies, or the newest."""


class TeacherPlan(NamedTuple):
    """Teacher of a role: its weights, and the prompt in place of the role's."""

    model: ModelRef | None
    """Model that teaches with its weights unchanged; None for a policy in training."""
    policy: str = ""
    """Name of the policy in training that teaches; empty for the role's own policy."""
    is_start: bool = False
    """True if the policy's starting weights teach, False if its weights of the current step do."""
    prompt: Template | None = None
    """Template of the user message; None keeps the role's."""
    system: Template | None = None
    """Template of the system message; None keeps the role's."""
    sees: frozenset[str] = frozenset()
    """Hidden task fields that these templates may read."""

    @property
    def mentions(self) -> set[str]:
        """Names that the templates read."""
        return {name for template in (self.prompt, self.system) if template for name in template.mentions}


class SignalPlan(NamedTuple):
    """Signal of a role, with the teachers and the templates that it names."""

    signal: vocabulary.Signal
    teachers: Mapping[str, TeacherPlan]
    """Teachers by the value of `by` that picks them; a single teacher without `by` has an empty key."""
    by: StateKey | None
    """Expression that picks a teacher."""
    otherwise: TeacherPlan | None
    """Teacher for any other value of `by`; None gives such a turn no signal."""
    demonstration: Template | None
    gate: Expression | None
    """Expression whose value is the factor of a turn's advantages; None for 1."""

    @property
    def keyed_teachers(self) -> list[tuple[str, TeacherPlan]]:
        """Teachers that the signal may ask, each after its key and a space: the value that picks it, `other`,
        or an empty text."""
        labelled_teachers = [(f"{key} " if key else "", teacher) for key, teacher in self.teachers.items()]
        return [*labelled_teachers, *([("other ", self.otherwise)] if self.otherwise else [])]

    @property
    def all_teachers(self) -> list[TeacherPlan]:
        """Teachers that the signal may ask."""
        return [teacher for _, teacher in self.keyed_teachers]

    @property
    def mentions(self) -> set[str]:
        """Names that the gate and the templates of the teachers read."""
        gate: set[str] = {*self.gate.mentions} if self.gate else set()
        return gate.union(*(teacher.mentions for teacher in self.all_teachers))

    def teacher_for(self, task: Mapping[str, Any]) -> tuple[str, TeacherPlan | None]:
        """Return (key, teacher) for a task; the teacher is None where the spec masks the task's signal."""
        key = "" if self.by is None else self.by.of(task)
        return (key, self.teachers[key]) if key in self.teachers else ("else", self.otherwise)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Tool that a role runs in place of asking a model."""

    name: str
    """Name of the tool."""
    tool: vocabulary.Tool
    value: Template | None
    """Template of the tool's argument; None for a tool that picks from the role's inputs."""
    pairs: vocabulary.Pairs
    """Pairs of instances whose actions the tool compares (`Tool.pairs`)."""
    parser: vocabulary.Parser | None = None
    """Parser of the result; None if the result itself is the action."""
    session: tuple[vocabulary.Tool, ...] = ()
    """Tools of the role whose function the tool calls (`Tool.session`)."""


@dataclass(frozen=True, slots=True)
class GroupingPlan:
    """One way of comparing a role's rewards."""

    by: str = "task"
    """`task`, `turn`, `prompt`, `episode`, or the expression of the group's key."""
    key: Expression | None = None
    """Compiled expression of `by`; None for a word such as `task`."""
    of_turns: bool = False
    """True where turns are compared, not trajectories."""
    credit: Credit = field(default_factory=Credit)
    weight: float = 1.0
    """Factor of this grouping's advantages."""
    over: Extent = Extent.TASK


@dataclass(frozen=True, slots=True)
class StateKey:
    """Expression over a task's visible fields, whose value selects one of an estimator's running states."""

    expression: Expression
    hidden: frozenset[str]
    """Task fields that the expression does not see."""

    def of(self, task: Mapping[str, Any]) -> str:
        """Return the key of a task; empty if it cannot be computed."""
        visible_fields = {name: value for name, value in task.items() if name not in self.hidden}
        try:
            value = self.expression.value({"task": visible_fields})
            return value if isinstance(value, str) else self.expression.text({"task": visible_fields})
        except PromptError:
            return ""


class ResolvedLikelihood(NamedTuple):
    """Text whose log-probabilities a reward reads: the compiled template, and the model that scores."""

    text: Template | None
    """Template of the text; None for a template with a finding."""
    model: ModelRef | Literal["policy", "base"]
    """Model that scores: `policy` for the model that answers, `base` for the model from which training
    starts, or another model."""


class LikelihoodPlan(NamedTuple):
    """Text whose log-probabilities a reward reads, and the models that score it."""

    text: Template
    endpoints: tuple[int, ...]
    """Position in `Plan.endpoints` of each instance's scorer."""


class Permission(NamedTuple):
    """Permission that a plan needs from a person."""

    name: str
    """Name of the permission, as `--allow` takes it."""
    path: Path
    """Key of the spec that needs the permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRole:
    """Role with its compiled templates and vocabulary items; None for a missing or faulty key of the spec."""

    name: str
    spec: Role
    """The role as the spec writes it, with settings such as `weight` or `timeout`."""
    prompt: Template | None
    """Template of the user message; None for a role that runs a tool."""
    run: RunPlan | None
    system: Template | None
    examples: Template | None
    """Template of the answer to an example of the task; None for a role without examples."""
    parser: vocabulary.Parser | None
    reward: vocabulary.Reward | None
    estimator: vocabulary.Estimator | None
    signal: SignalPlan | None
    loss: vocabulary.Loss | None
    """Loss of the role: its own, or the default of its signal or estimator."""
    tools: tuple[vocabulary.Tool | None, ...]
    """Tools that the model may call in its turn."""
    when: Expression | None
    """An instance is skipped where this condition is false."""
    reset: Expression | None
    """A turn begins the conversation anew where this condition is true."""
    formulas: Mapping[str, Expression | None]
    """Compiled expressions whose values the reward reads, by source text."""
    likelihoods: Mapping[vocabulary.Likelihood, Any]
    """Texts whose log-probabilities the reward reads: ResolvedLikelihood, in a plan LikelihoodPlan."""
    groupings: tuple[GroupingPlan, ...]
    """Ways of comparing the role's rewards; the advantages of all groupings are added."""
    state_key: StateKey | None
    """Key of the estimator's state; None where the role has one state."""

    @property
    def templates(self) -> list[Template]:
        """Templates of the prompt, the system prompt and the examples' answers, or of the tool's argument."""
        return [t for t in (self.prompt, self.run and self.run.value, self.system, self.examples) if t]

    @property
    def expressions(self) -> list[Template | Expression]:
        """Conditions of the role, and expressions and texts of its reward."""
        texts = (likelihood.text for likelihood in self.likelihoods.values())
        return [e for e in (self.when, self.reset, *self.formulas.values(), *texts) if e]

    @property
    def compares_rewards(self) -> bool:
        """True where an estimator computes advantages from the role's rewards."""
        return self.estimator is not None

    @property
    def compares_terms(self) -> bool:
        """True where the estimator compares each term of the rewards by itself."""
        is_normalized = self.reward is not None and bool(self.reward.normalized)
        return is_normalized and self.estimator is not None and self.estimator.compares_group

    @property
    def min_group(self) -> int:
        """Smallest group size that the role's estimator can learn from; 1 without an estimator."""
        return self.estimator.min_group if self.estimator else 1

    @property
    def mentions(self) -> set[str]:
        """Names that the role's templates read."""
        return {name for template in self.templates for name in template.mentions}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan(ResolvedRole):
    """One role of a plan, without faults, and its place in the graph."""

    parser: vocabulary.Parser
    tools: tuple[vocabulary.Tool, ...]
    """Tools that the model may call in its turn, without the roles that it may call."""
    formulas: Mapping[str, Expression]
    likelihoods: Mapping[vocabulary.Likelihood, LikelihoodPlan]
    count: int
    """Number of instances."""
    loss: vocabulary.Loss
    endpoints: tuple[int, ...]
    """Position in `Plan.endpoints` of each instance; empty for a role that runs a tool."""
    samplings: tuple[Sampling, ...]
    """Sampling of each instance; empty for a role that runs a tool."""
    loop: int | None
    """Position in `Plan.loops` of the innermost loop around the role; None outside loops."""
    rounds: int
    """Largest number of turns of one instance, in all rounds of all loops around the role."""
    times: int
    """Largest number of rounds of the role's own loop; 1 outside loops."""
    nodes: range
    """The role's turns in `Plan.nodes`: all instances in the first round, then all in the next."""
    prompt_per_instance: bool
    """True where the prompts read `self` or continue a chat, so that each instance has another prompt."""
    kept_back: frozenset[str]
    """Functions of the tools that the model is not offered, because another role's `run` calls them."""
    frozen: frozenset[int] = frozenset()
    """Indices, from 1, of instances that are never trained, because frozen copies answer for them."""
    callees: tuple[CalleePlan, ...] = ()
    """Roles that the model may call in its turn."""
    trunk: frozenset[int] = frozenset()
    """Positions of the other roles whose conversation this role continues (`memory.fork`)."""
    group_keys: tuple[Expression, ...] = field(init=False)
    """Expressions of the groupings, computed for each turn."""
    has_functions: bool = field(init=False)
    """True where the model may call tools or roles in its turn."""
    agent: vocabulary.Agent | None = field(init=False)
    """Program that asks the model in place of the engine; None for a model that the engine asks."""

    def __post_init__(self) -> None:
        keys = tuple(grouping.key for grouping in self.groupings if grouping.key is not None)
        has_functions = bool(self.tools or self.callees)
        agent = next((tool.agent for tool in self.tools if tool.agent), None)
        for name, value in {"group_keys": keys, "has_functions": has_functions, "agent": agent}.items():
            object.__setattr__(self, name, value)  # a frozen dataclass has no other way

    @property
    def prompt_files(self) -> list[str]:
        """Files of the role's system prompt and prompt, as messages show them: `judge.j2 (shipped)`."""
        templates = (self.system, self.prompt, self.examples)
        return [template.file for template in templates if template and template.file]

    @property
    def allowed_answers(self) -> tuple[str, ...]:
        """All answers that the parser allows, as texts; empty if it allows any answer."""
        shape = self.parser.gives
        return tuple(map(str, (True, False) if shape.get("type") == "boolean" else shape.get("enum", ())))

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens of an answer; 0 for a role without a model."""
        return max((sampling.max_tokens for sampling in self.samplings), default=0)

    @property
    def adds_signal(self) -> bool:
        """True where the signal's advantages are added to the estimator's advantages."""
        return self.signal is not None and self.compares_rewards

    @property
    def compares_turns(self) -> bool:
        """True if an estimator compares the rewards of single turns, not of whole trajectories."""
        return any(grouping.of_turns for grouping in self.groupings)

    def round_at(self, number: int) -> tuple[int, int]:
        """Return (round, round of the outer loop) of turn `number`, from 1, of an instance."""
        outer, rounds_before = divmod(number - 1, self.times)
        return rounds_before + 1, outer + 1

    @property
    def is_nested(self) -> bool:
        """True where the role's loop is in another loop of several rounds."""
        return self.rounds > self.times

    def number_of(self, view: vocabulary.View) -> int:
        """Return the number of a view's turn, from 1, among its instance's turns in all loops."""
        return (view.outer - 1) * self.times + view.round

    def explain(self, remark: str) -> str:
        """Return the explanation of a remark (`REMARKS`) on the role's answers, for messages."""
        if remark != "unrated":
            return REMARKS[remark]
        rating_roles = dict.fromkeys((*self.reward.views, *self.reward.roles) if self.reward else ())
        if not rating_roles:
            return "its reward was none"
        return f"{' and '.join(rating_roles)} did not run or gave no rating that can be read"

    @property
    def reads_environment(self) -> bool:
        """True where the role earns the environment's rewards, which a trajectory sums."""
        return self.reward is not None and self.reward.reads_environment


class EpisodeExpression(NamedTuple):
    """Expression over the last turns of the roles: an entry of `episode.correct`, or a metric."""

    expression: Expression
    roles: tuple[str, ...]
    """Roles that the expression reads."""
    verdicts: tuple[str, ...]
    """Roles whose verdict, right or wrong, the expression reads."""


class MetricPlan(NamedTuple):
    """Metric of an episode, compiled."""

    measure: Expression | vocabulary.Metric
    """Expression over the last turns of the roles, or a function that measures the episode."""
    roles: tuple[str, ...]
    """Roles that the metric reads."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """A loop of the compiled spec: its rounds, its conditions `until` and `when`, and the loop around it."""

    name: str
    times: int
    """Largest number of rounds."""
    until: Expression | None
    """A branch of the loop exits after a round in which this condition holds."""
    branches: int
    """Number of branches that exit separately."""
    when: Expression | None = None
    """The loop is skipped where this condition is false."""
    outer: int | None = None
    """Position in `Plan.loops` of the loop that this one is in."""


class CalleePlan(NamedTuple):
    """Role that a role's model may call."""

    role: int
    function: vocabulary.Function
    """Name, description and arguments for the model; the scheduler runs the role in place of `call`."""
    parallel: int
    """Largest number of calls of the role in one answer."""


class EnvPlan(NamedTuple):
    """Environment of a loop, and its players.

    The environment's transitions are part of the wiring: one before each round and one after the last. They
    are numbered after the blocks, and also as nodes after the turns; environments follow each other. A
    transition waits for the players' turns of the previous round, and the players' turns of its own round
    wait for the transition.
    """

    environment: vocabulary.Environment
    loop: int
    """Position in `Plan.loops` of the environment's loop."""
    transitions: range
    """Numbers of the environment's transitions in the node table."""
    players: Mapping[int, int]
    """Player number of the first instance of each role."""
    player_nodes: tuple[tuple[int, ...], ...]
    """For each round, the nodes of the players in the order of their numbers."""
    turns: Mapping[int, int]
    """Number of turns of an instance in a round, by position of the role; more than 1 for a role of an inner
    loop."""
