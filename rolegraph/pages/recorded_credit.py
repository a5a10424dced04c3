"""Credit rows of episodes without a table of credit: of runs, and of trainings before version 0.3.

A run has rewards and no advantages. Earlier trainings stored the credit in the metadata of their Steps, which
version 0.4 will no longer read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic reads that of `typing` only from Python 3.12 on

from rolegraph.engine.records import MAIN, Episode, Extent, Step, Trajectory
from rolegraph.engine.records.credit import CreditRow, LeftOut
from rolegraph.engine.records.episode import NOTHING
from rolegraph.engine.records.schema import Count, Figure


class _Key(TypedDict, total=False):
    """Fields of a group's key that differ from their defaults."""

    task: Literal[""]
    role: Literal[""]
    policy: str
    round: int
    prompt: str
    by: str
    part: Count


class _Part(TypedDict, total=False):
    """Fields of a group's key in the metadata of earlier versions, only those that differ from their
    defaults.
    """

    credit: Figure | None
    group: _Key
    baseline: Figure | None
    too_small: bool
    weight: Figure
    advantage: Figure | None
    loss_weight: Figure | None


@with_config(ConfigDict(strict=True))
class _Notes(_Part, total=False):
    """Credit of a Step, as the metadata of earlier versions holds it."""

    groups: list[_Part] | None


_NOTES = TypeAdapter(_Notes)


def recorded_rows(
    episodes: Iterable[Episode], trained: Iterable[str] = (), start: int = 0
) -> Iterator[CreditRow]:
    """Yield credit rows from the metadata of episodes.

    A trajectory without such metadata is compared with the others of its role on its task.

    Args:
        episodes: Episodes of one step, in order.
        trained: Roles whose trajectories have a row even if they are in no group.
        start: Number of the first group.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    roles = {*trained}

    def row(
        episode: Episode, trajectory: Trajectory, steps: Sequence[Step], part: Mapping[str, Any]
    ) -> CreditRow:
        key: Mapping[str, Any] = part.get("group") or {}
        names = {"turn": "round", "prompt": "prompt", "episode": "role"}
        by = next((name for name, field in names.items() if field in key), "by" if "by" in key else "task")
        group = ("" if "task" in key else episode.task_id, trajectory.name, *sorted(key.items()))
        if by == "episode":
            group = (group[0], key.get("policy", MAIN))
        is_of_turn = "credit" in part
        values = [value for step in steps for value in step.advantages]
        if (advantage := part.get("advantage")) is not None:
            values = [advantage]
        has_failed = trajectory.failure is not None and steps[-1] is trajectory.steps[-1]
        node = trajectory.node._replace(round=steps[-1].round)
        return CreditRow.in_no_group(0, episode, trajectory, key.get("policy", MAIN))._replace(
            round=steps[0].round if is_of_turn else 0,
            left_out=LeftOut.TOO_SMALL if part.get("too_small") else None,
            group=numbers.setdefault(group, start + len(numbers)),
            grouping=key.get("part", 0),
            by=by,
            over=Extent.BATCH if "task" in key else Extent.TASK,
            reward=part["credit"] if is_of_turn else trajectory.reward,
            terms=NOTHING if is_of_turn else trajectory.terms,
            baseline=part.get("baseline"),
            advantage=sum(values) / len(values) if values else None,
            low=min(values, default=None),
            high=max(values, default=None),
            weight=part.get("weight", 1.0),
            loss_weight=part.get("loss_weight"),
            tokens=sum(step.response_tokens for step in steps),
            failed=has_failed or (is_of_turn and node in episode.failures),
        )

    for episode in episodes:
        for trajectory in episode.trajectories:
            rows: list[CreditRow] = []
            turn_spans = trajectory.turns
            notes = [_noted(steps[-1]) for steps in turn_spans]
            digests = (turn_spans[0][0].metadata.get("by") or {}) if turn_spans else {}
            is_list = any("groups" in steps[-1].metadata for steps in turn_spans)
            is_by_turn = any("credit" in part for parts in notes for part in parts)
            is_keyless = bool(digests) and not any(digests.values())
            if trajectory.by_model and not trajectory.masked and (is_list or not (is_by_turn or is_keyless)):
                task_notes = [part for part in notes[0] if "credit" not in part]
                rows += [row(episode, trajectory, trajectory.steps, part) for part in task_notes]
            for steps, parts in zip(turn_spans, notes, strict=True):
                rows += [
                    row(episode, trajectory, steps, part) for part in parts if part.get("credit") is not None
                ]
            yield from rows
            is_left_out = trajectory.masked or not trajectory.by_model
            if is_left_out and trajectory.name in roles and not any(row_.low is not None for row_ in rows):
                yield CreditRow.in_no_group(0, episode, trajectory, MAIN)._replace(left_out=LeftOut.MASKED)


def _noted(step: Step) -> Sequence[Mapping[str, Any]]:
    """Return the credit in a Step's metadata, an entry for each group; a single empty entry if the metadata
    is damaged."""
    try:
        notes = _NOTES.validate_python({**step.metadata})
    except ValidationError:
        return ({},)
    if (parts := notes.get("groups")) is None:
        return (notes,)
    return [{**part, "loss_weight": notes.get("loss_weight")} for part in parts]
