"""What a run yields: Episode > Trajectory (one per role instance) > Step (one per model call).

Field names and the `to_dict` shape are rLLM's (`rllm.types`, 0.3.0), so that a file written here loads
there. Everything is immutable: a stage that changes something returns a new object (`_replace`). What every
model call makes is a NamedTuple, which costs a third of a frozen dataclass. This file knows nothing of specs,
models or estimators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self, cast

from rolegraph.engine.records.identity import GroupKey, NodeId

Task = Mapping[str, Any]
"""One row of a dataset. `id` is a string without a colon, unique in its dataset."""

Split = Literal["train", "validation"]
"""Which tasks: those to learn from, or those held out."""

Message = Mapping[str, Any]
"""One chat turn: `role` and `content`. On an assistant's turn `reasoning` where the model marks it, and
`tool_calls` as OpenAI has them; on a tool's `name` and `tool_call_id`."""

Advantage = Sequence[float] | float
"""A number for each of a step's T response tokens, or one for all of them."""

NOTHING: Mapping[str, Any] = {}
"""The default of what maps names to values; nobody writes into a record."""

WITHHELD = "withheld_steps"
"""The key of a trajectory's `info` for the steps that rLLM must not see, because it would train on them."""


class FailureName(StrEnum):
    """Why a role instance did not give a usable answer."""

    MALFORMED_OUTPUT = "malformed_output"
    """The parser found nothing it could read in the response."""

    UNPARSEABLE_CHOICE = "unparseable_choice"
    """A choice was given, but it names none of the candidates."""

    TIMEOUT = "timeout"
    """The model call, or that of a role's tool, took longer than the role's `timeout`."""

    MODEL_ERROR = "model_error"
    """The model gave no answer: refused, overloaded, unreachable."""

    PROMPT_ERROR = "prompt_error"
    """The prompt could not be rendered for this task."""

    TOOL_ERROR = "tool_error"
    """A tool could not do what it was asked, or could not be opened."""

    REWARD_ERROR = "reward_error"
    """The reward function raised, ran out of time, or returned something that is not a finite number."""

    CONTEXT_FULL = "context_full"
    """What the model would be asked leaves no room in its context for an answer."""

    ENVIRONMENT_ERROR = "environment_error"
    """The environment could not go on, which ended the episode; it is no fault of its players."""


class TerminationReason(StrEnum):
    """Why an episode ended; the values are rLLM's."""

    ENV_DONE = "env_done"
    """Every role instance ran."""

    TIMEOUT = "timeout"
    """A role with `on_failure: {then: fail}` ran out of time."""

    ERROR = "error"
    """A role with `on_failure: {then: fail}` failed in another way."""

    MAX_PROMPT_LENGTH_EXCEEDED = "max_prompt_length_exceeded"
    """rLLM's engine refused a prompt that is longer than its limit."""

    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    """Under rLLM: an answer was cut off at its limit, and could not be read."""

    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    """Of rLLM's own workflows: no turn was left."""

    UNKNOWN = "unknown"
    """rLLM has no name for it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One role instance's failure: its name, and a sentence for the person who reads the table."""

    name: FailureName
    message: str

    def to_dict(self) -> dict[str, str]:
        """`{"name", "message"}`."""
        return {"name": self.name.value, "message": self.message}


