"""Records of a run: Episode > Trajectory (one per role instance) > Step (one per model call).

The annotations here are the schema: `to_dict` writes each field, and `from_dict` checks a file's JSON against
its type (`engine/records/schema.py`). The keys of the JSON are those of `rllm.types` 0.3.0, so that a file
written here loads in rLLM. Records are immutable; `_replace` returns a changed copy. They are NamedTuples
because every model call creates one, and a frozen dataclass takes three times as long to create.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from rolegraph.engine.records.identity import NodeId
from rolegraph.engine.records.metadata import (
    NO_METADATA,
    EpisodeMetadata,
    FailureMetadata,
    StepMetadata,
    UsageMetadata,
)
from rolegraph.engine.records.schema import (
    LOGPROBS,
    TOKEN_IDS,
    Figure,
    MessageShape,
    list_of,
    record_schema,
    shaped,
)
from rolegraph.engine.records.summary import Summary, shortened

Task = Mapping[str, Any]
"""Row of a dataset: values by field name. `id` is a string without a colon, unique in its dataset."""

Split = Literal["train", "validation"]
"""Part of a dataset: tasks to learn from, or held-out tasks."""

EpisodePart = Literal["train", "validation", "greedy"]
"""Kind of a training's episodes file: of a step, of a validation, or of the greedy validation at the end."""

Message = Mapping[str, Any]
"""Chat message in OpenAI's form: `role` and `content`; an assistant's message also has `reasoning` and
`tool_calls` if the model gave them, a tool's message `name` and `tool_call_id`."""

Advantage = Sequence[float] | float
"""Advantages of a step: one number for each of its T response tokens, or one number for all of them."""

NOTHING: Mapping[str, Any] = {}
"""Empty default of the mapping fields. It is shared by all records, so nothing may write to it."""

MESSAGE = 300
"""Largest number of characters of a failure's message in its line."""
PLACE = 200
"""Largest number of characters of an exception's place in the line of a failure."""
EXCERPT = 80
"""Largest number of characters of an answer's beginning and end in the line of a failure."""

WITHHELD = "withheld_steps"
"""Key of a trajectory's `info` that holds the steps hidden from rLLM, which would train on every visible
step."""


FailureCause = Literal["form", "program", "world", "reward", "other"]
"""Cause of a failure: the `form` of the answer, which the weights decide; the `program` that a role ran; a
machine or network (`world`); the `reward`, so that it is unknown if the answer is right; or an `other`
cause."""


class FailureName(StrEnum):
    """Reason why a role instance gave no usable answer, and the cause of the failure."""

    cause: FailureCause

    def __new__(cls, name: str, cause: FailureCause) -> Self:
        """Create a member with its name and cause."""
        member = str.__new__(cls, name)
        member._value_, member.cause = name, cause
        return member

    @property
    def is_result(self) -> bool:
        """True if the turn has a result that is not ok: its answer or its program failed, and not the model
        or tool itself."""
        return self.cause in ("form", "program")

    MALFORMED_OUTPUT = "malformed_output", "form"
    """The parser found no answer in the response."""

    UNPARSEABLE_CHOICE = "unparseable_choice", "form"
    """The response names none of the candidates."""

    SPECIAL_TOKEN = "special_token", "form"
    """The response holds a special token of the chat format, such as the marker of a turn, before its end."""

    TIMEOUT = "timeout", "world"
    """The model call, or the tool that the role runs, took longer than the role's `timeout`."""

    MODEL_ERROR = "model_error", "world"
    """The model gave no answer: refused, overloaded or unreachable."""

    PROMPT_ERROR = "prompt_error", "other"
    """The prompt could not be rendered for the task."""

    PROGRAM_ERROR = "program_error", "program"
    """The program that the role ran raised an exception, or exceeded its time or memory."""

    TOOL_ERROR = "tool_error", "other"
    """A tool failed, or could not be opened."""

    REWARD_ERROR = "reward_error", "reward"
    """The reward function raised, timed out, or returned a value that is not a finite number."""

    UNSUPPORTED_PROGRAM = "unsupported_program", "reward"
    """The sandbox's interpreter lacks a part of Python that the program or its test uses, so nothing is
    judged."""

    CONTEXT_FULL = "context_full", "other"
    """The prompt leaves no room for an answer in the model's context."""

    REFUSED = "refused", "other"
    """The model refused to answer, or a content filter of its server withheld the answer."""

    ENVIRONMENT_ERROR = "environment_error", "other"
    """The environment failed and ended the episode; no player is at fault."""


