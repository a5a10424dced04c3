"""Texts of the viewer's pages: figures of a run, chips of a turn, rows of a group's table.

The templates only loop over these values and print them. Pure, and without HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from rolegraph.engine.records import MAIN, Episode, RunInfo, Step
from rolegraph.engine.records.episodes import IndexEntry
from rolegraph.engine.records.info import RoleInfo
from rolegraph.pages.report.charts import number
from rolegraph.pages.report.digest import clipped
from rolegraph.pages.report.html import aligned, signed
from rolegraph.pages.view.runs import EpisodeLocation
from rolegraph.pages.view.trace import GroupMember, GroupTrace, SampledToken
from rolegraph.pages.view.turns import CallRecord, TurnRecord

_VALIDATION = "validation/"
_COUNTS = ("n/", "failures/", "unrated/")
_ELSEWHERE = (*_COUNTS, *(_VALIDATION + name for name in _COUNTS), "best/")
"""Beginnings of the figures that are not listed by themselves."""


def mean_rewards(entry: IndexEntry) -> dict[str, float]:
    """Return the mean reward in an episode of each role that has rewards."""
    return {name: sum(role.rewards) / len(role.rewards) for name, role in entry.roles.items() if role.rewards}


def decimals(value: float) -> str:
    """Format a number with three decimals, so that figures below each other align."""
    return f"{value:,.3f}".replace("-", "−")


class RunFigure(NamedTuple):
    """Figure of a run; `n` is the number of episodes in it, 0 where that is not on record."""

    name: str
    value: float
    n: int


def figures(info: RunInfo, most: int = 99) -> list[RunFigure]:
    """Return the figures to show among the first `most` of a run, each with its n; without counts of
    failures."""
    counts, episodes = info.figures, info.figures.get("episodes", 0) if info.kind == "run" else 0
    shown: list[RunFigure] = []
    for name, value in list(counts.items())[:most]:
        if not name.startswith(_ELSEWHERE) and name not in ("episodes", "step"):
            counted = name.replace(_VALIDATION, f"{_VALIDATION}n/") if "/" in name else f"n/{name}"
            shown.append(
                RunFigure(name.replace(_VALIDATION, ""), value, int(counts.get(counted) or episodes))
            )
    return shown


def sizes(info: RunInfo) -> list[tuple[str, int]]:
    """Return [("episodes", n)] of a run or [("steps", n)] of a training; empty where unknown."""
    numbers = {"episodes": info.figures.get("episodes"), "steps": info.figures.get("step")}
    return [(name, int(n)) for name, n in numbers.items() if n][:1]


def failure_counts(info: RunInfo) -> list[str]:
    """Return texts such as `solver timeout 3`, one for each kind of failure in a run."""
    return [
        f"{words(name.partition('failures/')[2].replace('/', ' '))} {value:.0f}"
        for name, value in info.figures.items()
        if name.startswith(("failures/", f"{_VALIDATION}failures/")) and value
    ]


def words(name: str) -> str:
    """Return a name such as `malformed_output` with spaces for underscores."""
    return name.replace("_", " ")


def ended(episode: Episode) -> str:
    """Return the reason why an episode ended, as words."""
    reason = episode.termination_reason.value
    return "every role ran" if reason == "env_done" else words(reason)


def began(episode: Episode) -> str:
    """Format the time at which an episode began, in UTC; empty where it was not recorded or is impossible."""
    seconds = episode.metadata.get("started_at")
    with suppress(ValueError, OverflowError, OSError):  # of other writers, any number
        if seconds is not None:
            return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return ""


def hidden_note(quoting: frozenset[str], has_spec: bool) -> str:
    """Return the sentence that hidden fields are left out, as are the texts of the roles in `quoting`."""
    roles = ", ".join(sorted(quoting)) if has_spec else "each role, whose spec cannot be read"
    texts = f", and the texts of {roles}, which may quote them" if roles else ""
    return f"Hidden fields of the task are left out{texts}."


class Chip(NamedTuple):
    """Short label with a CSS class."""

    text: str
    style: str = ""


def chips(
    turn: TurnRecord,
    compared: Sequence[GroupTrace],
    advantage: float | None,
    signal: float | None,
    gate: float | None,
) -> list[Chip]:
    """Return the labels of a turn: rewards, advantages, terms, and whether it is right, masked or failed.

    Args:
        turn: The turn.
        compared: Groups in which the turn is compared.
        advantage: Weighted sum of the advantages in all groups.
        signal: Mean advantage that a signal added at each token.
        gate: Factor of the signal on the turn.
    """
    shown: list[Chip] = []
    if turn.reward is not None:
        shown.append(Chip(f"reward {number(turn.reward)}"))
    credited = [trace.mine.reward for trace in compared if trace.of_turns]
    shown += [Chip(f"credited {number(reward)}") for reward in credited if reward is not None]
    if advantage is not None:
        style = "good" if advantage > 0 else "hard" if advantage < 0 else ""
        shown.append(Chip(f"advantage {signed(advantage)}", style))
    if signal is not None:
        shown.append(Chip(f"signal {signed(signal)} a token"))
    if gate is not None:
        shown.append(Chip(f"gate {number(gate)}"))
    if turn.is_last and turn.trajectory is not None:
        shown += [Chip(f"{name} {number(value)}") for name, value in turn.trajectory.terms.items()]
        shown += [Chip("correct", "good")] if turn.trajectory.is_correct else []
    begins_anew = any(asked.step.metadata.get("restarted") for asked in turn.calls)
    shown += [Chip("begins anew", "rest")] if begins_anew else []
    shown += [Chip("masked", "rest")] if turn.masked else []
    shown += [Chip(words(str(turn.failure["name"])), "warn")] if turn.failure else []
    return shown


def earlier_messages(asked: CallRecord) -> str:
    """Return the heading of the messages that a call repeats, with the turn of a trunk that they are from."""
    one = len(asked.earlier) == 1
    heading = f"{len(asked.earlier)} earlier message{'' if one else 's'}"
    if (trunk := asked.forked) is None:
        return heading
    return f"{heading}, of the conversation of {trunk.role} {trunk.index}, round {trunk.round}"


def step_facts(step: Step) -> str:
    """Return a line on a model call: tokens, duration, attempt, finish reason, and age of the weights."""
    metadata = step.metadata
    seconds, attempts, behind = metadata.get("seconds"), metadata.get("attempts"), metadata.get("staleness")
    facts = [
        f"{step.response_tokens} tokens" if step.response_tokens else "",
        "" if seconds is None else f"{number(seconds)} s",
        f"attempt {attempts}" if attempts else "",
        words(str(metadata.get("finish_reason") or "")),
        f"weights {step.weight_version}" if step.weight_version is not None else "",
        f"{behind} updates behind" if behind else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def token_style(token: SampledToken) -> str:
    """Return the CSS classes of a token, for its advantage and its probability."""
    return " ".join(style for style in (token.tint, token.doubt) if style)


def token_title(token: SampledToken) -> str:
    """Return the tooltip of a token: its log-probability and its advantage."""
    values = (("log-probability", token.logprob), ("advantage", token.advantage))
    return ", ".join(f"{name} {signed(value)}" for name, value in values if value is not None)


def group_noun(trace: GroupTrace) -> str:
    """Return a noun for a group's members, such as `turns of solver`."""
    return f"{'turns' if trace.of_turns else 'trajectories'} of {trace.roles}"


