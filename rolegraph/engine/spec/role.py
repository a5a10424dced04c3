"""A role of a spec: its edges, prompt, parser, tools, reward, and its part in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, Union, cast, get_args

from pydantic import BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator
from pydantic_core import PydanticKnownError

from rolegraph.engine import vocabulary
from rolegraph.engine.limits.specs import SPEC_CALLS, SPEC_COUNT, SPEC_INSTANCES
from rolegraph.engine.records import MAIN, Extent, check_plain
from rolegraph.engine.spec.base import ATOMIC, Identifier, SpecModel, Strings
from rolegraph.engine.spec.body import JsonObject
from rolegraph.engine.spec.sources import ModelRef, Sampling
from rolegraph.engine.vocabulary import SCHEDULED, CallField, ItemCall, RewardField
from rolegraph.engine.vocabulary.schemas import (
    UNBOUNDED_KEYWORDS,
    UNCHECKED_KEYWORDS,
    check_schema,
    keywords_in,
)


class OnFailure(SpecModel):
    """Handling of a failed role instance."""

    retry: Annotated[int, Field(ge=0, le=SPEC_CALLS.most)] = 0
    """Number of further attempts of a failed instance."""
    then: Literal["zero", "mask", "fail", "reward"] = "zero"
    """`zero`: the turn earns `reward`. `mask`: the turn stays out of the gradient. `fail`: the episode ends.
    `reward`: the role's reward is computed all the same."""
    reward: FiniteFloat | None = None
    """Reward of a failed turn. None is 0, or with the reward `env` the reward that the environment gives."""


Join = Literal["all", "each", "branch"]
JoinedRound = Literal["this", "previous", "history"]


class Edge(SpecModel):
    """Instances and round of another role whose answers a role waits for."""

    SHORT = Join | JoinedRound
    of: str | None = None
    """Name of the other role, where prompts call it by another name: the key of this edge."""
    join: Join = "all"
    """`all`: every instance of the other role. `each`: one instance of this role for each of the other.
    `branch`: the instances on the same branch."""
    chunks: Annotated[int, Field(ge=1)] | None = None
    """In place of `join`: number of the other role's instances for each instance of this role. It divides the
    number of the other role's instances."""
    round: JoinedRound = "this"
    """In a loop: `this` round, the `previous` one, or the `history` of all earlier ones."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Expand a bare join or round, such as `each` or `previous`; chunks fan out as `each` does."""
        if isinstance(value, str):
            return {"round" if value in get_args(JoinedRound) else "join": value}
        if not isinstance(value, dict) or "chunks" not in value:
            return cast("object", value)
        written_fields = cast("dict[str, object]", value)
        if "join" in written_fields:
            raise ValueError(f"`join` or `chunks`, such as {{chunks: {written_fields['chunks']}}}")
        return {"join": "each", **written_fields}

    @property
    def fans_out(self) -> bool:
        """True if this role has an instance for each instance, or each chunk, of the other role."""
        return self.join == "each"

    @property
    def chunk_size(self) -> int:
        """Number of the other role's instances that each instance of this role reads, if the edge fans
        out."""
        return self.chunks or 1


def _as_edges(value: object) -> object:
    """Return `needs` as a mapping; a role's name or a list of names is converted, a mapping returned
    unchanged."""
    if isinstance(value, str):
        return {value: Edge()}
    if not isinstance(value, list):
        return value
    names = cast("list[object]", value)
    for name in names:
        if not isinstance(name, str):
            keys = [*cast("dict[object, object]", name)] if isinstance(name, dict) else []
            mapping = f"; an edge with options is a mapping: needs: {{{keys[0]}: …}}" if keys else ""
            raise ValueError(f"a list of role names{mapping or f', not {name!r}'}")
    if len({*names}) < len(names):
        raise ValueError("a list that names each role once")
    return {name: Edge() for name in cast("list[str]", names)}


TOOL_ROLE_KEYS = tuple("run callable parser count needs when sees reward right on_failure timeout".split())
"""Keys of a role that runs a tool."""


def _require_prompt_or_tool(schema: dict[str, Any]) -> None:
    """Add to a role's JSON Schema, in place, the rule that it needs `prompt`, or `run` with only the keys of
    a tool role."""
    other_keys = {key: {"type": "null"} for key in schema["properties"] if key not in TOOL_ROLE_KEYS}
    schema["if"] = {"required": ["run"], "properties": {"run": {"not": {"type": "null"}}}}
    schema["then"] = {"properties": other_keys}
    schema["else"] = {"required": ["prompt"]}