REWARD_FAILURES = frozenset(name for name in FailureName if name.cause == "reward")
FORMLESS = frozenset(name for name in FailureName if name.cause == "form")


REMARKS = {
    "unrated": "no reward",
    "truncated": "cut off at the limit of tokens; raise sampling.max_tokens",
    "unusable_numbers": "the model gave numbers out of range, which are left out",
}
"""Words for each remark on trajectories, by the remark's name; remarks are counted beside failures."""


def averaged(metrics: Mapping[str, float], correct: bool | None) -> Mapping[str, float]:
    """Return the values of an episode that are averaged: the metrics, and `correct` if it is known."""
    return metrics if correct is None else {"correct": float(correct), **metrics}


class TerminationReason(StrEnum):
    """Reason why an episode ended; the values are those of rLLM's TerminationReason (`rllm.types` of its
    next version)."""

    ENV_DONE = "env_done"
    """Every role instance ran."""

    TIMEOUT = "timeout"
    """A role with `on_failure: {then: fail}` timed out."""

    ERROR = "error"
    """A role with `on_failure: {then: fail}` failed in another way."""

    MAX_PROMPT_LENGTH_EXCEEDED = "max_prompt_length_exceeded"
    """rLLM's engine rejected a prompt longer than its limit."""

    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    """Under rLLM: a response was cut off at the length limit and could not be parsed."""

    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    """The turns of one of rLLM's own workflows were used up."""

    AGENT_SETUP_TIMEOUT = "agent_setup_timeout"
    """Under rLLM: the agent was not set up in time."""

    ENV_START_TIMEOUT = "env_start_timeout"
    """Under rLLM: the environment did not start in time."""

    VERIFIER_TIMEOUT = "verifier_timeout"
    """Under rLLM: the answer was not graded in time."""

    GRADING_ERROR = "grading_error"
    """Under rLLM: the answer could not be graded."""

    SANDBOX_ERROR = "sandbox_error"
    """Under rLLM: the sandbox failed."""

    MODEL_ERROR = "model_error"
    """Under rLLM: no model call had an answer."""

    UNKNOWN = "unknown"
    """No reason is recorded, or a reason of a later version of rLLM."""


def _known_reason(value: object) -> object:
    """Convert a text to a TerminationReason; null and unknown reasons become `UNKNOWN`."""
    reasons = {member.value: member for member in TerminationReason}
    return reasons.get(value or "", TerminationReason.UNKNOWN) if isinstance(value, str | None) else value


class Failure(NamedTuple):
    """Failure of a role instance: its name, and an explanation in one sentence."""

    name: Annotated[FailureName, Field(strict=False)]
    message: str
    place: str = ""
    """Place in the user's code that raised an error, such as `near.py:4: return task["targt"]`; empty if no
    such code did."""

    @property
    def explanation(self) -> str:
        """Message and place, for readers who may see the task's hidden fields."""
        return f"{self.message} ({self.place})" if self.place else self.message

    def to_dict(self) -> dict[str, str]:
        """Return `name` and `message`, and `place` if it is set."""
        fields = {"name": self.name.value, "message": self.message}
        return {**fields, "place": self.place} if self.place else fields

    __get_pydantic_core_schema__ = classmethod(record_schema)


_TextOrNull = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
_EMPTY_STEP = {"routing_matrices": None, "observation": None, "model_output": None, "mc_return": 0.0}
"""Fields of rLLM's Step that Rolegraph does not use; `rllm.types.Step.from_dict` requires their keys."""


