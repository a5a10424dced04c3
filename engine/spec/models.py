"""The language, version 1: what a spec may say, as pydantic models.

The line under a field is what a message says of it where it is missing. These models hold
what was written; whether names resolve and edges make sense is the business of `engine.compile.graph` and
`engine.compile.names`.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    model_validator,
)

from engine import vocabulary
from engine.spec.diagnostics import Path
from engine.vocabulary import Call, CallField, LossName

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


WHOLE = "whole"
"""Marks a mapping that is one value: what is laid over it replaces it."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    SHORT: ClassVar[Any] = None
    """The type of what `in_full` takes in place of a mapping, for the JSON Schema."""

    @classmethod
    def in_full(cls, value: object) -> object:
        """The mapping that a value written in short stands for; any other value as it is."""
        return value

    @model_validator(mode="before")
    @classmethod
    def _written(cls, value: object) -> object:
        return cls.in_full(value)


def field_lines(model: type[BaseModel]) -> dict[str, str]:
    """The line under each field of a model; read from the source when it is asked for, which is seldom."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    lines: dict[str, str] = {}
    for field, text in pairwise(definition.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(line))):
                lines[name] = inspect.cleandoc(line)
            case _:
                pass
    return lines


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_it_is(value: object) -> object:
    return value


Strings = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]


class PromptSource(_Model):
    """A template: the name of a file, or `{inline: "…"}`."""

    SHORT = str
    file: str | None = None
    """Looked up beside the spec, then in `prompts/`, then among the shipped ones."""
    inline: str | None = None
    """The template itself."""

    @classmethod
    def in_full(cls, value: object) -> object:
        """A file's name stands for `{file: name}`."""
        return {"file": value} if isinstance(value, str) else value


def served_as(provider: str) -> str:
    """Whose API the models of a provider are reached by: a local service speaks Tinker's."""
    return "tinker" if provider == "local" else provider


Provider = Literal["local", "tinker", "openai", "replay"]


class ModelRef(_Model):
    """Where answers come from: `provider:name`, or a mapping with these keys."""

    SHORT = Annotated[str, StringConstraints(pattern=rf"^({'|'.join(get_args(Provider))})(:|$)")]
    provider: Provider = "local"
    """`local` (a folder of this machine, served for the run), `tinker`, `openai` (any compatible endpoint)
    or `replay`."""
    name: str | None = None
    """A model folder (local; None is the shipped base model), a model's name (tinker, openai), or an episodes
    file or the folder of a run (replay)."""
    base_url: str | None = None
    """The endpoint; None is the provider's own."""
    checkpoint: str | None = None
    """Weights: a `tinker://` path, a training's folder (its best; `FOLDER#POLICY` where it trained several),
    or None (as it is)."""
    concurrency: Annotated[int, Field(ge=1)] = 512
    """How many calls may be under way at once."""
    replay_any: bool = False
    """Whether a replay answers prompts that have changed since they were recorded, too."""

    @classmethod
    def in_full(cls, value: object) -> object:
        """`provider:name`, or a provider alone, stands for a mapping."""
        if not isinstance(value, str):
            return value
        provider, colon, name = value.partition(":")
        return {"provider": provider, "name": name} if colon else {"provider": provider}

    @property
    def served_here(self) -> bool:
        """Whether this machine is to serve it; a local model with an endpoint is served already."""
        return self.provider == "local" and self.base_url is None


class Sampling(_Model):
    """How answers are drawn."""

    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """0 takes the likeliest token."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Draw from the smallest set of tokens with this much probability."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """The longest answer, in tokens."""
    stop: Strings = []
    """Texts that end an answer."""
    seed: int | None = None
    """Draw the same answers every time; None follows the run's seed."""


class OnFailure(_Model):
    """What happens when a role instance fails."""

    retry: Annotated[int, Field(ge=0, le=100)] = 0
    """How many more times to ask."""
    then: Literal["zero", "mask", "fail"] = "zero"
    """`zero`: it earns `reward`. `mask`: keep the turn out of the gradient. `fail`: end the episode."""
    reward: FiniteFloat | None = None
    """What a failed turn earns. None is 0, or what others decide where the role's reward is only theirs."""


Join = Literal["all", "each", "branch"]
JoinedRound = Literal["this", "last", "history"]
InChunks = Mapping[Literal["chunks"], Annotated[int, Field(ge=1)]]


