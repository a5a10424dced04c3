"""Whose gradient a shared policy follows: each role's part of the sum of |advantage| over trained tokens.

A policy that several roles share is captured by the role with the most of it (arXiv 2605.24202). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rolegraph.engine.compile import Plan
from rolegraph.engine.records import Note
from rolegraph.engine.training.advantages import Metrics
from rolegraph.engine.training.batches import RoleBatch

CAPTURED = 0.9
"""Over this share of its policy, a role has it nearly for itself."""
STEPS = 10
"""For so many steps in a row that taught its policy something, before it is told."""


def shares(batches: Mapping[str, Sequence[RoleBatch]], plan: Plan) -> Metrics:
    """`optim/share/{role}` of the roles whose policies learn in a step, of all policies that a role has."""
    masses = {policy: {batch.role: batch.mass for batch in theirs} for policy, theirs in batches.items()}
    figures: Metrics = {}
    for role in plan.trained:
        theirs = [masses[policy] for policy in plan.policies_of(role) if policy in masses]
        if whole := sum(sum(mass.values()) for mass in theirs):
            figures[f"optim/share/{role}"] = sum(mass.get(role, 0.0) for mass in theirs) / whole
    return figures


def captured(lines: Sequence[Metrics], plan: Plan) -> Iterator[Note]:
    """The roles that have had their shared policy nearly for themselves; `lines` are all steps' metrics.

    Told once, when the last of so many steps in a row is the last line.
    """
    for role in plan.trained:
        shared = {other for other in plan.trained if plan.policies_of(other) & plan.policies_of(role)} - {
            role
        }
        figures = [line[key] for line in lines if (key := f"optim/share/{role}") in line]
        if not shared or not lines or f"optim/share/{role}" not in lines[-1]:
            continue
        last = figures[-STEPS:]
        begun = len(figures) == STEPS or (len(figures) > STEPS and figures[-STEPS - 1] <= CAPTURED)
        if len(last) == STEPS and min(last) > CAPTURED and begun:
            text = (
                f"{role} has had over {CAPTURED:.0%} of the gradient that it shares with "
                f"{', '.join(sorted(shared))} for {STEPS} steps in a row; lower its `weight`, raise theirs, "
                "or give them policies of their own"
            )
            yield Note(text, "warning", f"the share of {role}")