class Step(NamedTuple):
    """One model call, or what a role without a model did. T is the number of response tokens.

    `response_ids` and `logprobs` have length T, or 0 where the model gives none; `logprobs` are natural
    logs at the sampling temperature. `advantage` is None until an estimator or signal sets it: a number
    (meant for all T tokens) or T numbers. `metadata` may hold `usage`, an endpoint's own count of tokens,
    `tool`, what a role ran in place of a model, `started`, how many seconds after the episode it began, and
    `seconds`, how long it took.
    """

    prompt_ids: Sequence[int] = ()
    response_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    chat_completions: Sequence[Message] = ()
    thought: str = ""
    action: Any = None
    model_response: str = ""
    reward: float = 0.0
    done: bool = True
    advantage: Advantage | None = None
    weight_version: int | None = None
    metadata: Mapping[str, Any] = NOTHING

    @property
    def prompt_tokens(self) -> int:
        """How long the prompt was: by its ids, else as the endpoint counted; 0 where neither is known."""
        return len(self.prompt_ids) or self.usage.get("prompt_tokens", 0)

    @property
    def response_tokens(self) -> int:
        """T, or the endpoint's count of what it gave no ids of; 0 where neither is known."""
        return len(self.response_ids) or self.usage.get("completion_tokens", 0)

    @property
    def usage(self) -> Mapping[str, int]:
        """What an endpoint without ids counted: `prompt_tokens`, `completion_tokens`; else empty."""
        return self.metadata.get("usage") or NOTHING

    @property
    def round(self) -> int:
        """The round of its role's loop, from 1."""
        return self.metadata.get("round", 1)

    @property
    def tool(self) -> str:
        """What was run, where no model was asked; else empty."""
        return self.metadata.get("tool", "")

    @property
    def masked(self) -> bool:
        """Whether it belongs to a turn that is kept out of the gradient."""
        return self.metadata.get("masked", False)

    @property
    def advantages(self) -> Sequence[float]:
        """One for each response token, [T]; a number stands alone where there are no token ids."""
        if self.advantage is None:
            return ()
        if isinstance(self.advantage, Sequence):
            return self.advantage
        return (self.advantage,) * max(1, len(self.response_ids))

    def to_dict(self) -> dict[str, Any]:
        """The shape of `rllm.types.Step.to_dict`."""
        return {
            "prompt_ids": list(self.prompt_ids),
            "response_ids": list(self.response_ids),
            "logprobs": list(self.logprobs),
            "routing_matrices": None,
            "chat_completions": [dict(message) for message in self.chat_completions],
            "observation": None,
            "thought": self.thought,
            "action": self.action,
            "model_response": self.model_response,
            "model_output": None,
            "info": dict(self.metadata),
            "reward": self.reward,
            "done": self.done,
            "mc_return": 0.0,
            "advantage": plain_advantage(self.advantage),
            "weight_version": self.weight_version,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict`, ours or rLLM's, wrote."""
        return cls(
            prompt_ids=data["prompt_ids"],
            response_ids=data["response_ids"],
            logprobs=data["logprobs"],
            chat_completions=data["chat_completions"],
            thought=data.get("thought") or "",
            action=data.get("action"),
            model_response=data.get("model_response") or "",
            reward=data.get("reward", 0.0),
            done=data.get("done", True),
            advantage=data.get("advantage"),
            weight_version=data.get("weight_version"),
            metadata=data.get("info") or {},
        )


def plain_advantage(advantage: Advantage | None) -> list[float] | float | None:
    """As JSON and rLLM have it."""
    return list(advantage) if isinstance(advantage, Sequence) else advantage


class Trajectory(NamedTuple):
    """What one instance of a role did.

    `name` is the role's name, the same for each of its `count` instances: trainers group by it.
    `index` counts the instances from 1, as prompts and choices do. `terms` holds the named parts of a
    composite reward. A trajectory whose model call gave no answer has no steps. `masked` keeps it out of the
    gradient.
    """

    name: str
    index: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple's own is never used here
    steps: Sequence[Step] = ()
    reward: float | None = None
    is_correct: bool = False
    uid: str = ""
    terms: Mapping[str, float] = NOTHING
    failure: Failure | None = None
    masked: bool = False

    @property
    def node(self) -> NodeId:
        """Which role instance it is of."""
        return NodeId(self.name, self.index)

    @property
    def by_model(self) -> bool:
        """Whether a model answered: a role that runs a tool has none, and so is never compared."""
        return any(not step.tool for step in self.steps)

    @property
    def action(self) -> Any:
        """The last step's action; None where there is no step."""
        return self.steps[-1].action if self.steps else None

    @property
    def info(self) -> dict[str, Any]:
        """What rLLM's Trajectory has no field for."""
        info: dict[str, Any] = {"index": self.index, "is_correct": self.is_correct}
        if self.terms:
            info["signals"] = dict(self.terms)
        if self.failure is not None:
            info["failure"] = self.failure.to_dict()
        if self.masked:
            info["masked"] = True
        return info

    def to_dict(self) -> dict[str, Any]:
        """The shape of `rllm.types.Trajectory.to_dict`; what rLLM has no field for goes to `info`."""
        return {
            "uid": self.uid,
            "name": self.name,
            "task": None,
            "steps": [step.to_dict() for step in self.steps],
            "reward": self.reward,
            "info": self.info,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict`, ours or rLLM's, wrote."""
        info: Mapping[str, Any] = data.get("info") or {}
        failure = info.get("failure")
        withheld: Sequence[Mapping[str, Any]] = info.get(WITHHELD, ())
        steps = sorted(map(Step.from_dict, (*data["steps"], *withheld)), key=lambda step: step.round)
        return cls(
            name=data["name"],
            index=info.get("index", 1),
            steps=tuple(steps),
            reward=data["reward"],
            is_correct=info.get("is_correct", False),
            uid=data.get("uid", ""),
            terms=info.get("signals", {}),
            failure=Failure(FailureName(failure["name"]), failure["message"]) if failure else None,
            masked=info.get("masked", False),
        )


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """What is compared: of one role on one task, over all rollouts.

    G = count × K trajectories, fewer where some failed; or turns of them, each as a trajectory of its own
    with the Steps of that turn and the reward that it is credited with. `rollouts` tells the episode that
    each is from.
    """

    key: GroupKey
    trajectories: Sequence[Trajectory]
    rollouts: Sequence[int] = ()
    of_turns: bool = False
    """Whether its members are turns."""
    too_small: bool = False
    """Whether skips and failures left less than the role's estimator compares, so that it teaches nothing."""


class Episode(NamedTuple):
    """One rollout of a workflow on one task."""

    task_id: str
    rollout: int
    """From 0."""
    task: Task
    trajectories: Sequence[Trajectory]
    is_correct: bool = False
    metrics: Mapping[str, float] = NOTHING
    termination_reason: TerminationReason = TerminationReason.ENV_DONE
    metadata: Mapping[str, Any] = NOTHING

    @property
    def id(self) -> str:
        """As rLLM renders it: `task_id:rollout_idx`."""
        return f"{self.task_id}:{self.rollout}"

    def __getitem__(self, role: str) -> Sequence[Trajectory]:  # pyright: ignore[reportIncompatibleMethodOverride]  # not by place
        """The trajectories of a role, in order of index; raises KeyError where there is none."""
        found = [trajectory for trajectory in self.trajectories if trajectory.name == role]
        if not found:
            raise KeyError(
                f"{role!r}; there is {', '.join(dict.fromkeys(t.name for t in self.trajectories))}"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The shape of `rllm.types.Episode.to_dict`."""
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
        """Read what `to_dict`, ours or rLLM's, wrote."""
        metadata: dict[str, Any] = {**(data.get("info") or {})}
        # rLLM, and version 1, wrote both in the id alone.
        task_id, _, rollout = cast("str", data["id"]).rpartition(":")
        task_id, rollout = metadata.pop("task_id", task_id), int(metadata.pop("rollout", rollout))
        reason = data.get("termination_reason")
        known = {member.value for member in TerminationReason}
        return cls(
            task_id=task_id,
            rollout=rollout,
            task=data["task"],
            trajectories=tuple(Trajectory.from_dict(trajectory) for trajectory in data["trajectories"]),
            is_correct=data["is_correct"],
            metrics=data.get("metrics", {}),
            termination_reason=TerminationReason(reason) if reason in known else TerminationReason.ERROR,
            metadata=metadata,
        )