def _as_items(value: object) -> object:
    """Return a list with the value as its only item; a list is returned unchanged."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _as_text(value: object) -> object:
    """Return a whole number, such as the 0 of `{by: 0}`, as text; other values are returned unchanged."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit of each turn of a trajectory."""

    kind: Literal["trajectory", "turn", "margin", "return"] = "trajectory"
    """`trajectory`: the reward of the trajectory. `turn`: the reward of the turn. `margin`: the reward of the
    turn minus the mean of those before it. `return`: its reward and the discounted later ones."""
    discount: float = 0.0
    """With `return`: factor, from 0 to 1, of a turn's reward in the return of the turn before it."""


CreditWord = Literal["trajectory", "turn", "margin"]
"""Credit that a spec gives as a word; a discounted return is `{return: 0.95}`."""


_CREDITS = "'trajectory', 'turn', 'margin' or '{return: 0.95}'"


def _as_credit(value: object) -> object:
    """Return the credit that a spec says, such as `turn` or `{return: 0.95}`."""
    match value:
        case "trajectory" | "turn" | "margin":
            return Credit(cast("CreditWord", value))
        case {"return": int() | float() as discount} if len(cast("dict[str, Any]", value)) == 1:
            if 0 <= discount <= 1:
                return Credit("return", float(discount))
        case Credit():
            return value
        case _:
            pass
    if isinstance(value, dict):
        raise ValueError("a discount from 0 to 1: {return: 0.95}")
    raise PydanticKnownError("literal_error", {"expected": _CREDITS})


Discount = Annotated[float, Field(ge=0.0, le=1.0)]
CreditField = Annotated[
    Credit,
    BeforeValidator(_as_credit, json_schema_input_type=CreditWord | Mapping[Literal["return"], Discount]),
    ATOMIC,
]


GroupBy = Literal["task", "turn", "prompt", "episode"]


class Grouping(SpecModel):
    """One way of comparing a role's rewards: the members of each group, their credit and their weight."""

    SHORT = GroupBy
    by: Annotated[str, BeforeValidator(_as_text, json_schema_input_type=GroupBy | str | int)]
    """`task`, `turn`, `prompt`, `episode`, or an expression over `task` and `self`: members of one task with
    the same value are compared."""
    over: Annotated[Extent, Field(strict=False)] = Extent.TASK
    """`batch` compares the members of all tasks of a step: `{by: task.hops, over: batch}`."""
    weight: Annotated[float, Field(ge=0.0, le=SPEC_COUNT.most), SCHEDULED] = 1.0
    """Factor of the advantages, in a list of groupings."""
    credit: CreditField | None = None
    """Credit of each turn in this grouping; None is the role's `credit`."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Expand `task`, `turn`, `prompt` and `episode` to `{by: …}`."""
        return {"by": value} if isinstance(value, str) and value in get_args(GroupBy) else value

    @model_validator(mode="after")
    def _batch_has_tasks(self) -> Grouping:
        if self.over is not Extent.TASK and self.by == "task":
            raise ValueError(
                "an expression in `by` beside `over: batch`, such as 0 for the whole batch, not task"
            )
        return self

    @property
    def is_expression(self) -> bool:
        """True if `by` is an expression, False for a short form."""
        return self.by not in get_args(GroupBy)


ToolField = Annotated[CallField, vocabulary.tools]
CALL_OF_A_ROLE = "role"
"""Name of the item of `tools` that makes a role callable by the model: `{role: searcher}`."""
ArgumentType = Literal["string", "integer", "number", "boolean", "array", "object"]


def _as_schema(value: object) -> object:
    """Return the JSON Schema of an argument; the word for a type is converted, a schema returned
    unchanged."""
    if isinstance(value, str) and value in get_args(ArgumentType):
        return JsonObject(type=value)
    if not isinstance(value, dict):
        words = ", ".join(map(repr, get_args(ArgumentType)))
        raise PydanticKnownError("literal_error", {"expected": f"{words} or 'a JSON Schema'"})
    schema = JsonObject(cast("dict[str, Any]", value))
    try:
        check_plain(schema.copy())
        check_schema(schema)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a JSON Schema ({error})") from error
    for keyword, keyword_value in keywords_in(schema, UNCHECKED_KEYWORDS):
        if keyword in UNBOUNDED_KEYWORDS or isinstance(
            keyword_value, str
        ):  # a property may be called `pattern`
            raise ValueError(f"a JSON Schema without `{keyword}`, which no call is checked against")
    return schema


