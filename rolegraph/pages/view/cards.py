"""Content of an episode's page: a card for each turn, with its calls and the groups that compare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import Episode, Message, NodeId
from rolegraph.engine.spec import Spec
from rolegraph.pages.report.digest import clipped, plain_answer, question
from rolegraph.pages.view.runs import EpisodeLocation, ViewedRun
from rolegraph.pages.view.texts import Mark, verdict
from rolegraph.pages.view.timeline import WIDTH, Dag, Timeline, timeline
from rolegraph.pages.view.trace import (
    MOST_MEMBERS,
    GroupTrace,
    SampledToken,
    greatest,
    groups_of,
    tokens,
    traces,
)
from rolegraph.pages.view.turns import CallRecord, TurnRecord, turns

MOST_CARDS = 150
"""Largest number of turns on an episode's page."""
_KNOWN = ("spec", "hash", "failures", "started_at")
"""Keys of an episode's metadata that are shown elsewhere on the page."""


class CallCard(NamedTuple):
    """One model call of a turn for the page: its record, and its response's tokens with colours."""

    asked: CallRecord
    tokens: Sequence[SampledToken]
    left_out: int
    """Number of tokens that are not shown."""
    has_texts: bool
    """False if tokens are shown as ids, in which case the recorded answer is shown next to them."""


class TurnCard(NamedTuple):
    """One turn of an episode for the page: its calls, and the groups that it was compared in."""

    turn: TurnRecord
    name: str
    anchor: str
    calls: Sequence[CallCard]
    compared: Sequence[tuple[GroupTrace, str]]
    """Groups that compare the turn, each with the anchor of the card that shows the group's table."""
    colour: str = ""
    """CSS class of the role's colour on the time line."""
    picked: Sequence[str] = ()
    """Names of the turns whose answer the turn chose; several turns if they have the same answer."""

    @property
    def advantage(self) -> float | None:
        """Weighted sum of the advantages in all groups; None without an advantage."""
        rows = [trace.mine.credit for trace, _ in self.compared if trace.mine.credit.advantage is not None]
        return sum(member.weight * (member.advantage or 0.0) for member in rows) if rows else None

    @property
    def signal(self) -> float | None:
        """Mean over the tokens of the advantages that a signal added; None without added advantages."""
        signals = [(call.asked.step.metadata.get("signal"), call.asked.step) for call in self.calls]
        means = [(value, step.response_tokens) for value, step in signals if value is not None]
        return sum(value * n for value, n in means) / max(1, sum(n for _, n in means)) if means else None

    @property
    def gate(self) -> float | None:
        """Factor of the signal's advantages on the turn; None without a gate."""
        return next(
            (value for it in self.calls if (value := it.asked.step.metadata.get("gate")) is not None), None
        )

    @property
    def prompt(self) -> Sequence[Message]:
        """Messages that the first call asks; empty without a call."""
        return self.calls[0].asked.prompt if self.calls else ()

    @property
    def answer(self) -> str:
        """Parsed answer of the turn, in a few words; empty without a call."""
        return plain_answer(self.calls[-1].asked.step.action) if self.calls else ""

    @property
    def mark(self) -> Mark | None:
        """Sign of a right, wrong or failed turn; None for a turn that was not judged."""
        judged_trajectory = self.turn.trajectory if self.turn.is_last else None
        return verdict(judged_trajectory, failed=self.turn.failure is not None)

    @property
    def has_rounds(self) -> bool:
        """True where the turn belongs to a role in a loop, so that its round is shown."""
        return self.turn.node.round > 1 or any("round" in call.asked.step.metadata for call in self.calls[:1])


