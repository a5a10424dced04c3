"""Signals: what a role learns from where a reward is too little. They set its advantages token by token.

A package adds its own by the entry-point group `rolegraph.signals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from rolegraph.engine.records import Step
from rolegraph.engine.vocabulary import Signal

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


def reverse_kl(*, teacher: Any, coefficient: Positive = 1.0, clip: Positive | None = 5.0) -> Signal:
    """Be as likely as the teacher, token by token: coefficient × clipped (log p_teacher - log p_student).

    On-policy distillation (Agarwal et al., 2306.13649; Lu et al., "On-Policy Distillation", 2025): the mean
    of log p_student - log p_teacher over sampled tokens estimates the reverse KL.

    teacher: a local or tinker model of the same family, such as tinker:NAME or local:FOLDER
    coefficient: what each difference is multiplied by
    clip: the largest difference at a token, in nats; null does not bound it
    """
    return Signal(partial(_reverse_kl, coefficient, clip), teacher=teacher)


def _reverse_kl(
    coefficient: float, clip: float | None, step: Step, teacher: Sequence[float] | None
) -> list[float]:
    gaps = [there - here for here, there in zip(step.logprobs, teacher or (), strict=True)]
    if clip is not None:
        gaps = [max(-clip, min(clip, gap)) for gap in gaps]
    return [coefficient * gap for gap in gaps]


def imitation(*, demonstration: Any, weight: Positive = 1.0) -> Signal:
    """Learn to give the turn that a template writes, on the prompts that the policy really met (DAgger).

    The template may see the hidden fields of the task and `.reward` and `.is_correct` of the roles before;
    where it writes nothing there is nothing to imitate (Ross et al., 1011.0686).

    demonstration: a template's file name, or {inline: text}
    weight: what each of its tokens counts
    """
    return Signal(demonstration=demonstration, loss="cross_entropy", weight=weight)