ArgumentSchema = Annotated[
    dict[str, Any], BeforeValidator(_as_schema, json_schema_input_type=ArgumentType | dict[str, Any])
]


class CallSignature(SpecModel):
    """Description and arguments by which models of other roles call a role."""

    describe: str
    """Description of the role for the model that may call it."""
    arguments: Mapping[Identifier, ArgumentSchema] = {}
    """Arguments of a call, each with its type or a JSON Schema such as `{type: string, enum: [web]}`; all are
    required. The role's prompt reads them as `self.arguments`."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of the arguments."""
        names = [*self.arguments]
        properties = {"properties": self.arguments, "required": names, "additionalProperties": False}
        return {"type": "object", **properties}


class Memory(SpecModel):
    """Conversation that a role keeps for an episode."""

    SHORT = Literal["chat"]
    chat: Identifier | None = None
    """Name of a conversation that all roles with this name keep together, instance by instance. None,
    or `memory: chat`, is a conversation of the role's own."""
    fork: Identifier | None = None
    """Role whose conversation, at its current end, these turns continue; their messages are not added to that
    role's conversation."""
    reset: str | None = None
    """Condition under which a turn begins the conversation anew, with `system` and its prompt."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Expand `chat` to a conversation of the role's own."""
        return {"chat": None} if value == "chat" else value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("chat, or a mapping with `chat`, `fork` or `reset`")
        return self

    def __str__(self) -> str:
        fork_text = f"fork of {self.fork}" if self.fork else ""
        shared = self.chat or ("" if fork_text else "chat")
        return ", ".join(filter(None, (shared, fork_text, f"reset when {self.reset}" if self.reset else "")))


