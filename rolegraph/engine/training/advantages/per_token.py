"""Expansion of a Step's recorded advantage to one advantage for each response token. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from rolegraph.engine.errors import AdvantageError
from rolegraph.engine.records import Advantage, Note
from rolegraph.engine.records.credit import Group, Member
from rolegraph.engine.records.plain import LARGEST

AdvantagesByUid = Mapping[str, Sequence[Advantage]]
"""Advantages of each step, by the uid of the trajectory."""


def expand(
    groups: Sequence[Group], signals: AdvantagesByUid
) -> tuple[list[list[list[Sequence[float]]]], list[Note]]:
    """Expand the advantages that rewards or a signal set on each Step to one for each response token.

    Returns:
        Advantages [T] for each group, member and step, and warnings. A step whose list of advantages has
        another length than its response gets zeros and a warning.
    """
    warnings: list[Note] = []

    def of_member(member: Member) -> Iterator[Sequence[float]]:
        recorded = [step.advantage for step in member.trajectory.steps]
        advantages = (signals.get(member.trajectory.uid) or recorded)[member.first : member.last]
        for index, (step, advantage) in enumerate(zip(member.steps, advantages, strict=True)):
            label, length = f"{member}, step {index}", len(step.response_ids)
            advantages_T = per_token(advantage, length, label)
            if len(advantages_T) != length:
                text = (
                    f"{label}: {len(advantages_T)} advantages for {length} response tokens; zeros are used "
                    "instead"
                )
                warnings.append(Note(text, "warning", f"how long the advantages of {member.role} are"))
                advantages_T = (0.0,) * length
            yield advantages_T

    return [[[*of_member(member)] for member in group.members] for group in groups], warnings


def per_token(advantage: object, length: int, where: str) -> Sequence[float]:
    """Return a Step's advantages [T], one for each response token.

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
        problem = "no advantage" if advantage is None else f"an advantage of type {type(advantage).__name__}"
        raise AdvantageError(
            f"{where} has {problem}; an advantage is a float, or a list of "
            f"{length} floats, one for each response token"
        )
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
            raise AdvantageError(f"{where} has the advantage {value!r}; expected finite numbers")
    return cast("Sequence[float]", values)
