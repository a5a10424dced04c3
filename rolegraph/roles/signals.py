"""Signals: advantages of a role for each token, in place of a reward or beside it.

A package adds signals by the entry-point group `rolegraph.signals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rolegraph.engine.records import Step
from rolegraph.engine.vocabulary import SCHEDULED, Signal


def _as_text(gate: object) -> object:
    """Return a constant as the text of an expression; any other value is returned unchanged."""
    return str(gate).lower() if isinstance(gate, int | float) else gate


Gate = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | float | bool)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
AtLeast0 = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def reverse_kl(
    *,
    teacher: Any,
    coefficient: Annotated[AtLeast0, SCHEDULED] = 1.0,
    clip: Positive | None = 5.0,
    center: bool = False,
    gate: Gate = "",
) -> Signal:
    """Distil a teacher, token by token: coefficient × clipped (log p_teacher - log p_student).

    On-policy distillation (Agarwal et al., 2306.13649; Lu et al., "On-Policy Distillation", 2025): the mean
    of log p_student - log p_teacher over sampled tokens estimates the reverse KL. With `teacher: base`,
    beside an estimator, it keeps the policy near its start; with `center: true` and `clip: null` it is the KL
    penalty of tinker-cookbook (`incorporate_kl_penalty`).

    With a prompt of the teacher's own, the same weights teach what they see and the role does not:
    self-distillation from a judge's words (SDPO, 2601.20802) or from the answer (OPSD, 2601.18734). The
    teacher scores the tokens of the role after that prompt.

    teacher: base, the start of the policy itself, or a local or tinker model of the same family, such as
        tinker:NAME or local:FOLDER; or {policy: NAME} for a policy's weights of the step, {base: NAME} for
        its start, {model: …}, each with prompt, system and sees, the hidden fields that these may read; or
        {by: task.FIELD, of: {VALUE: teacher}, else: mask}
    coefficient: the factor of each difference
    clip: the largest difference at a token, in nats, before the coefficient; null does not bound it
    center: true to subtract the mean over the role's tokens of a step
    gate: an expression over reward, right, action, task, self, step and the roles, whose value is a factor of
        the signal on the turn; a bool is 1 or 0, and what cannot be computed is 0
    """

    def advantages(step: Step, teacher: Sequence[float] | None) -> list[float]:
        gaps_T = [
            teacher_logprob - logprob
            for logprob, teacher_logprob in zip(step.logprobs, teacher or (), strict=True)
        ]
        if clip is not None:
            gaps_T = [max(-clip, min(clip, gap)) for gap in gaps_T]
        return [coefficient * gap for gap in gaps_T]

    return Signal(advantages, teacher=teacher, center=center, gate=gate)


def imitation(*, demonstration: str, weight: Annotated[AtLeast0, SCHEDULED] = 1.0) -> Signal:
    """Imitate the turn that a template writes, on the prompts that the policy met itself (DAgger).

    The template may read hidden task fields, `self`, and every role with `.reward` and `.right`. A turn
    for which it writes nothing is left out, and beside an estimator learns from its own answer (Ross et al.,
    1011.0686).

    demonstration: a template: a file, such as answer.j2, or the text itself
    weight: the weight of each of its tokens
    """
    return Signal(demonstration=demonstration, loss="cross_entropy", weight=weight)
