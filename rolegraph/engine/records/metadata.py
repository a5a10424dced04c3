"""Keys of the metadata of Steps and Episodes that Rolegraph reads, each with its type.

`Step.metadata` and `Episode.metadata` are open: programs add keys of their own, which a file keeps as they
are. A key that is named here is checked when a file of episodes is read, and type checkers know its values.
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
    """Message of the call's failure; missing where it succeeded."""


@with_config(_OPEN)
class DemonstrationMetadata(TypedDict, total=False, extra_items=Any):
    """Turn that is imitated in place of the sampled answer."""

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
    """Counts of a call by an endpoint, where it gives them."""

    prompt_tokens: OnErrorOmit[Count]
    completion_tokens: OnErrorOmit[Count]
    cost: OnErrorOmit[Annotated[Figure, Field(ge=0)]]
    """Dollars."""


@with_config(_OPEN)
class StepMetadata(TypedDict, total=False, extra_items=Any):
    """Keys of `Step.metadata` that Rolegraph reads."""

    round: Annotated[Count, Field(ge=1)]
    """Round of the role's loop, from 1; missing outside of loops."""
    tool: str
    """Name of the tool that ran in place of a model."""
    started: Figure | None
    """Seconds between the episode's start and the call's."""
    seconds: Figure
    """Duration of the call."""
    attempts: Count
    """Number of attempts of the call, where there were several."""
    masked: bool
    """True where the turn is kept out of the gradient."""
    finish_reason: str | None
    """Reason why the answer ended, such as `stop` or `length`."""
    special_tokens: Annotated[Sequence[str], list_of(str)]
    """Special tokens that were sampled within the answer, whose text leaves them out."""
    usage: UsageMetadata | None
    """Tokens and dollars as counted by an endpoint that returns no token ids."""
    unusable_numbers: Annotated[Sequence[str], list_of(str)]
    """Descriptions of numbers that the model gave and that are left out, such as `log-probability nan`."""
    calls: Annotated[Sequence[FunctionCallMetadata], list_of(FunctionCallMetadata)]
    """Functions that the answer called, in order."""
    by: Mapping[str, str | None] | None
    """Digest of each expression that the role's turns are grouped by; None where it cannot be computed."""
    word_rewards: Mapping[str, Figure]
    """Reward that each answer which the parser allows would have had, by answer, on the turn's last call."""
    signal: Figure | None
    """Mean over the tokens of the signal's part of the advantage."""
    gate: Figure | None
    """Factor of the signal on the turn."""
    staleness: int
    """Number of updates between the weights that answered and those that learn."""
    forked: TurnMetadata
    """Turn of another role from whose conversation the turn goes on; missing where it is the turn's own."""
    restarted: bool
    """True where the turn began its conversation anew (`memory.reset`)."""
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
    """File, line and text of the line of the user's code that raised; missing where none did."""


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
    """Step that expressions read, from 0: that of the training, or outside of it the last."""
    started_at: Figure
    """Start of the episode, in seconds since 1970."""
    failures: Annotated[Sequence[FailureMetadata], list_of(OnErrorOmit[FailureMetadata])]
    """Failures of all turns, oldest first. Entries of another form, as other writers may have, are left
    out."""
    rounds: Mapping[str, Count]
    """By loop, the number of rounds that it ran."""
    skipped: Mapping[str, Figure]
    """By role, the share of its turns that were skipped."""
    undecided: bool
    """True where it is not known whether the episode is correct, because a reward that decides it failed, or
    reads a turn that failed; `is_correct` is then False, and the episode has no part in the mean."""
    validation: bool
    """True for an episode of rLLM's validation."""


NO_METADATA: Any = {}
"""Empty metadata of both kinds. Shared by all records, so it must not be written to."""
