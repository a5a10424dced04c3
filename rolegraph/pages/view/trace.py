"""Origin of an advantage: the group in which a turn was compared, as training recorded it.

Nothing is computed anew. Who was compared with whom is what `credit.on_record` reads, and the
reward, baseline, advantage and loss weight are those that the estimator and the loss were given. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rolegraph.engine.compile.leaving import LEFT_OUT
from rolegraph.engine.records import Episode, GroupKey, NodeId, Step
from rolegraph.engine.training.advantages.credit import RecordedMember, on_record, turns
from rolegraph.engine.training.analysis.outcomes import advantages
from rolegraph.pages.view.runs import EpisodeLocation


class GroupMember(NamedTuple):
    """Member of a group: a trajectory or a turn."""

    row: EpisodeLocation
    """Location of the member's episode."""
    node: NodeId
    """Turn of the member; for a trajectory its last turn."""
    reward: float | None
    """Reward that the member is credited with."""
    baseline: float | None
    """Baseline that the estimator subtracted; None where it is not recorded."""
    advantage: float | None
    """Mean advantage over the tokens; None without an advantage."""
    low: float
    high: float
    """Largest advantage of a token; `low` is the smallest."""
    loss_weight: float | None
    """Factor of each token's advantage in the loss."""
    weight: float
    """Factor of this group's advantage among the groups of its role."""
    tokens: int
    mean_logprob: float | None
    answer: object
    """Action of the member's last step."""


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """Group in which a turn was compared."""

    key: GroupKey
    members: Sequence[GroupMember]
    mine: GroupMember
    too_small: bool
    of_turns: bool
    """Whether the members are turns and not trajectories."""

    @property
    def roles(self) -> str:
        """Names of the roles that are compared."""
        return " and ".join(dict.fromkeys(member.node.role for member in self.members))

    @property
    def learnt(self) -> bool:
        """True where any member has an advantage."""
        return any(member.advantage is not None for member in self.members)


def traces(
    row: EpisodeLocation, episodes: Sequence[tuple[EpisodeLocation, Episode]]
) -> dict[NodeId, list[GroupTrace]]:
    """Return by turn the groups in which an episode's turns were compared, with all members.

    `episodes` are all episodes of the same task and step, or where `spans_tasks` of the step.
    """
    groups: dict[GroupKey, list[GroupMember]] = {}
    mine: list[tuple[RecordedMember, GroupMember]] = []
    for other, episode in episodes:
        for recorded in on_record(episode):
            if recorded.key.by == LEFT_OUT:  # nothing tells its groups apart
                continue
            member = _compared(other, recorded)
            groups.setdefault(recorded.key, []).append(member)
            if other[:2] == row[:2]:
                mine.append((recorded, member))
    by_node: dict[NodeId, list[GroupTrace]] = {}
    for (key, trajectory, notes), member in mine:
        too_small, of_turns = notes.get("too_small", False), "credit" in notes
        trace = GroupTrace(key, groups[key], member, too_small, of_turns)
        for steps in turns(trajectory):
            by_node.setdefault(trajectory.node._replace(round=steps[0].round), []).append(trace)
    return by_node


def spans_tasks(episode: Episode) -> bool:
    """Return True if a turn of an episode was compared with turns of other tasks."""
    return any(not recorded.key.task for recorded in on_record(episode))


def _compared(row: EpisodeLocation, recorded: RecordedMember) -> GroupMember:
    member, values = recorded.member, recorded.advantages
    logprobs = [value for step in member.steps for value in step.logprobs]
    return GroupMember(
        row=row,
        node=member.node._replace(round=member.steps[-1].round),
        reward=member.reward,
        baseline=recorded.metadata.get("baseline"),
        advantage=sum(values) / len(values) if values else None,
        low=min(values, default=0.0),
        high=max(values, default=0.0),
        loss_weight=member.steps[0].metadata.get("loss_weight"),
        weight=recorded.metadata.get("weight", 1.0),
        tokens=sum(step.response_tokens for step in member.steps),
        mean_logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        answer=member.steps[-1].action,
    )


class SampledToken(NamedTuple):
    """One sampled token of a response, with its text, probability, advantage and colour."""

    text: str
    logprob: float | None
    advantage: float | None
    tint: str
    """CSS class of the colour, `a-3` to `a3` by advantage."""
    doubt: str
    """CSS class of the underline, `p0` (nearly certain) to `p4`, by log-probability."""


_DOUBTS = (-0.1, -0.7, -2.0, -5.0)
MOST_TOKENS = 3_000
"""Number of tokens of a response that are coloured."""


def tokens(step: Step, pieces: Sequence[str], scale: float) -> Iterator[SampledToken]:
    """Yield the tokens of a response with their colours; `scale` is the largest |advantage| of the page."""
    values, logprobs = step.advantages, step.logprobs
    for place, text in enumerate(pieces[:MOST_TOKENS]):
        advantage = values[place] if place < len(values) else None
        logprob = logprobs[place] if place < len(logprobs) else None
        tint = 0
        if advantage and scale:  # rounded away from 0, so that only 0 has no colour
            tint = int(math.copysign(min(3, math.ceil(abs(advantage) / scale * 3)), advantage))
        doubt = 0 if logprob is None else sum(logprob < bound for bound in _DOUBTS)
        yield SampledToken(text, logprob, advantage, f"a{tint}" if tint else "", f"p{doubt}" if doubt else "")


def greatest(steps: Iterable[Step]) -> float:
    """Return the largest |advantage| among the tokens of steps; 0 without advantages."""
    return max((abs(value) for value in advantages(steps)), default=0.0)