class Role(SpecModel):
    """A participant of the workflow: its prompt, parser, reward and training settings."""

    model_config = ConfigDict(json_schema_extra=_require_prompt_or_tool)

    count: Annotated[int, Field(ge=1, le=SPEC_INSTANCES.most)] = 1
    """Number of parallel instances. With a join of `each` or `chunks`, this is the number for each parent."""
    needs: Annotated[
        Mapping[str, Edge],
        BeforeValidator(_as_edges, json_schema_input_type=str | list[str] | Mapping[str, Edge]),
        ATOMIC,
    ] = {}
    """Roles whose answers this role reads and waits for."""
    when: str | None = None
    """Condition on which an instance runs. Where the condition is false, the instance is skipped."""
    sees: Strings = []
    """Hidden task fields that this role may read. They are open to its own prompts, tool values and `when`.
    """
    prompt: str | None = None
    """Template of the user message, or its file, such as `judge.j2`."""
    run: ToolField | None = None
    """Tool that runs in place of a model. The tool's result is the role's action."""
    callable: CallSignature | None = None
    """Function for models of other roles: `{describe: …, arguments: {q: string}}`. They call it by
    `tools: [{role: …}]`. The role runs once for each call, and its action is the result."""
    system: str | None = None
    """Template of the system message. It is a file or a text, as `prompt` is."""
    examples: str | None = None
    """Template of the answers to `data.examples`. It is a file or a text, as `prompt` is, and reads the
    example as `task`. Each example is a turn of the chat before the prompt: this role's prompt for the
    example, and the answer."""
    memory: Annotated[Memory, ATOMIC] | None = None
    """`chat`: in a loop, each instance keeps one conversation. Every turn of the episode adds to it.
    `{chat: NAME}`: the roles that give one name keep one conversation. `{fork: ROLE}`: the turns continue
    the conversation of that role."""
    parser: Annotated[CallField, vocabulary.parsers] = ItemCall("text")
    """Parser that turns the answer into the action. Beside `run`, it parses the tool's result."""
    tools: Annotated[
        list[ToolField],
        BeforeValidator(_as_items, json_schema_input_type=Union[ToolField, list[ToolField]]),  # noqa: UP007
        ATOMIC,
    ] = []
    """Tools that the model may call; needs `max_calls` over 1. A role is a tool as
    `{role: searcher, parallel: 2}`."""
    max_calls: Annotated[int, Field(ge=1, le=SPEC_CALLS.most)] = 1
    """Largest number of model calls in a turn. More than 1 needs `tools`; the last answer is parsed as it is.
    """
    reward: Annotated[RewardField, vocabulary.rewards] | None = None
    """Reward of the role's action. It is an item, or an expression such as `judge.reward`; an estimator needs
    it."""
    right: str | None = None
    """Expression that says whether the answer is right, where the reward does not."""
    credit: CreditField = Credit()
    """Credit of each turn: `trajectory`, `turn`, `margin` or `{return: 0.95}`. `trajectory` is the reward of
    the trajectory, `turn` the reward of the turn, `margin` that reward minus the mean of earlier turns'
    rewards, and `{return: 0.95}` that reward plus the discounted rewards of later turns."""
    group: Annotated[
        list[Grouping],
        BeforeValidator(_as_items, json_schema_input_type=Union[Grouping, list[Grouping]]),  # noqa: UP007
        Field(min_length=1),
        ATOMIC,
    ] = [Grouping(by="task")]
    """Group in which rewards are compared: `task`, `turn`, `prompt`, `episode` or `{by: EXPRESSION}`. The
    members of a group share the task and the turn, the prompt or the value of the expression, such as
    `self.observation`. `episode` compares all roles of a policy. The advantages of several groups are added.
    """
    estimator: Annotated[CallField, vocabulary.estimators] | None = None
    """Estimator of advantages from rewards. A role with an estimator or a signal is trained; a role
    with neither asks the spec's unchanged model."""
    signal: Annotated[CallField, vocabulary.signals] | None = None
    """Source of token-level advantages, such as `reverse_kl` or `imitation`. They are added to the
    estimator's, or stand alone without an estimator. A demonstration replaces the role's own answer."""
    loss: Annotated[CallField, vocabulary.losses] | None = None
    """Training loss, by default the estimator's. That is `ppo` for grpo, `cross_entropy` for imitation, else
    `importance_sampling`. Others are `cispo`, `dpo` and `{ppo: {clip_high_threshold: 1.3}}`."""
    model: ModelRef | None = None
    """Model of an untrained role. None uses the spec's model. Without `provider` and `name`, it is the spec's
    model with these keys, such as `{body: {chat_template_kwargs: {enable_thinking: false}}}`."""
    policy: Annotated[Strings, Field(min_length=1)] | None = None
    """Name in `policies` of the role's weights. A list has a name for each instance. None is `main`; for an
    untrained role, None is its unchanged model."""
    weight: Annotated[float, Field(ge=0.0, le=SPEC_COUNT.most), SCHEDULED] = 1.0
    """Factor of the role's loss. A policy is not updated in a step in which all its roles have weight 0."""
    sampling: Sampling | None = None
    """Sampling settings of the role. A key that is left out has the policy's value, else the spec's."""
    on_failure: OnFailure = OnFailure()
    """Handling of a failed instance: `{retry: 2, then: zero, reward: -0.1}`, or `then: mask` or `fail`."""
    timeout: Annotated[float, Field(gt=0.0, le=SPEC_COUNT.most)] | None = None
    """Time limit in seconds of one call. It applies to calls of the model and of the tool; None sets no
    limit."""

    @property
    def edges(self) -> list[tuple[str, str, Edge]]:
        """Entries of `needs` as (name that prompts use, role that is read, edge)."""
        return [(key, edge.of or key, edge) for key, edge in self.needs.items()]

    def policy_names(self, count: int) -> Sequence[str]:
        """Return the policy name of each instance; empty for a role that is not trained and names no
        policy."""
        if self.policy is None:
            return (MAIN,) * count if self.is_trained else ()
        return self.policy * count if len(self.policy) == 1 else self.policy

    @property
    def is_trained(self) -> bool:
        """True for a role that training changes: one with an estimator or a signal. A role that runs a tool
        has no weights to change."""
        return self.run is None and (self.estimator is not None or self.signal is not None)

    @property
    def learns_from(self) -> str:
        """Names of the estimator and the signal, such as `grpo + reverse_kl`; empty for a role that is not
        trained."""
        return " + ".join(it.name for it in (self.estimator, self.signal) if it and self.is_trained)

    @property
    def callees(self) -> Mapping[str, int]:
        """Roles that the model may call as tools, each with its largest number of calls in one turn."""
        callees: dict[str, int] = {}
        for call in self.tools:
            if call.name == CALL_OF_A_ROLE and isinstance(call.value, str):
                parallel = call.options.get("parallel", 1)
                is_number = type(parallel) is int and parallel > 0  # options are checked later
                callees[call.value] = (self.max_calls - 1) * (parallel if is_number else 1)
        return callees

    @property
    def parses(self) -> bool:
        """True if a parser makes the action; a role that runs a tool has a parser only if the spec names
        one."""
        return self.run is None or "parser" in self.model_fields_set