class Step(NamedTuple):
    """One model call, or one run of a tool by a role without a model. T is the number of response tokens.

    In a file, each field has its own name, but `metadata` is called `info`. A new field is one line here: it
    is then written, read, checked, replayed, and if rLLM's Step has a field of this name, converted to and
    from rLLM.
    """

    prompt_ids: Annotated[Sequence[int], TOKEN_IDS] = ()
    """Token ids of the prompt, an `array.array`; empty if the model gives none."""
    response_ids: Annotated[Sequence[int], TOKEN_IDS] = ()
    """Token ids of the response, [T]; empty if the model gives none."""
    logprobs: Annotated[Sequence[float], LOGPROBS] = ()
    """Natural log-probabilities of the response tokens at the sampling temperature, [T] or empty."""
    chat_completions: Annotated[Sequence[Message], list_of(Annotated[Message, shaped(MessageShape)])] = ()
    """Messages of the prompt, then the response as the last message."""
    thought: _TextOrNull = ""
    """Reasoning that the model marks as such."""
    action: Any = None
    """Value that the parser read from the response; None after a failure."""
    model_response: _TextOrNull = ""
    """Text of the response, without the reasoning."""
    reward: Figure = 0.0
    """Reward of this step alone."""
    done: bool = True
    """True for the last step; rLLM's mark of an episode's end."""
    advantage: Annotated[Sequence[float], list_of(Figure)] | Figure | None = None
    """Advantages set by an estimator or signal: [T], or one number for all T tokens; None before they are
    set."""
    weight_version: int | None = None
    """Number of updates of the weights that answered; None if unknown."""
    metadata: StepMetadata = NO_METADATA
    """Further values by name; Rolegraph reads the keys of `StepMetadata`."""

    def __repr__(self) -> str:
        tokens = f"{self.prompt_tokens} + {self.response_tokens} tokens"
        return f"<Step: {shortened(self.model_response)}, {tokens}>"

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens, from the ids, else from the endpoint's `usage`; 0 without both."""
        return len(self.prompt_ids) or self.usage.get("prompt_tokens", 0)

    @property
    def response_tokens(self) -> int:
        """T, from the ids, else from the endpoint's `usage`; 0 without both."""
        return len(self.response_ids) or self.usage.get("completion_tokens", 0)

    @property
    def usage(self) -> UsageMetadata:
        """Tokens and dollars that the endpoint counts, if it gives no ids; else empty."""
        return self.metadata.get("usage") or UsageMetadata()

    @property
    def round(self) -> int:
        """Round of the role's loop, from 1."""
        return self.metadata.get("round", 1)

    @property
    def tool(self) -> str:
        """Name of the tool that ran in place of a model; empty for a model call."""
        return self.metadata.get("tool", "")

    @property
    def masked(self) -> bool:
        """True if the step's turn is kept out of the gradient."""
        return self.metadata.get("masked", False)

    @property
    def is_unusable(self) -> bool:
        """True for an answer with log-probabilities out of range, from which no role learns."""
        return bool(self.response_ids) and not self.logprobs and "unusable_numbers" in self.metadata

    @property
    def advantages(self) -> Sequence[float]:
        """Advantages of the T response tokens, [T].

        A single number is repeated T times; without token ids, the list has only that number, [1]. It is
        empty, [0], before an estimator or signal has set `advantage`.
        """
        if self.advantage is None:
            return ()
        if isinstance(self.advantage, Sequence):
            return self.advantage
        return (self.advantage,) * max(1, len(self.response_ids))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a file, in the shape of `rllm.types.Step.to_dict`."""
        fields = {name: _plain(value) for name, value in zip(self._fields, self, strict=True)}
        return {**_EMPTY_STEP, "info": fields.pop("metadata"), **fields}

    @classmethod
    def _fields_of(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**data, "info": _info_of(data)}

    __get_pydantic_core_schema__ = classmethod(record_schema)


def _plain(value: object) -> Any:
    """Return a sequence as a list and a mapping as a dict, one level deep; other values unchanged."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    return list(cast("Sequence[object]", value)) if isinstance(value, Sequence) else value


def _by_round(steps: list[Step]) -> Sequence[Step]:
    return tuple(sorted(steps, key=lambda step: step.round))


