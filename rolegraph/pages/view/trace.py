"""Origin of an advantage: the group in which a turn was compared, as training recorded it.

Nothing is computed again: rewards, baselines, advantages and weights are those in the step's credit rows.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rolegraph.engine.records import Episode, NodeId, Step
from rolegraph.engine.records.credit import CreditRow, LeftOut
from rolegraph.engine.training.analysis.outcomes import advantages
from rolegraph.pages.view.runs import EpisodeLocation

ShownEpisodes = Mapping[tuple[str, int], tuple[EpisodeLocation, Episode]]
"""Episodes without the values that the page must not show, with their locations, by (task, rollout)."""
MOST_MEMBERS = 64
"""Largest number of members of a group that are listed."""


class GroupMember(NamedTuple):
    """Member of a group: a trajectory or a turn."""

    row: EpisodeLocation
    """Location of the member's episode."""
    node: NodeId
    """Turn of the member; if the member is a trajectory, its last turn."""
    credit: CreditRow
    mean_logprob: float | None
    answer: object
    """Action of the member's last step."""


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """Group in which a turn was compared."""

    size: int
    """Number of members, including those that are not listed."""
    roles: str
    """Names of the roles that are compared."""
    members: Sequence[GroupMember]
    """Members that are listed."""
    mine: GroupMember

    @property
    def ranked(self) -> list[GroupMember]:
        """The member on this page, then the others listed, those with the largest advantages first."""
        others = [member for member in self.members if member != self.mine]
        return [self.mine, *sorted(others, key=lambda it: -abs(it.credit.advantage or 0.0))]

    @property
    def too_small(self) -> bool:
        """True if the group has fewer members than the estimator needs."""
        return self.mine.credit.left_out is LeftOut.TOO_SMALL

    @property
    def of_turns(self) -> bool:
        """True if the members are turns, not trajectories."""
        return self.mine.credit.round > 0

    @property
    def learnt(self) -> bool:
        """True if any member has an advantage."""
        return any(member.credit.advantage is not None for member in self.members)


def groups_of(shown: EpisodeLocation, rows: Iterable[CreditRow]) -> dict[int, list[CreditRow]]:
    """Return the rows of the groups that compare an episode's turns, by number of the group."""
    rows = [row for row in rows if row.group is not None]
    episode_key = shown.entry.task, shown.entry.rollout
    groups = {row.group: list[CreditRow]() for row in rows if (row.task, row.rollout) == episode_key}
    for row in rows:
        if row.group in groups:
            groups[row.group].append(row)
    return {number: members for number, members in groups.items() if number is not None}


def traces(
    shown: EpisodeLocation, groups: Mapping[int, Sequence[CreditRow]], episodes: ShownEpisodes
) -> dict[NodeId, list[GroupTrace]]:
    """Return the groups in which an episode's turns were compared, by turn.

    Args:
        shown: The episode.
        groups: Result of `groups_of`.
        episodes: Episodes of the listed members, with the shown episode.
    """
    by_node: dict[NodeId, list[GroupTrace]] = {}
    episode_key = shown.entry.task, shown.entry.rollout
    for rows in groups.values():
        roles = " and ".join(dict.fromkeys(row.role for row in rows))
        listed_members = [member for row in rows[:MOST_MEMBERS] for member in _member(row, episodes)]
        for row in rows:
            if (row.task, row.rollout) == episode_key:
                for own_member in _member(row, episodes):
                    trace = GroupTrace(len(rows), roles, listed_members, own_member)
                    for node in _nodes(row, episodes[episode_key][1]):
                        by_node.setdefault(node, []).append(trace)
    return by_node


def _nodes(row: CreditRow, episode: Episode) -> list[NodeId]:
    """Return the turns that a credit row covers: one turn, or all turns of its trajectory."""
    if row.round:
        return [row.node]
    own_trajectories = (t for t in episode.trajectories if (t.name, t.index) == (row.role, row.index))
    rounds = dict.fromkeys(step.round for trajectory in own_trajectories for step in trajectory.steps)
    return [row.node._replace(round=round) for round in rounds]


def _member(row: CreditRow, episodes: ShownEpisodes) -> Iterator[GroupMember]:
    """Yield the member of a credit row; nothing if its episode is damaged or lacks the member."""
    if (row.task, row.rollout) not in episodes:
        return
    location, episode = episodes[row.task, row.rollout]
    for trajectory in episode.trajectories:
        if (trajectory.name, trajectory.index) != (row.role, row.index):
            continue
        if steps := [step for step in trajectory.steps if row.round in (0, step.round)]:
            node = trajectory.node._replace(round=steps[-1].round)
            logprobs = [value for step in steps for value in step.logprobs]
            mean = sum(logprobs) / len(logprobs) if logprobs else None
            yield GroupMember(location, node, row, mean, steps[-1].action)


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
"""Largest number of tokens of a response that are coloured."""


def tokens(step: Step, pieces: Sequence[str], scale: float) -> Iterator[SampledToken]:
    """Yield the tokens of a response with their colours; `scale` is the largest |advantage| of the page."""
    values, logprobs = step.advantages, step.logprobs
    for index, text in enumerate(pieces[:MOST_TOKENS]):
        advantage = values[index] if index < len(values) else None
        logprob = logprobs[index] if index < len(logprobs) else None
        tint = 0
        if advantage and scale:  # rounded away from 0, so that only 0 has no colour
            tint = int(math.copysign(min(3, math.ceil(abs(advantage) / scale * 3)), advantage))
        doubt = 0 if logprob is None else sum(logprob < bound for bound in _DOUBTS)
        yield SampledToken(text, logprob, advantage, f"a{tint}" if tint else "", f"p{doubt}" if doubt else "")


def greatest(steps: Iterable[Step]) -> float:
    """Return the largest |advantage| among the tokens of steps; 0 without advantages."""
    return max((abs(value) for value in advantages(steps)), default=0.0)
