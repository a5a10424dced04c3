"""Keys of the metadata of Steps and Episodes that Rolegraph reads, each with its type.

`Step.metadata` and `Episode.metadata` are open: programs may add keys, which a file keeps unchanged. A key of
this file is checked when a file of episodes is read, and type checkers know its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Required

from pydantic import ConfigDict, Field, OnErrorOmit, with_config
from typing_extensions import TypedDict  # pydantic reads that of `typing` only from Python 3.12 on

from rolegraph.engine.records.schema import TOKEN_IDS, Count, Figure, list_of

_OPEN = ConfigDict(strict=True, extra="allow")


@with_config(_OPEN)
class FunctionCallMetadata(TypedDict, total=False, extra_items=Any):
    """Function of a tool that an answer called."""

    name: Required[str]
    """Name of the function."""
    error: str
    """Message of the call's failure; missing if the call succeeded."""


@with_config(_OPEN)
class DemonstrationMetadata(TypedDict, total=False, extra_items=Any):
    """Turn to imitate in place of the sampled answer."""

    text: Required[str]
    """Text of the turn."""
    ids: Required[Annotated[Sequence[int], TOKEN_IDS]]
    """Token ids of the turn."""


@with_config(ConfigDict(strict=True, extra="forbid"))
class TurnMetadata(TypedDict):
    """Identity of a turn, as a NodeId."""

    role: str
    index: Annotated[Count, Field(ge=1)]
    round: Annotated[Count, Field(ge=1)]


@with_config(ConfigDict(extra="allow", defer_build=True))
class UsageMetadata(TypedDict, total=False):
    """Counts of a call as the endpoint reports them."""

    prompt_tokens: OnErrorOmit[Count]
    completion_tokens: OnErrorOmit[Count]
    cost: OnErrorOmit[Annotated[Figure, Field(ge=0)]]
    """Cost in dollars."""


@with_config(_OPEN)
class StepMetadata(TypedDict, total=False, extra_items=Any):
    """Keys of `Step.metadata` that Rolegraph reads."""

    round: Annotated[Count, Field(ge=1)]
    """Round of the role's loop, from 1; missing outside of loops."""
    tool: str
    """Name of the tool that ran in place of a model."""
    started: Figure | None
    """Start of the call, in seconds after the episode's start."""
    seconds: Figure
    """Duration of the call."""
    attempts: Count
    """Number of attempts of the call; missing for a single attempt."""
    masked: bool
    """True if the turn is kept out of the gradient."""
    finish_reason: str | None
    """Reason why the answer ended, such as `stop` or `length`."""
    special_tokens: Annotated[Sequence[str], list_of(str)]
    """Special tokens that were sampled within the answer; the recorded text leaves them out."""
    usage: UsageMetadata | None
    """Tokens and dollars as counted by an endpoint that returns no token ids."""
    unusable_numbers: Annotated[Sequence[str], list_of(str)]
    """Descriptions of numbers of the model that were left out, such as `log-probability nan`."""
    calls: Annotated[Sequence[FunctionCallMetadata], list_of(FunctionCallMetadata)]
    """Functions that the answer called, in order."""
    by: Mapping[str, str | None] | None
    """Digest of each expression by which the role's turns are grouped; None if an expression cannot be
    computed."""
    word_rewards: Mapping[str, Figure]
    """Reward that each answer allowed by the parser would have earned, by answer; on the turn's last call."""
    signal: Figure | None
    """Mean over the tokens of the signal's share of the advantage."""
    gate: Figure | None
    """Factor of the signal on the turn."""
    staleness: int
    """Number of updates between the weights that answered and those that learn."""
    forked: TurnMetadata
    """Turn of another role whose conversation the turn continues; missing if it continues its own."""
    restarted: bool
    """True if the turn began its conversation anew (`memory.reset`)."""
    demonstration: DemonstrationMetadata
    """Turn to imitate in place of the answer."""


@with_config(_OPEN)
class FailureMetadata(TypedDict, total=False, extra_items=Any):
    """Failure of a turn."""

    role: Required[str]
    """Name of the role."""
    index: Required[Count]
    """Number of the role's instance, from 1."""
    round: Count
    """Round of the role's loop, from 1; missing outside of loops."""
    name: Required[str]
    """Value of a FailureName."""
    message: Required[str]
    """Explanation in one sentence."""
    place: str
    """File, line and text of the user's code that raised an error; missing if no such code did."""


@with_config(_OPEN)
class EpisodeMetadata(TypedDict, total=False, extra_items=Any):
    """Keys of `Episode.metadata` that Rolegraph reads."""

    spec: str
    """Name of the spec."""
    hash: str
    """Hash of the plan."""
    scheduled: Mapping[str, Figure]
    """Values of numbers that follow the step, by path, such as `roles.solver.weight`."""
    step: Count
    """Step that expressions read, from 0: the training's step, or outside of a training the last step."""
    started_at: Figure
    """Start of the episode, in seconds since 1970."""
    failures: Annotated[Sequence[FailureMetadata], list_of(OnErrorOmit[FailureMetadata])]
    """Failures of all turns, oldest first. Entries in another form, which other programs may write, are left
    out."""
    rounds: Mapping[str, Count]
    """Number of rounds that each loop ran."""
    skipped: Mapping[str, Figure]
    """Share of skipped turns of each role, from 0 to 1."""
    undecided: bool
    """True if it is unknown whether the episode is correct, because a reward that decides it failed, or reads
    a failed turn; `is_correct` is then False, and the mean leaves the episode out."""
    validation: bool
    """True for an episode of rLLM's validation."""


NO_METADATA: Any = {}
"""Empty metadata of steps and episodes. It is shared by all records, so nothing may write to it."""
