"""The turn that had the largest share of a policy's gradient in one step of a training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from rolegraph.engine.compile.leaving import DisclosureRule
from rolegraph.engine.records import NodeId
from rolegraph.engine.records.credit import CreditRow

TurnKey = tuple[str, int, NodeId]
"""Task, rollout and node of a turn in a step."""


class HeavyTurn(NamedTuple):
    """Turn or trajectory with its share of one policy update, and its texts without hidden fields."""

    credit: CreditRow
    share: float
    """Share, from 0 to 1, of this turn in the sum of |advantage × loss weight| over the tokens of its
    policy.
    """
    members: int
    """Number of members of the turn's group."""
    name: str = ""
    """Name of the turn's role, with the instance's number if the role has several instances."""
    question: str = ""
    answer: str = ""
    """Answer of the turn in a few words; empty if the answer may quote a hidden field."""


def heaviest_turn(rows: Collection[CreditRow], rule: DisclosureRule) -> HeavyTurn | None:
    """Return the member of a group with the largest share of its policy's gradient; None without a gradient.

    Args:
        rows: Rows of credit of one step.
        rule: Rule for what may leave: groups that may tell a hidden field are passed over.
    """
    compared_rows = [row for row in rows if row.group is not None]
    sizes = Counter(row.group for row in compared_rows)
    masses = dict.fromkeys((row.policy for row in compared_rows), 0.0)
    for row in compared_rows:
        masses[row.policy] += _mass(row)
    shares = [
        (_mass(row) / masses[row.policy], row)
        for row in compared_rows
        if masses[row.policy] and rule.shows_group(row.role, row.by)
    ]
    share, row = max(shares, key=lambda it: it[0], default=(0.0, None))
    return HeavyTurn(row, share, sizes[row.group]) if row and share else None


def _mass(row: CreditRow) -> float:
    weight = 1.0 if row.loss_weight is None else row.loss_weight
    return abs((row.advantage or 0.0) * row.weight) * row.tokens * weight