def group_scope(trace: GroupTrace) -> str:
    """Describe what a group's members have in common, such as task, round, prompt or policy."""
    key = trace.key
    parts = [
        ("compared " if trace.learnt else "")
        + ("on this task" if key.task else "over all tasks of the step"),
        f"round {key.round}" if key.round else "",
        "same prompt" if key.prompt else "",
        "same key" if key.by else "",
        f"policy {key.policy}" if key.policy != MAIN else "",
    ]
    return ", ".join(part for part in parts if part)


def group_note(trace: GroupTrace, role: RoleInfo | None, signal: float | None) -> str:
    """Return how the advantages of a group follow from its rewards.

    Args:
        trace: The group.
        role: Training settings of its role, where they are on record.
        signal: Mean advantage that a signal added at each token.
    """
    if not trace.learnt:
        return "These episodes were not used for training: there are rewards, but no advantages."
    estimator = (role and role.estimator) or "The estimator"
    baseline = " and its baseline" if trace.mine.baseline is not None else ""
    loss = f", {role.loss}" if role and role.loss else ""
    added = " The signal's advantage is added at each token." if signal is not None else ""
    return (
        f"{estimator} computes an advantage from each reward{baseline}; the weight of each token in the loss "
        f"is the advantage times the loss weight{loss}.{added}"
    )


class MemberCells(NamedTuple):
    """Cells of the table of a group's members."""

    name: str
    href: str | None
    mark: str
    """`this one` for the turn itself, `this episode` for another member of its episode."""
    reward: str
    advantage: str
    spread: str
    """Smallest and largest advantage of a token, where they differ."""
    answer: str
    baseline: str
    loss_weight: str
    counts: str
    """Weight of each token in the loss."""
    tokens: str
    logprob: str


def member_cells(
    trace: GroupTrace, shown: EpisodeLocation, link: Callable[[EpisodeLocation], str | None]
) -> list[MemberCells]:
    """Return the rows of a group's table.

    Args:
        trace: The group.
        shown: Location of the episode that the page shows.
        link: Function that returns the URL of an episode.
    """
    members = trace.members
    rewards = [member.reward for member in members]
    advantages = [member.advantage for member in members]
    baselines = [member.baseline for member in members]
    rows: list[MemberCells] = []

    def of_task(member: GroupMember) -> str:
        return "" if trace.key.task else f"task {member.row.entry.task}, "

    for member in members:
        is_shown = member.row[:2] == shown[:2]
        advantage, factor = member.advantage, member.loss_weight
        spreads = advantage is not None and member.high - member.low > 1e-9
        rows.append(
            MemberCells(
                name=f"{of_task(member)}rollout {member.row.entry.rollout}, {member.node}",
                href=None if is_shown else link(member.row),
                mark="" if not is_shown else "this one" if member == trace.mine else "this episode",
                reward="" if member.reward is None else aligned(member.reward, rewards),
                advantage="" if advantage is None else aligned(advantage, advantages, "+"),
                spread=f"{signed(member.low)} to {signed(member.high)}" if spreads else "",
                answer="nothing" if member.answer is None else clipped(member.answer, 80),
                baseline="not recorded" if member.baseline is None else aligned(member.baseline, baselines),
                loss_weight="not recorded" if factor is None else number(factor),
                counts=""
                if advantage is None or factor is None
                else signed(advantage * member.weight * factor),
                tokens=str(member.tokens or ""),
                logprob="" if member.mean_logprob is None else signed(member.mean_logprob),
            )
        )
    return rows