@dataclass(frozen=True, slots=True)
class EpisodePage:
    """Content of the page of an episode."""

    row: EpisodeLocation
    episode: Episode
    anchor: str
    line: Timeline
    cards: Sequence[TurnCard]
    start: int
    turns: int
    """Number of all turns of the episode."""
    question: str
    """Question of the task, or else its id."""
    metrics: Sequence[tuple[str, float]]
    """Metrics of the episode; of metrics that are equal in every episode of the run, only the first."""
    fields: Sequence[tuple[str, str, bool]]
    """(name, value, True if it is hidden from prompts) of each other field of the task."""
    notes: Sequence[tuple[str, str]]
    """Facts of the episode that are not shown elsewhere, such as the rounds of its loops."""
    axis: float = 0.0
    """Smallest length of the time line's axis, in seconds, so that two episodes side by side share a
    scale."""

    @property
    def before(self) -> int:
        """Number of turns before the first card of the previous page."""
        return max(0, self.start - MOST_CARDS)

    @property
    def after(self) -> int:
        """Number of turns before the first card of the next page."""
        return self.start + len(self.cards)

    @property
    def left(self) -> int:
        """Number of the episode's turns after those shown on the page."""
        return self.turns - self.after

    @property
    def anchors(self) -> Mapping[NodeId, str]:
        """Anchor of each card by its turn, for the time line to link to."""
        return {card.turn.node: card.anchor for card in self.cards}

    @property
    def seconds(self) -> float:
        """Length of the time line's axis, in seconds."""
        return max(self.line.length, self.axis)

    @property
    def scale(self) -> float:
        """Units of the time line's picture for each second."""
        return WIDTH / (self.seconds or 1)

    def to_scale_of(self, line: Timeline) -> EpisodePage:
        """Return the page with an axis at least as long as `line`; unchanged if only one of the two time
        lines has times."""
        return replace(self, axis=line.length) if line.timed == self.line.timed else self


class EpisodeColumn(NamedTuple):
    """An episode that is shown side by side with another."""

    number: int
    """Number of the episode's run."""
    name: str
    """Name of the episode's run."""
    run: ViewedRun
    shown: EpisodePage


class TurnPair(NamedTuple):
    """The same turn in two episodes; None for an episode without it."""

    cards: tuple[TurnCard | None, TurnCard | None]

    @property
    def name(self) -> str:
        """Name of the turn's role instance, with its round in a loop."""
        card = next(card for card in self.cards if card is not None)
        return f"{card.name}, round {card.turn.node.round}" if card.has_rounds else card.name


def anchor_of(run: int, row: EpisodeLocation) -> str:
    """Return an episode's HTML id in a page with several, such as `e0-episodes-12`."""
    return f"e{run}-{row.part.name}-{row.number}"


def turn_anchor(episode: str, node: NodeId) -> str:
    """Return the HTML id of a turn's card, such as `e0-episodes-12-solver-1-1`, in that of its episode."""
    return f"{episode}-{node.role}-{node.index}-{node.round}"


def episode_page(
    run: ViewedRun, row: EpisodeLocation, anchor: str, start: int, *, hidden: bool
) -> EpisodePage:
    """Read an episode and return the content of its page; raises DataError.

    Args:
        run: Run of the episode.
        row: Location of the episode.
        anchor: HTML id of the episode, with which the ids of its cards begin.
        start: Number of turns before the first card.
        hidden: True to show hidden task fields and texts that may quote them.
    """
    episode, group_traces = read_traces(run, row, hidden=hidden)
    taken_turns = turns(episode)
    roles = run.spec.roles.items() if run.spec is not None else ()
    called_roles = frozenset(name for name, role in roles if role.callable is not None)
    timeline_ = timeline(run.dag, taken_turns, called_roles)
    shown_nodes = timeline_.order[start : start + MOST_CARDS]
    anchors = {node: turn_anchor(anchor, node) for node in shown_nodes}
    names = {lane.instance: lane.name for lane in timeline_.lanes}
    colours = {lane.instance: timeline_.colours[lane.instance[0]] for lane in timeline_.lanes}
    tables = _groups(group_traces, anchors)
    scale = greatest(step for trajectory in episode.trajectories for step in trajectory.steps)
    cards = [
        TurnCard(
            taken_turns[node],
            names.get(node[:2], f"{node.role} {node.index}"),
            anchors[node],
            [_call(run, node, model_call, scale) for model_call in taken_turns[node].calls],
            tables[node],
            colours.get(node[:2], ""),
            [names.get(other[:2], str(other)) for other in _picked(node, taken_turns, run.dag, run.spec)],
        )
        for node in shown_nodes
    ]
    asked_text = question(run.info.visible(episode.task), row.entry.task)
    return EpisodePage(
        row=row,
        episode=episode,
        anchor=anchor,
        line=timeline_,
        cards=cards,
        start=start,
        turns=len(timeline_.order),
        metrics=[(it, episode.metrics[it]) for it, *_ in run.equal_figures() if it in episode.metrics],
        fields=[
            (name, clipped(value, 2000), run.info.is_hidden(name))
            for name, value in episode.task.items()
            if name != "id" and value != asked_text
        ],
        question=asked_text,
        notes=[(key, clipped(v, 400, digits=6)) for key, v in episode.metadata.items() if key not in _KNOWN],
    )


