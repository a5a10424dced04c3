"""A training run's folder, read into plain data: what was planned, and every figure of every step.

The folder may belong to a run that is still going or was killed: a last line cut short is passed over, a
line that cannot be read is counted, and every figure may be missing. The episodes are `digest`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.records import Control, RunFolder, RunInfo
from rolegraph.engine.records.folder import RUN_ONLY

Point = tuple[float, float]
"""A step and a figure's value at it."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that a run's folder says, but for its episodes."""

    folder: Path
    info: RunInfo
    spec: str
    """The resolved spec's text; empty where the file is missing."""
    lines: Sequence[Mapping[str, float]]
    """One for each step, in order; each has `step`. Step 0 is the untrained model."""
    controls: Sequence[Control] = ()
    unreadable: int = 0
    """Lines of `metrics.jsonl` that were passed over, not counting a last one cut short."""

    def series(self, key: str) -> list[Point]:
        """The steps that have this figure, with its values."""
        return [(line["step"], line[key]) for line in self.lines if key in line]

    def counts(self, key: str) -> list[Point]:
        """Every training step, with 0 where this figure is absent: of what is written only where it was."""
        return [(line["step"], line.get(key, 0.0)) for line in self.lines if line["step"]]

    @property
    def keys(self) -> list[str]:
        """The name of every figure that some step has, in alphabetical order."""
        return sorted({key for line in self.lines for key in line} - {"step"})

    @property
    def done(self) -> int:
        """The last training step that was finished; 0 before the first."""
        return int(max((line["step"] for line in self.lines), default=0))


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder. Raises UsageError where it is none, DataError where a file is no run's."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give the folder that a training run writes")
    run = RunFolder(folder)
    if not run.info_file.is_file():
        names = f"{run.metrics_file.name}, {run.spec_file.name} and {run.steps.name}/"
        hint = f". This one {RUN_ONLY}"
        raise UsageError(
            f"{folder} is not the folder of a training run: expected {run.info_file.name} in it, "
            f"beside {names}{hint if run.episodes.is_file() else ''}"
        )
    info = run.training()
    broken: list[DataError] = []
    steps: dict[float, dict[str, float]] = {}
    for metrics in run.metrics(broken.append):
        steps.setdefault(metrics["step"], {}).update(metrics)
    lines = tuple(steps[step] for step in sorted(steps))
    return RunRecord(
        folder, info, spec=run.spec(), lines=lines, controls=run.controls(), unreadable=len(broken)
    )
