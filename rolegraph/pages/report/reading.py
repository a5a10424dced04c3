"""Reader of a training's folder: its settings, and every figure of every step.

The training may still run or may have been killed: an incomplete last line is skipped, broken lines are
counted, and any figure may be missing. Episodes are read in `digest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.records import Control, RunFolder, RunInfo
from rolegraph.engine.records.episode import EpisodePart
from rolegraph.engine.records.folder import RUN_ONLY, missing_run
from rolegraph.engine.training.analysis.role_metrics import equal_figures

Point = tuple[float, float]
"""Point of a curve: step and value."""


SPLITS: Mapping[EpisodePart, str] = {"train": "episode", "validation": "validation", "greedy": "greedy"}
"""First part of the figures' names in the metrics, by split."""


def episode_counts(lines: Iterable[Mapping[str, float]], info: RunInfo) -> dict[str, int]:
    """Return the number of a training's episodes by split, from the counts in its metrics."""

    def count(start: str) -> int:
        names = [f"{start}/n/{name}" for name in info.metric_names]
        return int(sum(max((line.get(name, 0.0) for name in names), default=0.0) for line in lines))

    return {split: count(start) for split, start in SPLITS.items()}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Content of a training's folder, without its episodes."""

    folder: Path
    info: RunInfo
    spec: str
    """Text of the resolved spec; empty where the file is missing."""
    lines: Sequence[Mapping[str, float]]
    """Figures of each step, in order, among them `step`; step 0 is the untrained model."""
    controls: Sequence[Control] = ()
    best: float | None = None
    """Step of the best checkpoint; None without a validated checkpoint."""
    unreadable: int = 0
    """Number of broken lines in `metrics.jsonl`, not counting an incomplete last line."""

    def series(self, key: str) -> list[Point]:
        """Return the (step, value) points of a figure, at the steps that have it."""
        return [(line["step"], line[key]) for line in self.lines if key in line]

    def latest(self, key: str) -> float | None:
        """Return the newest value of a figure; None where no step has it."""
        return next((line[key] for line in reversed(self.lines) if key in line), None)

    def counts(self, key: str) -> list[Point]:
        """Return (step, value) of a figure at every training step; the value is 0 where the figure is absent,
        such as a count of failures."""
        return [(line["step"], line.get(key, 0.0)) for line in self.lines if line["step"]]

    @property
    def keys(self) -> list[str]:
        """Names of all metrics of the training's steps, in alphabetical order."""
        return sorted({key for line in self.lines for key in line} - {"step"})

    @property
    def figures(self) -> list[tuple[str, ...]]:
        """Names of the measured episode metrics; those with equal values at every step share a tuple."""
        keys = {*self.keys}
        measured_names = [n for n in self.info.metric_names if keys & {f"validation/{n}", f"episode/{n}"}]
        return equal_figures(self.lines, measured_names)

    @property
    def done(self) -> int:
        """Number of the last finished training step; 0 before the first."""
        return int(max((line["step"] for line in self.lines), default=0))


def read_run(folder: Path) -> RunRecord:
    """Read a training's folder; raises UsageError where it is not one, DataError where a file is damaged."""
    if not folder.is_dir():
        raise missing_run(folder)
    run = RunFolder(folder)
    if not run.info_file.is_file():
        names = f"{run.metrics_file.name}, {run.spec_file.name} and {run.steps.name}/"
        hint = f". This one {RUN_ONLY}"
        raise UsageError(
            f"{folder} is not the folder of a training run: expected {run.info_file.name} in it, "
            f"beside {names}{hint if run.episodes.is_file() else ''}"
        )
    info = run.training()
    damaged_lines: list[DataError] = []
    steps: dict[float, dict[str, float]] = {}
    for metrics in run.metrics(damaged_lines.append):
        steps.setdefault(metrics["step"], {}).update(metrics)
    lines = tuple(steps[step] for step in sorted(steps))
    return RunRecord(
        folder,
        info,
        spec=run.spec(),
        lines=lines,
        controls=run.controls(),
        best=next((checkpoint.step for checkpoint in reversed(run.checkpoints()) if checkpoint.best), None),
        unreadable=len(damaged_lines),
    )