def read_traces(
    run: ViewedRun, row: EpisodeLocation, *, hidden: bool
) -> tuple[Episode, dict[NodeId, list[GroupTrace]]]:
    """Read an episode; return the episode, and by turn the groups in which it was compared.

    Args:
        run: Run of the episode.
        row: Location of the episode.
        hidden: True to include hidden task fields and texts that may quote them.

    Raises:
        DataError: A file cannot be read.
    """
    groups = groups_of(row, run.credit(row, hidden=hidden))
    listed_members = {(it.task, it.rollout) for members in groups.values() for it in members[:MOST_MEMBERS]}
    episodes: dict[tuple[str, int], tuple[EpisodeLocation, Episode]] = {}
    for task, rollout in sorted(listed_members):
        for location in run.located(row.part, task, rollout):
            with suppress(DataError):
                read = run.read(location)
                episodes[task, rollout] = location, read if hidden else run.without_hidden(read)
    whole_episode = run.read(row)
    episode = whole_episode if hidden else run.without_hidden(whole_episode)
    episodes[row.entry.task, row.entry.rollout] = row, episode
    return episode, traces(row, groups, episodes)


def _groups(
    compared: Mapping[NodeId, Sequence[GroupTrace]], anchors: Mapping[NodeId, str]
) -> dict[NodeId, list[tuple[GroupTrace, str]]]:
    """Return the groups of each turn on the page, each with the anchor of the first card that compares in the
    group."""
    tables: dict[int | None, str] = {}
    return {
        node: [
            (trace, tables.setdefault(trace.mine.credit.group, anchor)) for trace in compared.get(node, ())
        ]
        for node, anchor in anchors.items()
    }


def _call(run: ViewedRun, node: NodeId, asked: CallRecord, scale: float) -> CallCard:
    token_ids = asked.step.response_ids
    texts = run.pieces(node.role, node.index, token_ids)
    coloured_tokens = list(tokens(asked.step, texts or [f"{token} " for token in token_ids], scale))
    return CallCard(asked, coloured_tokens, len(token_ids) - len(coloured_tokens), has_texts=bool(texts))


def _picked(
    node: NodeId, taken: Mapping[NodeId, TurnRecord], dag: Dag | None, spec: Spec | None
) -> list[NodeId]:
    """Return the turns whose answer a turn chose: they have the same action, and a role that its parser or
    tool names.

    Empty if the parser and the tool name no role, or if the turn failed.
    """
    role = spec.roles.get(node.role) if spec is not None else None
    if role is None or dag is None or node not in dag or taken[node].failure is not None:
        return []
    item_calls = [call for call in (role.parser, role.run) if call is not None]
    named_values = {str(value) for call in item_calls for value in (call.value, *call.options.values())}
    waited_turns = [other for other in dag.pred[node] if other.role in named_values and other in taken]
    action = _action(taken[node])
    return [other for other in waited_turns if action is not None and _action(taken[other]) == action]


def _action(turn: TurnRecord) -> object:
    return turn.calls[-1].step.action if turn.calls else None
