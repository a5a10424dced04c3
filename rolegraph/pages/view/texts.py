"""Texts of the viewer's pages: figures of a run, facts of a call, captions of a group's table.

The templates only loop over these values and print them. Pure, and without HTML.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, get_args

from rolegraph.engine.records import MAIN, Episode, RunInfo, Step, Trajectory
from rolegraph.engine.records.episodes import IndexEntry
from rolegraph.engine.records.info import RoleInfo
from rolegraph.engine.records.numbers import number, signed
from rolegraph.engine.spec.role import GroupBy
from rolegraph.engine.training.analysis.intervals import Interval
from rolegraph.pages.report.digest import credit_formula
from rolegraph.pages.view.trace import GroupTrace
from rolegraph.pages.view.turns import CallRecord


def decimals(value: float) -> str:
    """Format a number with three decimals, so that figures below each other align."""
    return f"{value:,.3f}".replace("-", "−")


class Mark(NamedTuple):
    """Sign of a right, wrong or failed answer, with a word for screen readers and a CSS class."""

    sign: str
    word: str
    style: str


RIGHT, WRONG = Mark("✓", "correct", "good"), Mark("✗", "wrong", "hard")
FAILED, UNDECIDED = Mark("!", "failed", "warn"), Mark("?", "not decided", "rest")


def verdict(trajectory: Trajectory | None, *, failed: bool) -> Mark | None:
    """Return the sign of a trajectory; None if it was not judged.

    A record does not tell a wrong answer from an answer that no reward judges. So an answer that is not right
    counts as wrong only if its reward is not positive.

    Args:
        trajectory: The trajectory; None without one.
        failed: True if the turn failed.
    """
    if failed:
        return FAILED
    if trajectory is None or trajectory.reward is None:
        return None
    return RIGHT if trajectory.is_correct else WRONG if trajectory.reward <= 0 else None


def outcome(entry: IndexEntry, info: RunInfo) -> Mark | None:
    """Return the sign of an episode; None in a run whose episodes cannot be correct."""
    if not info.can_be_correct:
        return None
    return UNDECIDED if entry.undecided else RIGHT if entry.is_correct else WRONG


def ends(over: Interval) -> str:
    """Format the ends of an interval as `[0.72, 0.85]`."""
    return f"[{over.low:.2f}, {over.high:.2f}]".replace("-", "−")


def signed_ends(over: Interval) -> str:
    """Format the ends of a difference's interval as `[−0.02, +0.31]`."""
    return f"[{over.low:+.2f}, {over.high:+.2f}]".replace("-", "−")


def ending(text: str, most: int = 24) -> str:
    """Return the last `most` characters of a name, such as that of a checkpoint or task."""
    return text if len(text) <= most else f"…{text[-most:]}"


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
    """Return a sentence that says that hidden fields, and the texts of the roles in `quoting`, are left
    out."""
    roles = ", ".join(sorted(quoting)) if has_spec else "each role, whose spec cannot be read"
    texts = f", and the texts of {roles}, which may quote them" if roles else ""
    return f"Hidden fields of the task are left out{texts}."


def earlier_messages(asked: CallRecord) -> str:
    """Return the heading of the messages that a call repeats; for a fork it names the turn that they come
    from."""
    is_single = len(asked.earlier) == 1
    heading = f"{len(asked.earlier)} earlier message{'' if is_single else 's'}"
    if (trunk_node := asked.forked) is None:
        return heading
    return f"{heading}, of the conversation of {trunk_node.role} {trunk_node.index}, round {trunk_node.round}"


def step_facts(step: Step) -> str:
    """Return a line on a model call: tokens, duration, attempt, finish reason, and age of the weights."""
    metadata = step.metadata
    seconds, attempts, behind = metadata.get("seconds"), metadata.get("attempts"), metadata.get("staleness")
    facts = [
        f"{step.response_tokens} tokens" if step.response_tokens else "",
        "" if seconds is None else f"{number(seconds)} s",
        f"attempt {attempts}" if attempts else "",
        words(str(metadata.get("finish_reason") or "")),
        f"weights of update {step.weight_version}" if step.weight_version is not None else "",
        f"{behind} updates behind" if behind else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def group_noun(trace: GroupTrace) -> str:
    """Return a noun phrase for a group's members, such as `turns of solver`."""
    return f"{'turns' if trace.of_turns else 'trajectories'} of {trace.roles}"


def group_scope(trace: GroupTrace) -> str:
    """Describe the property that a group's members share, such as task, round, prompt or policy."""
    own_credit = trace.mine.credit
    parts = [
        ("compared " if trace.learnt else "") + own_credit.over.phrase,
        f"round {own_credit.round}" if own_credit.by == "turn" else "",
        "same prompt" if own_credit.by == "prompt" else "",
        "" if own_credit.by in get_args(GroupBy) else "same key",
        f"policy {own_credit.policy}" if own_credit.policy != MAIN else "",
    ]
    return ", ".join(part for part in parts if part)


def group_note(trace: GroupTrace, role: RoleInfo | None, signal: float | None) -> str:
    """Return a sentence that says how the advantages of a group follow from its rewards; empty without
    advantages.

    Args:
        trace: The group.
        role: Training settings of the group's role; None if not recorded.
        signal: Mean advantage that a signal added at each token.
    """
    if not trace.learnt:
        return ""
    estimator = (role and role.estimator) or "The estimator"
    baseline = " and its baseline" if trace.mine.credit.baseline is not None else ""
    loss = f", {role.loss}" if role and role.loss else ""
    signal_note = " The signal's advantage is added at each token." if signal is not None else ""
    return (
        f"{estimator} computes an advantage from each reward{baseline}; the push on each token's probability "
        f"is the advantage times the loss weight{loss}.{signal_note}"
    )


def group_result(trace: GroupTrace, role: RoleInfo | None) -> str:
    """Return how the reward of the group's member on this page became an advantage, as recorded."""
    credit, split = trace.mine.credit, trace.mine.row.part.split
    change = credit_formula(credit, role.estimator if role else None)
    if split != "train" and credit.advantage is None:
        return change
    advantage = "no advantage" if credit.advantage is None else f"advantage {signed(credit.advantage)}"
    return f"{change} → {advantage}"
