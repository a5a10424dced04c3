"""What a spec says of a role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, Union, cast, get_args

from pydantic import BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from rolegraph.engine import vocabulary
from rolegraph.engine.limits.specs import (
    SPEC_CALLS,
    SPEC_INSTANCES,
    SPEC_RETRIES,
    SPEC_SECONDS,
    SPEC_WEIGHT,
)
from rolegraph.engine.spec.base import ATOMIC, SpecModel, Strings
from rolegraph.engine.spec.sources import ModelRef, PromptSource, Sampling
from rolegraph.engine.vocabulary import CallField, ItemCall, LossName, LossSetting
from rolegraph.engine.vocabulary.items import LOSS_SETTINGS


class OnFailure(SpecModel):
    """What happens when a role instance fails."""

    retry: Annotated[int, Field(ge=0, le=SPEC_RETRIES.most), SPEC_RETRIES] = 0
    """How many more times to ask."""
    then: Literal["zero", "mask", "fail"] = "zero"
    """`zero`: it earns `reward`. `mask`: keep the turn out of the gradient. `fail`: end the episode."""
    reward: FiniteFloat | None = None
    """What a failed turn earns. None is 0, or what others decide where the role's reward is only theirs."""


Join = Literal["all", "each", "branch"]
JoinedRound = Literal["this", "last", "history"]
InChunks = Mapping[Literal["chunks"], Annotated[int, Field(ge=1)]]


def _as_it_is(value: object) -> object:
    return value


class Edge(SpecModel):
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
    def expand_shorthand(cls, value: object) -> object:
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


TOOL_ROLE_KEYS = ("run", "count", "needs", "when", "shows", "reward", "on_failure", "timeout")
"""All that may be said of a role that runs a tool."""


def _of_two_shapes(schema: dict[str, Any]) -> None:
    """Let a role's JSON Schema have a prompt, or else a tool and what goes with one."""
    others = {key: {"type": "null"} for key in schema["properties"] if key not in TOOL_ROLE_KEYS}
    schema["if"] = {"required": ["run"], "properties": {"run": {"not": {"type": "null"}}}}
    schema["then"] = {"properties": others}
    schema["else"] = {"required": ["prompt"]}


Discount = Annotated[float, Field(ge=0.0, le=1.0)]


class Credit(SpecModel):
    """What each turn of a trajectory is credited with."""

    SHORT = Literal["trajectory", "turn", "margin"] | Mapping[Literal["return"], Discount]
    kind: Literal["trajectory", "turn", "margin", "return"] = "trajectory"
    """`trajectory`: what the trajectory earned; `turn`: what the turn earned itself; `margin`: that, less the
    mean of the turns before; `{return: 0.95}`: that, and what the turns after it earned, discounted."""
    discount: Discount | None = None
    """With `return`: what the reward of a turn counts for the turn before it."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
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


class Loss(SpecModel):
    """The loss that a role is trained with, as the Tinker API defines it."""

    SHORT = LossName | Mapping[LossName, Mapping[LossSetting, float]]
    name: LossName
    """`ppo`, `importance_sampling`, `cispo` or `gspo` of what was sampled, or `cross_entropy`."""
    settings: Mapping[LossSetting, Annotated[float, Field(ge=0.0, le=1e6)]] = {}
    """`clip_low_threshold` and `clip_high_threshold`, which bound the ratio of the probabilities in ppo,
    cispo and gspo. What is left out is as the service has it."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """A name stands for itself, `{ppo: {…}}` for a loss with settings."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and len(written := cast("dict[str, object]", value)) == 1:
            ((name, settings),) = written.items()
            return {"name": name, "settings": settings} if name != "name" else written
        return cast("object", value)

    @model_validator(mode="after")
    def _settable(self) -> Self:
        takes = LOSS_SETTINGS[self.name]
        if wrong := [setting for setting in self.settings if setting not in takes]:
            what = f"only {' and '.join(takes)}" if takes else "no settings"
            raise ValueError(f"{self.name} takes {what}, not {wrong[0]}")
        low, high = (self.settings.get(setting) for setting in ("clip_low_threshold", "clip_high_threshold"))
        if low is not None and high is not None and low > high:
            raise ValueError("a clip_low_threshold of at most clip_high_threshold")
        return self