class Edge(_Model):
    """Which instances of another role, of which round, a role joins."""

    SHORT = Join | JoinedRound
    of: str | None = None
    """The role, where the name that prompts know it by is another."""
    join: Annotated[Join, BeforeValidator(_as_it_is, json_schema_input_type=Join | InChunks)] = "all"
    """`all` of theirs; `each`: one of mine for each of theirs; `branch`: those on my own branch;
    `{chunks: n}`: one of mine for each n of theirs."""
    chunks: Annotated[int, Field(ge=1)] | None = None
    """One of mine for so many of theirs, a divisor of their number."""
    round: JoinedRound = "this"
    """In a loop: `this` round, the `last` one, or the `history` of all before."""

    @classmethod
    def in_full(cls, value: object) -> object:
        """A join or a round stands for the edge that differs in it alone; chunks may stand under `join`."""
        if value in get_args(JoinedRound):
            return {"round": value}
        if isinstance(value, str):
            return {"join": value}
        if not isinstance(value, dict):
            return value
        written = cast("dict[str, object]", value)
        inside = written.get("join")
        if isinstance(inside, dict):
            rest = {key: part for key, part in written.items() if key != "join"}
            written = {**rest, **cast("dict[str, object]", inside)}
        return {"join": "each", **written} if "chunks" in written else written

    @property
    def fans_out(self) -> bool:
        """Whether there is one of mine for each of theirs, or for each few of them."""
        return self.join == "each"

    @property
    def size(self) -> int:
        """How many of theirs there are for one of mine, where it fans out."""
        return self.chunks or 1


def _as_edges(value: object) -> object:
    """A role, or a list of them, stands for edges that join all of its instances."""
    if isinstance(value, str):
        return {value: Edge()}
    if not isinstance(value, list):
        return value
    names = cast("list[object]", value)
    for name in names:
        if not isinstance(name, str):
            keys = [*cast("dict[object, object]", name)] if isinstance(name, dict) else []
            meant = f"; to say more of one, a mapping: needs: {{{keys[0]}: …}}" if keys else f", not {name!r}"
            raise ValueError(f"a list of names of roles{meant}")
    return {name: Edge() for name in cast("list[str]", names)}


OF_A_TOOL = ("run", "count", "needs", "when", "shows", "reward", "on_failure", "timeout")
"""All that may be said of a role that runs a tool."""


def _of_two_shapes(schema: dict[str, Any]) -> None:
    """Let a role's JSON Schema have a prompt, or else a tool and what goes with one."""
    others = {key: {"type": "null"} for key in schema["properties"] if key not in OF_A_TOOL}
    schema["if"] = {"required": ["run"], "properties": {"run": {"not": {"type": "null"}}}}
    schema["then"] = {"properties": others}
    schema["else"] = {"required": ["prompt"]}


Discount = Annotated[float, Field(ge=0.0, le=1.0)]


class Credit(_Model):
    """What each turn of a trajectory is credited with."""

    SHORT = Literal["trajectory", "turn", "margin"] | Mapping[Literal["return"], Discount]
    kind: Literal["trajectory", "turn", "margin", "return"] = "trajectory"
    """`trajectory`: what the trajectory earned; `turn`: what the turn earned itself; `margin`: that, less the
    mean of the turns before; `{return: 0.95}`: that, and what the turns after it earned, discounted."""
    discount: Discount | None = None
    """With `return`: what the reward of a turn counts for the turn before it."""

    @classmethod
    def in_full(cls, value: object) -> object:
        """A kind stands for itself, `{return: g}` for a return that is discounted by g."""
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, dict) and list(written := cast("dict[str, object]", value)) == ["return"]:
            return {"kind": "return", "discount": written["return"]}
        return cast("object", value)

    @model_validator(mode="after")
    def _discounted(self) -> Self:
        if (self.kind == "return") != (self.discount is not None):
            raise ValueError("trajectory, turn, margin, or a discount: {return: 0.95}")
        return self


GroupBy = Literal["task", "turn", "prompt"]


ToolField = Annotated[CallField, vocabulary.tools]


