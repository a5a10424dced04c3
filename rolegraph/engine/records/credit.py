"""Credit: the comparison of rewards, and the rows that show how a reward became part of the gradient.

Rewards are compared in groups. A member of a group is a trajectory, or one turn of it; an estimator turns the
rewards of a group into one advantage for each member. The advantages of a member in several groups are added,
each times the group's weight; a signal adds numbers for each token of a call; and the loss multiplies the sum
by its weight of policy and role. `Member` and `Group` are the arguments of estimators. `CreditRow` is a row
of the table in `credit/train-STEP.jsonl`: a member in one of its groups, a trajectory in no group, or a call
with a signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter

from rolegraph.engine.records.episode import NOTHING, Episode, Step, Trajectory
from rolegraph.engine.records.identity import Extent, GroupKey, NodeId
from rolegraph.engine.records.schema import Count, Figure, record_schema


class Member(NamedTuple):
    """Trajectory, or turn of a trajectory, that is compared in a group. A Step is one call of the model."""

    task: str
    """`id` of the task."""
    rollout: int
    """Rollout of the episode, from 0."""
    trajectory: Trajectory
    first: int
    """Index of the member's first Step in its trajectory, from 0."""
    last: int
    """Index after that of the member's last Step."""
    reward: float | None
    """Reward that the estimator compares: the trajectory's, or the credit of the turn."""
    round: int = 0
    """Round of a turn, from 1; 0 for a trajectory."""
    failed: bool = False
    """True if the turn, or the trajectory's last turn, failed."""
    number: int = 0
    """Number of the trajectory in the step, from 0."""

    @property
    def steps(self) -> Sequence[Step]:
        """Steps of the member."""
        return self.trajectory.steps[self.first : self.last]

    @property
    def role(self) -> str:
        """Name of the role."""
        return self.trajectory.name

    @property
    def index(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index is never used here
        """Number of the role's instance, from 1."""
        return self.trajectory.index

    @property
    def tokens(self) -> int:
        """Number of response tokens; 0 if the model returned none."""
        return sum(len(step.response_ids) for step in self.steps)

    def __str__(self) -> str:
        node = NodeId(self.role, self.index, self.round or 1)
        return f"{node}, task {self.task}, rollout {self.rollout}"


@dataclass(frozen=True, slots=True)
class Group:
    """Members that are compared with each other.

    By default they are the trajectories of one role on one task: G = count * K for K rollouts, fewer where
    some failed.
    """

    key: GroupKey
    """Identity of the group: the properties that its members share."""
    members: Sequence[Member]
    """Members, G of them, in the order of their episodes."""
    role: str
    """Role whose estimator compares the members. A group over several roles exists once for each role; the
    other roles' members count for its baseline, and get their advantages from their own estimators."""
    number: int = 0
    """Number of the group in the step, from 0; a group over several roles has one number."""
    too_small: bool = False
    """True if skips and failures left fewer members than the estimator needs, so that all advantages are
    0."""
    by: str = "task"
    """Property that the members share, as the spec's key `by` states it."""
    over: Extent = Extent.TASK
    """Tasks whose members are compared."""
    weight: float = 1.0
    """Factor by which the group's advantages are multiplied."""
    in_list: bool = False
    """True if the role has several groupings, whose advantages are added."""
    state_keys: Sequence[str] = ()
    """Key of each member's estimator state, [G]; empty if the role has a single state."""

    @property
    def part(self) -> str:
        """Key of the role's grouping, for estimators that treat groupings separately: its position, or
        `episode`."""
        return str(self.key.part) if self.key.role else "episode"

    @property
    def places(self) -> Sequence[int]:
        """Positions of the members of `role`, which get advantages here."""
        if self.key.role:
            return range(len(self.members))
        return [index for index, member in enumerate(self.members) if member.role == self.role]


class LeftOut(StrEnum):
    """Reason why the reward of a row is not part of the gradient."""

    TOO_SMALL = "too_small"
    """The group has fewer members than the estimator needs."""
    NO_KEY = "no_key"
    """The expression of the grouping cannot be computed for the turn."""
    MASKED = "masked"
    """The trajectory or turn is kept out of the gradient, because it failed or its rating is missing."""
    UNANSWERED = "unanswered"
    """No call of the trajectory was answered."""
    PAST_SELF = "past_self"
    """A past self of the policy answered."""

    @classmethod
    def of(cls, trajectory: Trajectory, *, is_past: bool) -> LeftOut | None:
        """Return the reason why a whole trajectory is in no group; None if it can be compared."""
        if trajectory.masked or not trajectory.by_model:
            return cls.MASKED if trajectory.masked else cls.UNANSWERED
        return cls.PAST_SELF if is_past else None


Source = Literal["estimator", "signal", "demonstration"]


class CreditRow(NamedTuple):
    """Row of the credit table.

    A call's advantage is the sum of weight * advantage over the rows that cover it; a demonstration replaces
    all other rows, and a masked turn has no advantage. The loss multiplies it by `loss_weight`.
    """

    step: Count
    """Training step, from 1."""
    task: str
    """`id` of the task."""
    rollout: Count
    """Rollout of the episode, from 0."""
    role: str
    index: Annotated[int, Field(ge=1)]  # pyright: ignore[reportIncompatibleMethodOverride]
    """Number of the role's instance, from 1."""
    round: Count
    """Round of a turn, from 1; 0 for a trajectory."""
    call: Count
    """Number of a call among the trajectory's Steps, from 1; 0 for all calls of the turn or trajectory."""
    policy: str
    """Policy whose weights answered."""
    source: Source
    """Origin of the advantage: estimator, signal or demonstration."""
    left_out: Annotated[LeftOut | None, Field(strict=False)] = None
    """Reason why the reward has no part in the gradient."""
    group: Count | None = None
    """Number of the group in the step, from 0; null for a row in no group."""
    grouping: Count | None = None
    """Position of the grouping in the role's list, from 0; null for a group over several roles."""
    by: str | None = None
    """Property that the members of the group share: `task`, `turn` (a round), `prompt`, `episode` (over the
    roles of a policy), or the text of an expression with equal values."""
    over: Annotated[Extent, Field(strict=False)] = Extent.TASK
    """Tasks whose members are compared, as the spec's key `over` states it."""
    reward: Figure | None = None
    """Reward that is compared: the trajectory's, or the credit of the turn."""
    terms: Annotated[Mapping[str, Figure], Field(strict=False)] = NOTHING
    """Named parts of a trajectory's reward, unweighted."""
    baseline: Figure | None = None
    """Number that the estimator subtracted, in units of the reward; null if it reports none."""
    advantage: Figure | None = None
    """Mean of the advantage over the tokens, before `weight`; null without an advantage."""
    low: Figure | None = None
    """Smallest advantage of a token."""
    high: Figure | None = None
    """Largest advantage of a token."""
    weight: Figure = 1.0
    """Factor of the advantage among the role's groupings."""
    gate: Figure | None = None
    """Factor by which the signal's advantages were multiplied; `advantage` already includes the factor, and
    the centering."""
    loss_weight: Figure | None = None
    """Factor of the advantage in the policy's loss: the role's weight divided by the weights of all compared
    trajectories of the policy; null for a row in no group, and if the update does not use the task."""
    tokens: Count = 0
    """Number of response tokens."""
    failed: bool = False
    """True if the turn, or the trajectory's last turn, failed."""

    @property
    def node(self) -> NodeId:
        """Identity of the row's turn; for a trajectory, of its first round."""
        return NodeId(self.role, self.index, self.round or 1)

    @classmethod
    def in_no_group(cls, step: int, episode: Episode, trajectory: Trajectory, policy: str) -> CreditRow:
        """Return the credit row of a whole trajectory without a group or advantage, from which other rows are
        made."""
        return cls(
            step,
            episode.task_id,
            episode.rollout,
            trajectory.name,
            trajectory.index,
            round=0,
            call=0,
            policy=policy,
            source="estimator",
            reward=trajectory.reward,
            terms=trajectory.terms,
            tokens=sum(call.response_tokens for call in trajectory.steps),
            failed=trajectory.failure is not None,
        )

    __get_pydantic_core_schema__ = classmethod(record_schema)


_ROW = TypeAdapter(CreditRow, config=ConfigDict(defer_build=True))


def parse_credit(line: bytes) -> CreditRow:
    """Parse a line of a file of credit; raises ValueError with the invalid field."""
    return _ROW.validate_json(line)