GroupBy = Literal["task", "turn", "prompt"]


ToolField = Annotated[CallField, vocabulary.tools]


def _as_items(value: object) -> object:
    """An item alone stands for a list of it."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


class Role(SpecModel):
    """Who takes part, what it is asked, how its answer is read, what it earns and how it learns."""

    model_config = ConfigDict(json_schema_extra=_of_two_shapes)

    count: Annotated[int, Field(ge=1, le=SPEC_INSTANCES.most), SPEC_INSTANCES] = 1
    """How many instances run side by side; with a join of `each` or `chunks`, for each parent."""
    needs: Annotated[
        Mapping[str, Edge],
        BeforeValidator(_as_edges, json_schema_input_type=str | list[str] | Mapping[str, Edge]),
        ATOMIC,
    ] = {}
    """Roles whose answers this one waits for."""
    when: str | None = None
    """The condition on which an instance runs; where it is false, the instance is skipped."""
    shows: Strings = []
    """Hidden fields of the task that this role's own prompts, tool values and `when` may read."""
    prompt: PromptSource | None = None
    """What it is asked: the user's turn."""
    run: ToolField | None = None
    """A tool in place of a model: what it gives is the role's action."""
    system: PromptSource | None = None
    """The system turn before it."""
    memory: Literal["chat"] | None = None
    """`chat`, in a loop: each instance keeps one conversation for the episode, to which its turns add."""
    parser: Annotated[CallField, vocabulary.parsers] = ItemCall("text")
    """How its answer is read."""
    tools: Annotated[
        list[ToolField],
        BeforeValidator(_as_items, json_schema_input_type=Union[ToolField, list[ToolField]]),  # noqa: UP007
        ATOMIC,
    ] = []
    """What its model may call before it answers."""
    calls: Annotated[int, Field(ge=1, le=SPEC_CALLS.most), SPEC_CALLS] = 1
    """How often a turn asks its model at most, where it has tools; the last answer is parsed as it stands."""
    reward: Annotated[CallField, vocabulary.rewards] | None = None
    """What it earns. A trainable role needs one, or a signal."""
    credit: Annotated[Credit, ATOMIC] = Credit()
    """What each of its turns is credited with: `trajectory`, `turn`, `margin` or `{return: 0.95}`."""
    group: Annotated[GroupBy, ATOMIC] = "task"
    """With what it is compared: what else it did on the `task`, in that `turn`, or where the `prompt` was the
    same."""
    estimator: Annotated[CallField, vocabulary.estimators] | None = None
    """How its advantage is computed. A trainable role needs one."""
    signal: Annotated[CallField, vocabulary.signals] | None = None
    """What sets a `precomputed` role's advantages, token by token, in place of a reward."""
    loss: Annotated[Loss, ATOMIC] | None = None
    """The loss it is trained with, as `cispo` or `{ppo: {clip_high_threshold: 1.3}}`; None takes the
    estimator's own: `ppo` for grpo, else `importance_sampling`; `cross_entropy` for imitation."""
    trainable: bool = True
    """Whether training changes it; then it needs an estimator, and a reward or a signal."""
    model: ModelRef | None = None
    """A model of its own; None uses the spec's."""
    policy: Annotated[Strings, Field(min_length=1)] | None = None
    """Whose weights it has: one of the spec's `policies`, or a list with one for each instance; None is
    `main`, and for a role that is not trained its model as it is."""
    weight: Annotated[float, Field(gt=0.0, le=SPEC_WEIGHT.most), SPEC_WEIGHT] = 1.0
    """What its losses count beside those of the other roles of its policy."""
    sampling: Sampling | None = None
    """How its answers are drawn; None uses its policy's."""
    on_failure: OnFailure = OnFailure()
    """What happens when it fails."""
    timeout: Annotated[float, Field(gt=0.0, le=SPEC_SECONDS.most), SPEC_SECONDS] | None = None
    """Seconds for one call of its model, or of its tool; None waits as long as that does."""

    @property
    def is_trained(self) -> bool:
        """Whether training changes it: a role without a model has nothing to change."""
        return self.trainable and self.run is None