def _as_items(value: object) -> object:
    """An item alone stands for a list of it."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


class Role(_Model):
    """Who takes part, what it is asked, how its answer is read, what it earns and how it learns."""

    model_config = ConfigDict(json_schema_extra=_of_two_shapes)

    count: Annotated[int, Field(ge=1, le=4096)] = 1
    """How many instances run side by side; with a join of `each` or `chunks`, for each parent."""
    needs: Annotated[
        Mapping[str, Edge],
        BeforeValidator(_as_edges, json_schema_input_type=str | list[str] | Mapping[str, Edge]),
        WHOLE,
    ] = {}
    """Roles whose answers this one waits for."""
    when: str | None = None
    """The condition on which an instance runs; where it is false, the instance is skipped."""
    shows: Strings = []
    """Hidden fields of the task that this role's own prompts, tool values and `when` may read."""
    prompt: PromptSource | None = None
    """What it is asked: the user's turn."""
    run: Annotated[CallField, vocabulary.tools] | None = None
    """A tool in place of a model: what it gives is the role's action."""
    system: PromptSource | None = None
    """The system turn before it."""
    memory: Literal["chat"] | None = None
    """`chat`, in a loop: each instance keeps one conversation for the episode, to which its turns add."""
    parser: Annotated[CallField, vocabulary.parsers] = Call("text")
    """How its answer is read."""
    tools: Annotated[
        list[ToolField],
        BeforeValidator(_as_items, json_schema_input_type=Union[ToolField, list[ToolField]]),  # noqa: UP007
        WHOLE,
    ] = []
    """What its model may call before it answers."""
    calls: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often a turn asks its model at most, where it has tools; the last answer is parsed as it stands."""
    reward: Annotated[CallField, vocabulary.rewards] | None = None
    """What it earns. A trainable role needs one, or a signal."""
    credit: Annotated[Credit, WHOLE] = Credit()
    """What each of its turns is credited with: `trajectory`, `turn`, `margin` or `{return: 0.95}`."""
    group: Annotated[GroupBy, WHOLE] = "task"
    """With what it is compared: what else it did on the `task`, in that `turn`, or where the `prompt` was the
    same."""
    estimator: Annotated[CallField, vocabulary.estimators] | None = None
    """How its advantage is computed. A trainable role needs one."""
    signal: Annotated[CallField, vocabulary.signals] | None = None
    """What sets a `precomputed` role's advantages, token by token, in place of a reward."""
    loss: LossName | None = None
    """The loss it is trained with; None takes the estimator's own: `ppo` for grpo, else
    `importance_sampling`; `cross_entropy` for imitation."""
    trainable: bool = True
    """Whether training changes it; then it needs an estimator, and a reward or a signal."""
    model: ModelRef | None = None
    """A model of its own; None uses the spec's."""
    policy: Annotated[Strings, Field(min_length=1)] | None = None
    """Whose weights it has: one of the spec's `policies`, or a list with one for each instance; None is
    `main`, and for a role that is not trained its model as it is."""
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """What its losses count beside those of the other roles of its policy."""
    sampling: Sampling | None = None
    """How its answers are drawn; None uses its policy's."""
    on_failure: OnFailure = OnFailure()
    """What happens when it fails."""
    timeout: Annotated[float, Field(gt=0.0)] | None = None
    """Seconds for one call of its model, or of its tool; None waits as long as that does."""

    @property
    def is_trained(self) -> bool:
        """Whether training changes it: a role without a model has nothing to change."""
        return self.trainable and self.run is None


class Loop(_Model):
    """Roles that take turns for several rounds."""

    roles: Annotated[Strings, Field(min_length=1)]
    """The roles in it."""
    times: Annotated[int, Field(ge=1, le=10_000)]
    """How many rounds there are at most."""
    until: str | None = None
    """The condition that ends it, asked after each round; on each branch for itself."""
    env: Annotated[CallField, vocabulary.environments] | None = None
    """The environment that its players move in, a step of it each round; its end is the loop's."""
    players: Strings = []
    """The roles that move in `env`, in the order of the players' numbers; all that have a model unless some
    are named."""


class Data(_Model):
    """Where tasks come from: a registered dataset, or the path of a .jsonl, .parquet or .csv file."""

    train: Annotated[CallField, vocabulary.datasets] | None = None
    """Tasks to learn from."""
    validation: Annotated[CallField, vocabulary.datasets] | None = None
    """Tasks held out; `rolegraph run` uses them unless told otherwise."""
    hidden: Strings = []
    """Fields that no prompt may show, beside those that the dataset and the rewards hide themselves."""


class EpisodeSpec(_Model):
    """What is said of a whole episode."""

    correct: str | None = None
    """The role whose correctness is the episode's; None takes the last role."""
    metrics: Mapping[Identifier, Annotated[CallField, vocabulary.metrics]] = {}
    """Numbers reported for each episode."""


RateCurve = Literal["constant", "linear", "cosine"]


class Schedule(_Model):
    """How the learning rate goes on after the warm-up."""

    SHORT = RateCurve
    kind: RateCurve = "constant"
    """`linear` and `cosine` fall to `floor` at the last step."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps in which the rate rises from 0."""
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """The share of the learning rate that is left at the end."""

    @classmethod
    def in_full(cls, value: object) -> object:
        """A kind stands for `{kind: kind}`."""
        return {"kind": value} if isinstance(value, str) else value


