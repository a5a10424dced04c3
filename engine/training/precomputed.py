"""Advantages that rewards have computed, expanded to one for each response token. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from rolegraph.engine.errors import AdvantageError
from rolegraph.engine.records import Advantage, NodeId, Note, TrajectoryGroup
from rolegraph.engine.vocabulary import Floats

AdvantagesByUid = Mapping[str, Sequence[Advantage]]
"""Advantages of each step, by the uid of the group member: a trajectory or a turn."""


def expand(
    groups: Sequence[TrajectoryGroup], precomputed: AdvantagesByUid, warnings: list[Note]
) -> tuple[list[list[Sequence[Advantage]]], Floats, int]:
    """Expand advantages that rewards have computed to one for each response token.

    Returns:
        Advantages [T] for each step of each group, all of them in one flat array, and the number of steps
        with a wrong length, whose advantages are zeros.
    """
    steps: list[list[Sequence[Advantage]]] = []
    values: list[float] = []
    wrong = 0
    for group in groups:
        steps.append([])
        for member, trajectory in enumerate(group.trajectories):
            given = precomputed.get(trajectory.uid) or [step.advantage for step in trajectory.steps]
            tokens: list[Advantage] = []
            for number, (step, advantage) in enumerate(zip(trajectory.steps, given, strict=True)):
                place, length = f"{where(group, member)}, step {number}", len(step.response_ids)
                advantages_T = per_token(advantage, length, place)
                if len(advantages_T) != length:
                    wrong += 1
                    text = (
                        f"{place}: {len(advantages_T)} advantages for {length} response tokens; zeros are "
                        "used instead"
                    )
                    warnings.append(Note(text, "warning", f"how long the advantages of {group.key.role} are"))
                    advantages_T = (0.0,) * length
                values += advantages_T
                tokens.append(advantages_T)
            steps[-1].append(tokens)
    return steps, np.array(values), wrong


def per_token(advantage: object, length: int, where: str) -> Sequence[float]:
    """Return a step's advantages_T.

    Args:
        advantage: a float, which is repeated, or a list, which is returned as it is, whatever its length.
        length: T, the number of response tokens.
        where: the step, for messages.

    Raises:
        AdvantageError: for None, another type, and numbers that are not finite.
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
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise AdvantageError(f"{where} has the advantage {value!r}; expected finite numbers")
    return cast("Sequence[float]", values)


def where(group: TrajectoryGroup, member: int) -> str:
    """Describe a member for messages: node, task and rollout."""
    rollout = f", rollout {group.rollouts[member]}" if group.rollouts else ""
    trajectory = group.trajectories[member]
    number = trajectory.steps[0].round if group.of_turns else 1
    return f"{NodeId(trajectory.name, trajectory.index, number)}, task {group.key.task}{rollout}"