class Trajectory(NamedTuple):
    """Steps and reward of one instance of a role.

    `name` is the same for all `count` instances of a role: trainers group trajectories by it. A trajectory
    whose model call failed has no steps. In a file, `index`, `is_correct`, `terms` (as `signals`), `failure`
    and `masked` are in `info`, because rLLM's Trajectory has no fields for them.
    """

    name: str
    """Name of the role."""
    index: Annotated[int, Field(ge=1)] = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index is never used here
    """Number of the role's instance, from 1."""
    steps: Annotated[Sequence[Step], list_of(Step), AfterValidator(_by_round)] = ()
    """Model calls in the order in which they were made, over all rounds."""
    reward: Figure | None = None
    """Reward of the instance; None if its role has no reward."""
    is_correct: bool = False
    """True if the role's reward calls the answer right."""
    uid: str = ""
    """Identity of the trajectory in the whole run."""
    terms: Annotated[Mapping[str, Figure], Field(strict=False)] = NOTHING
    """Named parts of a composite reward."""
    failure: Failure | None = None
    """Failure of the instance; None if it gave a usable answer."""
    masked: bool = False
    """True if the trajectory is kept out of the gradient."""

    def __repr__(self) -> str:
        outcome = self.failure.name.value if self.failure else shortened(self.action)
        return f"<Trajectory {self.node}: {outcome}, reward {shortened(self.reward)}>"

    @property
    def node(self) -> NodeId:
        """Identity (role, instance) of the trajectory, with round 1."""
        return NodeId(self.name, self.index)

    @property
    def turns(self) -> list[Sequence[Step]]:
        """Steps of each turn with at least one step, oldest turn first."""
        return [tuple(steps) for _, steps in groupby(self.steps, key=lambda step: step.round)]

    @property
    def by_model(self) -> bool:
        """True if at least one step is a model's answer, False if all are runs of a tool."""
        return any(not step.tool for step in self.steps)

    @property
    def action(self) -> Any:
        """Action of the last step; None without steps."""
        return self.steps[-1].action if self.steps else None

    @property
    def is_unrated(self) -> bool:
        """True for an answer that did not fail but is masked without a reward, because its rating is
        missing."""
        return self.masked and self.reward is None and self.failure is None

    @property
    def remarks(self) -> list[str]:
        """Names of the remarks (`REMARKS`) that hold for the trajectory."""
        calls = [step.metadata for step in self.steps]
        is_truncated = any(call.get("finish_reason") == "length" for call in calls)
        is_unusable = any("unusable_numbers" in call for call in calls)
        conditions = self.is_unrated, is_truncated, is_unusable
        return [name for name, holds_true in zip(REMARKS, conditions, strict=True) if holds_true]

    @property
    def failed_by(self) -> FailureCause | None:
        """Cause of the failure; None without a failure.

        Failures of `form` can become fewer by training. In a failure of `world`, the weights gave no answer.
        In a failure of `reward`, it is unknown if the answer is right.
        """
        return self.failure and self.failure.name.cause

    @property
    def failure_line(self) -> str:
        """The failure on one line: name, message, place, and an excerpt of the last answer; empty without a
        failure."""
        if self.failure is None:
            return ""
        line = f"{self.failure.name.value}: {self.failure.message[:MESSAGE]}"
        if self.failure.place:
            line += f" ({self.failure.place[:PLACE]})"
        if not self.by_model:
            return line
        answer = " ".join(self.steps[-1].model_response.split())
        excerpt = (
            answer if len(answer) <= EXCERPT else f"{answer[: EXCERPT // 2]} … {answer[-EXCERPT // 2 :]}"
        )
        ending = ", cut off by max_tokens" if self.steps[-1].metadata.get("finish_reason") == "length" else ""
        return f"{line}, as in {excerpt!r}{ending}"

    @property
    def info(self) -> dict[str, Any]:
        """Values for a file's `info`, which rLLM's Trajectory has no fields for."""
        info: dict[str, Any] = {"index": self.index, "is_correct": self.is_correct}
        if self.terms:
            info["signals"] = dict(self.terms)
        if self.failure is not None:
            info["failure"] = self.failure.to_dict()
        if self.masked:
            info["masked"] = True
        return info

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a file, in the shape of `rllm.types.Trajectory.to_dict`."""
        return {
            "uid": self.uid,
            "name": self.name,
            "task": None,
            "steps": [step.to_dict() for step in self.steps],
            "reward": self.reward,
            "info": self.info,
        }

    @classmethod
    def _fields_of(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        info = _info_of(data)
        fields = {name: info[name] for name in ("index", "is_correct", "failure", "masked") if name in info}
        steps, withheld_steps = data.get("steps"), info.get(WITHHELD)
        if isinstance(steps, list) and isinstance(withheld_steps, list):
            steps = cast("list[object]", steps) + cast("list[object]", withheld_steps)
        return {**data, **fields, "terms": info.get("signals", NOTHING), "steps": steps}

    __get_pydantic_core_schema__ = classmethod(record_schema)


def _info_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `info` of a JSON object, empty if it is missing or null; raises ValueError for a list."""
    info: object = data.get("info")
    if not isinstance(info, Mapping | None):
        raise ValueError("info: expected an object")
    return cast("Mapping[str, Any]", info) if info else NOTHING