class Lora(_Model):
    """The adapter that training changes."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 32
    """Its rank."""
    attention: bool = True
    """Whether it changes the attention layers."""
    mlp: bool = True
    """Whether it changes the feed-forward layers."""
    unembed: bool = True
    """Whether it changes the layer that gives the logits."""


class Policy(_Model):
    """Weights that roles share, trained apart from others; what is left out is the spec's."""

    model: ModelRef | None = None
    """The model that it starts from."""
    checkpoint: str | None = None
    """Weights that it starts from: a training's folder (its best; `FOLDER#POLICY` where it trained several),
    or a `tinker://` path."""
    lora: Lora | None = None
    """The adapter; what it leaves out is that of `train.lora`."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Adam's, under the one schedule."""
    sampling: Sampling | None = None
    """How answers are drawn from it, unless a role says otherwise; what it leaves out is the spec's."""


class Validation(_Model):
    """How the policy is measured on the validation data, with the same seeds every time."""

    every: Annotated[int, Field(ge=0)] = 10
    """Steps between measurements; 0 measures only before and after. Both of these are always made."""
    tasks: Annotated[int, Field(ge=1)] = 128
    """How many tasks, from the first on."""
    rollouts: Annotated[int, Field(ge=1)] = 2
    """Episodes for each."""
    best: str = "correct"
    """The figure by which the best checkpoint is chosen: `correct`, or one of the spec's metrics."""


class Train(_Model):
    """How the roles are trained."""

    rollouts: Annotated[int, Field(ge=1)] = 8
    """K, the episodes for each task."""
    batch_size: Annotated[int, Field(ge=1)] = 16
    """Tasks in a step."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Updates of the policy; None follows from `epochs`."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Times through the training data, in a new order each; with `steps` too, whichever ends first. Neither
    is one epoch."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-4
    """Adam's."""
    schedule: Schedule = Schedule()
    """`constant`, `linear`, `cosine`, or a mapping with `kind`, `warmup` and `floor`."""
    gradient_clip: Annotated[float, Field(ge=0.0)] = 1.0
    """The largest norm of the gradient of the mean loss over a step's trajectories; 0 does not clip."""
    lora: Lora = Lora()
    """The adapter."""
    validation: Validation = Validation()
    """How it is measured on the way."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 10
    """Steps between checkpoints. The best and the last are kept besides."""
    staleness: Annotated[int, Field(ge=0, le=8)] = 0
    """Updates by which rollouts may be behind: 0 waits for each update; n makes the rollouts of n batches
    while earlier ones are learnt from, and says so in each Step. A run that is resumed begins with none
    ahead, so its figures are those of one that was not stopped only with 0."""


class Spec(_Model):
    """One multi-role workflow."""

    rolegraph: Literal[1]
    """The version of the language."""
    name: Identifier
    """What the workflow is called."""
    description: str = ""
    """What it does, in a sentence."""
    data: Data = Data()
    """Where tasks come from."""
    model: ModelRef = ModelRef()
    """Where answers come from, unless a role has a model of its own: the policy `main`."""
    sampling: Sampling = Sampling()
    """How answers are drawn, unless a role says otherwise."""
    policies: Mapping[Identifier, Policy] = {}
    """Weights that are trained apart, by name; `main` is there without being named."""
    roles: Annotated[Mapping[Identifier, Role], Field(min_length=1)]
    """The roles by name. A role's name is its trajectory's name."""
    loops: Mapping[Identifier, Loop] = {}
    """Roles that take turns for several rounds, by the loop's name."""
    episode: EpisodeSpec = EpisodeSpec()
    """What is said of a whole episode."""
    train: Train = Train()
    """How the roles are trained."""


def is_whole(path: Path) -> bool:
    """Whether the value at a path is one, which `extends` and overrides replace: half of a parser mixed with
    another means nothing."""
    if kind_at(path) in (Call, PromptSource):
        return True
    around = kind_at(path[:-1])
    field = around.model_fields.get(str(path[-1])) if around and issubclass(around, _Model) else None
    return field is not None and WHOLE in field.metadata


def kind_at(path: Path) -> type[_Model] | type[Call] | None:
    """What the language has at a path of a spec: one of these models or a call, if either."""
    annotation: Any = Spec
    for key in path:
        annotation = _inner(annotation, key)
    return _kind(annotation)


def _kind(annotation: Any) -> type[_Model] | type[Call] | None:
    if isinstance(annotation, type) and issubclass(annotation, _Model | Call):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return next(filter(None, map(_kind, get_args(annotation))), None)
    return None


def _inner(annotation: Any, key: str | int) -> Any:
    kind = _kind(annotation)
    if kind is not None and issubclass(kind, _Model):
        info = kind.model_fields.get(str(key))
        return info.annotation if info else None
    if get_origin(annotation) is Annotated:
        return _inner(get_args(annotation)[0], key)
    arguments = get_args(annotation)
    return arguments[-1] if arguments else None
