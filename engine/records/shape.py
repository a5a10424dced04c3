"""What a line of a file of episodes has to be, whoever wrote it: the types of every part that is read of it.

It is held against a line once, where that is read; all that stands above may rely on it. What is not named
here is kept as it is. Numbers are finite.
"""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from rolegraph.engine.records.episode import FailureName
from rolegraph.engine.records.info import Figure


def _list_of(what: str, *kinds: type) -> PlainValidator:
    """An episode may have millions of numbers, which the library would hold twice."""

    def check(value: object) -> object:
        if not isinstance(value, list) or not {*map(type, cast("list[object]", value))} <= {*kinds}:
            raise ValueError(f"it should be a list of {what}")
        return cast("object", value)

    return PlainValidator(check)


_Ids = Annotated[list[int], _list_of("whole numbers", int)]
_Floats = Annotated[list[float], _list_of("numbers", int, float)]
_Number = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)


class _Function(_Part):
    name: str
    arguments: str


class _ToolCall(_Part):
    id: str | None = None
    function: _Function


class _Message(_Part):
    role: str
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Group(_Part):
    model_config = ConfigDict(extra="forbid")
    policy: str = ""
    round: int = 0
    prompt: str = ""


class _StepInfo(_Part):
    round: _Number = 1
    tool: str = ""
    started: Figure | None = None
    seconds: Figure = 0.0
    masked: bool = False
    usage: dict[str, int] | None = None
    credit: Figure | None = None
    group: _Group = _Group()


class _Step(_Part):
    prompt_ids: _Ids
    response_ids: _Ids
    logprobs: _Floats
    chat_completions: list[_Message]
    thought: str | None = None
    model_response: str | None = None
    reward: Figure | None = None
    done: bool = True
    advantage: list[Figure] | Figure | None = None
    weight_version: int | None = None
    info: _StepInfo | None = None


class _Failure(_Part):
    name: Annotated[FailureName, Field(strict=False)]
    message: str


class _TrajectoryInfo(_Part):
    index: _Number = 1
    is_correct: bool = False
    signals: dict[str, Figure] = {}
    failure: _Failure | None = None
    masked: bool = False
    withheld_steps: list[_Step] = []


class _Trajectory(_Part):
    name: str
    uid: str = ""
    steps: list[_Step]
    reward: Figure | None
    info: _TrajectoryInfo | None = None


class _EpisodeInfo(_Part):
    task_id: str = ""
    rollout: Annotated[int, Field(ge=0)] = 0


class WrittenEpisode(_Part):
    """An episode as `Episode.from_dict` reads it."""

    id: Annotated[str, Field(pattern=r":\d{1,18}$")]
    """`task:rollout`."""
    task: dict[str, object]
    termination_reason: str | None = None
    is_correct: bool
    trajectories: list[_Trajectory]
    metrics: dict[str, Figure] = {}
    info: _EpisodeInfo | None = None