class Episode(NamedTuple):
    """One rollout of a workflow on one task. In a file, `metadata` is called `info`."""

    task_id: str
    """`id` of the task."""
    rollout: Annotated[int, Field(ge=0, lt=10**18)]
    """Number of the rollout, from 0."""
    task: Annotated[Task, Field(strict=False)]
    """Row of the dataset."""
    trajectories: Annotated[Sequence[Trajectory], list_of(Trajectory), AfterValidator(tuple)]
    """One trajectory for each role instance, in the order of the plan."""
    is_correct: bool = False
    """True if the episode's `correct` condition holds."""
    metrics: Annotated[Mapping[str, Figure], Field(strict=False)] = NOTHING
    """Values of the spec's metrics, by name."""
    termination_reason: Annotated[TerminationReason, BeforeValidator(_known_reason)] = (
        TerminationReason.ENV_DONE
    )
    """Reason why the episode ended; a reason of a later rLLM is read as `UNKNOWN`."""
    metadata: EpisodeMetadata = NO_METADATA
    """Further values by name, such as `uncomputed_metrics`; Rolegraph reads the keys of `EpisodeMetadata`."""

    @property
    def id(self) -> str:
        """Identity in rLLM's form, `task_id:rollout`."""
        return f"{self.task_id}:{self.rollout}"

    @property
    def figures(self) -> Mapping[str, float]:
        """Values that are averaged over episodes: the metrics, and `correct` if it is known."""
        return averaged(self.metrics, None if self.metadata.get("undecided") else self.is_correct)

    @property
    def failures(self) -> Mapping[NodeId, FailureMetadata]:
        """Failures of all turns, by role, instance and round."""
        failures = self.metadata.get("failures", ())
        return {NodeId(entry["role"], entry["index"], entry.get("round", 1)): entry for entry in failures}

    def __getitem__(self, role: str) -> Sequence[Trajectory]:  # pyright: ignore[reportIncompatibleMethodOverride]  # by name, not by place
        """Return the trajectories of a role, in order of `index` (one for each of its `count` instances).

        Args:
            role: Name of the role in the spec.

        Raises:
            KeyError: The episode has no trajectory of that role; the message lists the roles that it has.
        """
        trajectories = [trajectory for trajectory in self.trajectories if trajectory.name == role]
        if not trajectories:
            names = ", ".join(dict.fromkeys(trajectory.name for trajectory in self.trajectories))
            raise KeyError(f"{role!r}; the episode has {names}")
        return trajectories

    def summary(self) -> Summary:
        """Return the outcome and a row for each trajectory."""
        verdict = "correct" if self.is_correct else "not correct"
        verdict = "not judged" if self.metadata.get("undecided") else verdict
        rows = [
            (str(t.node), t.reward, t.failure.name.value if t.failure else t.action)
            for t in self.trajectories
        ]
        return Summary(f"Episode {self.id}: {verdict}", ("role", "reward", "action"), rows)

    def __repr__(self) -> str:
        return f"<{self.summary().title}>"

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        """Return the summary as a table, for a notebook."""
        return self.summary().html()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a file's line, in the shape of `rllm.types.Episode.to_dict`."""
        return {
            "id": self.id,
            "task": dict(self.task),
            "termination_reason": self.termination_reason.value,
            "is_correct": self.is_correct,
            "session_id": None,
            "trajectories": [trajectory.to_dict() for trajectory in self.trajectories],
            "metrics": dict(self.metrics),
            "info": {**self.metadata, "task_id": self.task_id, "rollout": self.rollout},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read an episode from the JSON object of a line of an episodes file.

        Args:
            data: Result of `to_dict` of Rolegraph or of `rllm.types.Episode`, or that result read from JSON.

        Returns:
            The episode, with the steps that `withheld_steps` hides from rLLM in their trajectories.

        Raises:
            ValueError: A field is missing, has another type, or holds a number that is not finite or is
                beyond 1e100; the message names the field.
        """
        return cast("Self", _ADAPTER.validate_python(data))

    @classmethod
    def _fields_of(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        metadata = dict(_info_of(data))
        # rLLM has both in the id alone, as did the first version of these files.
        match = re.fullmatch(r"(?s)(?P<task>.*):(?P<rollout>\d{1,18})", str(data.get("id")))
        if match is None:
            raise ValueError("id: expected a text of the form task:rollout")
        task_id, rollout = (
            metadata.pop("task_id", match["task"]),
            metadata.pop("rollout", int(match["rollout"])),
        )
        return {**data, "task_id": task_id, "rollout": rollout, "info": metadata}

    __get_pydantic_core_schema__ = classmethod(record_schema)


_ADAPTER = TypeAdapter(Episode, config=ConfigDict(defer_build=True))
"""Validator of episodes, built on first use because it is slow to build and most commands need none."""
