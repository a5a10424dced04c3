"""Verdict on a training, read from its folder: divergence, and rewards that a constant answer would get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import RunFolder, RunInfo
from rolegraph.engine.records.episodes import EpisodeFile, answers_in, read_episodes
from rolegraph.engine.training.analysis.constants import CONSTANT, best_constants, constant_remark
from rolegraph.engine.training.analysis.divergence import Divergence, Line, divergences

BEST_ON_THESE = "chosen by these validation tasks; on others, expect a lower figure"
"""Remark on the best weights, because the largest of several means is too high an estimate."""


class TrainingVerdict(NamedTuple):
    """Faults of a training that its metrics alone do not show."""

    diverged: Sequence[Divergence] = ()
    """Roles that diverge at the last step."""
    constants: Mapping[str, str] = {}
    """By role, the words on a reward that a constant answer would get, such as "0.41 in validation (n 64),
    no better than always saying 'negative' (0.41)"."""

    @property
    def remarks(self) -> list[str]:
        """Sentences of the verdict, the gravest first; empty if no role diverges and no constant answer does
        as well."""
        return [*map(str, self.diverged), *(f"{role}: {text}" for role, text in self.constants.items())]


def training_verdict(folder: RunFolder, info: RunInfo, lines: Sequence[Line]) -> TrainingVerdict:
    """Return the verdict on a training.

    Args:
        folder: The training's folder, of which episodes may be missing.
        info: Its run.json.
        lines: Metrics of its steps, oldest first.
    """
    roles = info.trained_roles
    stopped_line = _stopped_step(folder, roles, lines)
    diverging = divergences([*lines, stopped_line] if stopped_line else lines, roles)
    return TrainingVerdict(diverging, _constants(folder, info, lines))


def _stopped_step(folder: RunFolder, roles: Iterable[str], lines: Sequence[Line]) -> Line:
    """Return the counts of answers and failures of the step in which failures ended the training; empty if no
    step did."""
    step = int(lines[-1]["step"]) + 1 if lines else 0
    file = folder.episodes_file("train", step)
    if not step or not file.exists():
        return {}
    try:
        answers = answers_in(EpisodeFile(file).entries(lambda _: None))
    except DataError:
        return {}
    line: dict[str, float] = {"step": float(step)}
    for role in roles:
        if role in answers:
            line[f"answers/n/{role}"] = float(answers[role].count)
            failures = answers[role].failures.items()
            line |= {f"failures/{role}/{name}": float(count) for name, count in failures}
    return line


def _constants(folder: RunFolder, info: RunInfo, lines: Sequence[Line]) -> dict[str, str]:
    """Return a remark on each trained role that earns no more than a constant answer, by role.

    Rewards are those of the last validation, or of the last step if there is no validation.
    """
    split, mean, n = "validation", "validation/reward/{}", "validation/n/reward/{}"
    constant, place = f"validation/{CONSTANT}{{}}", "validation"
    last_line = _last_with(mean, info.trained_roles, lines)
    if last_line is None:
        split, mean, n = "train", "reward/{}/mean", "reward/{}/n"
        constant, place = f"{CONSTANT}{{}}", "training"
        last_line = _last_with(mean, info.trained_roles, lines)
    if last_line is None:
        return {}
    of = folder.validation if split == "validation" else folder
    allowed_answers = {role: r.answers for role, r in of.info().roles.items() if role in info.trained_roles}
    answers = _best_answers(allowed_answers, of.episodes_file(split, int(last_line["step"])))
    remarks: dict[str, str] = {}
    for role in info.trained_roles:
        reward, count = last_line.get(mean.format(role)), last_line.get(n.format(role))
        if reward is None:
            continue
        if words := constant_remark(reward, last_line.get(constant.format(role)), count, answers.get(role)):
            remarks[role] = f"{reward:.2f} in {place} (n {count:.0f}), {words}"
    return remarks


def _last_with(name: str, roles: Iterable[str], lines: Sequence[Line]) -> Line | None:
    """Return the metrics of the last training step that measured `name` for one of the roles; None if no step
    did.

    `name` has `{}` for the role.
    """
    names = [name.format(role) for role in roles]
    return next((m for m in reversed(lines) if m["step"] and any(metric in m for metric in names)), None)


def _best_answers(words: Mapping[str, Sequence[str]], file: Path) -> dict[str, str]:
    try:
        return best_constants(words, read_episodes(file)) if file.exists() else {}
    except DataError:
        return {}
