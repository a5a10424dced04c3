"""Divergence: rules by which a role's training has gone wrong, over the metrics of its steps. Pure.

Thresholds were measured on the shipped model, with steps of 8 tasks and 128 tokens; the figures are kept in
tests/data/kept_trainings.json. With 30 times its learning rate (0.06), all four trainings (solver_judge and
solver_judge_validator, two seeds) lost nearly every answer's form in step 2, and stopped in step 2 or 3. With
10 times (0.02), all four diverged in step 4 or 5, and two stopped in step 6. With 5 times (0.01) none of four
did, nor 13 shipped workflows with their own rates in up to 14 steps, nor four trainings of SmolLM2-135M with
rates from 0.00005 to 0.002. KL stayed below 0.00001, so its threshold is not measured; KL matters where a
service samples in other precision than it trains in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rolegraph.engine.records.episode import FORMLESS

STAGE = "stage"
"""Metric of a step of imitation: the number of its stage, from 1. Divergence is judged over the RL steps
after the last step with this metric."""
Line = Mapping[str, float]
STEPS = 2
"""Steps in a row in which a rule holds before the role counts as diverging."""
FALLEN = 0.5
"""Share of its first reward below which a role's reward has fallen."""
ERRORS = 4.0
"""Standard errors of the first reward that the fall exceeds, so that a small batch shows none by chance."""
LOST_FIRST, LOST = 0.25, 0.5
"""Shares of answers without a readable form: largest share in the first step, and smallest share of a
divergence now."""
KL_JUMP, KL_TIMES = 0.1, 10.0
"""KL sampler‖trainer in nats, and multiple of its first value, above which it has jumped."""
ENTROPY_SHARE = 0.1
"""Share of its first entropy below which a role's entropy has collapsed."""


class Divergence(NamedTuple):
    """Divergence of a role that still holds at the last step."""

    role: str
    since: int
    """First step of the unbroken series in which a rule held, up to the last step."""
    reason: str
    """Metrics of the last step that show the divergence."""

    def __str__(self) -> str:
        return f"{self.role} diverges since step {self.since}: {self.reason}"


def divergences(lines: Sequence[Line], roles: Sequence[str]) -> list[Divergence]:
    """Return a Divergence for each trained role that diverges at the last step of a training.

    A role diverges if one of these holds in the last two steps in which it answered, or if all its answers
    failed in the last step:

    - its reward is under half of that of the first step, by over four standard errors, and no trained role
      earns more than in the first step: in a game, one role's loss is another's gain
    - over half of its answers have no form that can be read, of at most a quarter in the first step
    - KL sampler‖trainer is over 0.1 nats, and over ten times that of the first step
    - its entropy is under a tenth of that of the first step, and its reward below that of the first step

    Steps of a stage of imitation, which is meant to change all of these, do not count.

    Args:
        lines: Metrics of all steps so far, oldest first.
        roles: Names of the trained roles.

    Returns:
        The divergences, in the order of `roles`; empty if no role diverges.
    """
    rl_lines = steps_of_rl(lines)
    steps = [line for line in rl_lines if any(f"answers/n/{role}" in line for role in roles)]
    return [divergence for role in roles if (divergence := _divergence(role, steps, roles)) is not None]


def steps_of_rl(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of metrics after the last stage of imitation; all lines if there is no such stage."""
    start = max((ordinal for ordinal, line in enumerate(lines, 1) if STAGE in line), default=0)
    return [*lines[start:]]


def _divergence(role: str, steps: Sequence[Line], roles: Sequence[str]) -> Divergence | None:
    answered_lines = [line for line in steps if f"answers/n/{role}" in line]
    if not answered_lines or answered_lines[-1] is not steps[-1]:
        return None
    faults: list[tuple[int, str]] = []
    for line in reversed(answered_lines[1:]):
        reasons = [*_reasons(role, answered_lines[0], line, _someone_gains(steps[0], line, roles))]
        if not reasons:
            break
        faults.append((int(line["step"]), ", ".join(reasons)))
    if len(faults) >= STEPS or (faults and _is_lost(role, answered_lines[-1])):
        return Divergence(role, faults[-1][0], faults[0][1])
    return None


def _reasons(role: str, first: Line, now: Line, someone_gains: bool) -> Iterator[str]:
    for rule in (_fallen, _lost, _jumped, _collapsed):
        if rule is not _fallen or not someone_gains:
            yield from rule(role, first, now)


def _someone_gains(first: Line, now: Line, roles: Sequence[str]) -> bool:
    names = [f"reward/{role}/mean" for role in roles]
    return any(now[name] > first[name] for name in names if name in first and name in now)


def _fallen(role: str, first: Line, now: Line) -> Iterator[str]:
    name = f"reward/{role}/mean"
    if name in now and _fall(role, first, now) > ERRORS and now[name] < FALLEN * first[name]:
        yield f"reward {first[name]:.2f} → {now[name]:.2f}"


def _fall(role: str, first: Line, now: Line) -> float:
    """Return the fall of a role's reward since the first step, in standard errors of the first reward."""
    mean, std, n = (f"reward/{role}/{name}" for name in ("mean", "std", "n"))
    if mean not in first or mean not in now or not first.get(n):
        return 0.0
    error = max(first.get(std, 0.0), 1e-6) / math.sqrt(first[n])
    return (first[mean] - now[mean]) / error


def _lost(role: str, first: Line, now: Line) -> Iterator[str]:
    first_share, share = (_failed(role, line) for line in (first, now))
    count = now[f"answers/n/{role}"]
    if first_share <= LOST_FIRST * first[f"answers/n/{role}"] and share > LOST * count:
        yield f"{share:.0f} of {count:.0f} answers failed"


def _is_lost(role: str, line: Line) -> bool:
    """Return True if every answer of a role failed in a step, which needs no second step to be certain."""
    return _failed(role, line) >= line[f"answers/n/{role}"] > 1


def _failed(role: str, line: Line) -> float:
    return sum(line.get(f"failures/{role}/{name.value}", 0.0) for name in FORMLESS)


def _jumped(role: str, first: Line, now: Line) -> Iterator[str]:
    kl = now.get(f"kl/{role}", 0.0)
    if kl > max(KL_JUMP, KL_TIMES * abs(first.get(f"kl/{role}", 0.0))):
        yield f"KL sampler‖trainer {kl:.2f}"


def _collapsed(role: str, first: Line, now: Line) -> Iterator[str]:
    name = f"entropy/{role}"
    if (
        name in first
        and name in now
        and now[name] < ENTROPY_SHARE * first[name]
        and _fall(role, first, now) > 1
    ):
        yield f"entropy {first[name]:.3f} → {now[name]:.3f}"
