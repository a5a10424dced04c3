"""Advantages that rewards have computed, expanded to one for each response token. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from rolegraph.engine.errors import AdvantageError
from rolegraph.engine.records import Advantage, NodeId, Note, TrajectoryGroup
from rolegraph.engine.records.plain import LARGEST

AdvantagesByUid = Mapping[str, Sequence[Advantage]]
"""Advantages of each step, by the uid of the group member: a trajectory or a turn."""


def expand(
    groups: Sequence[TrajectoryGroup], precomputed: AdvantagesByUid
) -> tuple[list[list[list[Sequence[float]]]], list[Note]]:
    """Expand advantages that rewards have computed to one for each response token.

    Returns:
        Advantages [T] for each group, member and step, and a warning for each step with another number of
        them, whose advantages are zeros.
    """
    warnings: list[Note] = []

    def of_member(group: TrajectoryGroup, member: int) -> Iterator[Sequence[float]]:
        trajectory = group.trajectories[member]
        given = precomputed.get(trajectory.uid) or [step.advantage for step in trajectory.steps]
        for number, (step, advantage) in enumerate(zip(trajectory.steps, given, strict=True)):
            place, length = f"{where(group, member)}, step {number}", len(step.response_ids)
            advantages_T = per_token(advantage, length, place)
            if len(advantages_T) != length:
                text = (
                    f"{place}: {len(advantages_T)} advantages for {length} response tokens; zeros are used "
                    "instead"
                )
                warnings.append(Note(text, "warning", f"how long the advantages of {group.key.role} are"))
                advantages_T = (0.0,) * length
            yield advantages_T

    places = [(group, range(len(group.trajectories))) for group in groups]
    return [[[*of_member(group, member)] for member in members] for group, members in places], warnings


def per_token(advantage: object, length: int, where: str) -> Sequence[float]:
    """Return a step's advantages_T.

    Args:
        advantage: A float, which is repeated, or a list, which is returned as it is, whatever its length.
        length: T, the number of response tokens.
        where: The step, for messages.

    Raises:
        AdvantageError: For None, another type, and numbers that are not finite.
    """
    if isinstance(advantage, float):
        values: Sequence[object] = (advantage,) * length
    elif isinstance(advantage, list | tuple):
        values = cast("Sequence[object]", advantage)
    else:
        what = "no advantage" if advantage is None else f"an advantage of type {type(advantage).__name__}"
        raise AdvantageError(
            f"{where} has {what}; a precomputed advantage is a float, or a list of "
            f"{length} floats, one for each response token"
        )
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
            raise AdvantageError(f"{where} has the advantage {value!r}; expected finite numbers")
    return cast("Sequence[float]", values)


def where(group: TrajectoryGroup, member: int) -> str:
    """Name a group's member by position, for messages: node, task and rollout."""
    rollout = f", rollout {group.rollouts[member]}" if group.rollouts else ""
    trajectory = group.trajectories[member]
    number = trajectory.steps[0].round if group.of_turns else 1
    return f"{NodeId(trajectory.name, trajectory.index, number)}, task {group.task_of(member)}{rollout}"
