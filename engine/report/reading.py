"""A training run's folder, read into plain data: what was planned, and every figure of every step.

The folder may belong to a run that is still going or was killed: a last line cut short is passed over, a
line that cannot be read is counted, and every figure may be missing. The episodes are `digest`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import DataError, UsageError
from engine.records.folder import RunFolder
from engine.records.info import Control, RunInfo
from engine.records.jsonl import parse_json, read_jsonl

Point = tuple[float, float]
"""A step and a figure's value at it."""


@dataclass(frozen=True, slots=True)
class Run:
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

    @property
    def keys(self) -> list[str]:
        """The name of every figure that some step has, in alphabetical order."""
        return sorted({key for line in self.lines for key in line} - {"step"})

    @property
    def done(self) -> int:
        """The last training step that was finished; 0 before the first."""
        return int(max((line["step"] for line in self.lines), default=0))


def read_run(folder: Path) -> Run:
    """Read a run's folder. Raises UsageError where it is none, DataError where a file is no run's."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give the folder that a training run writes")
    run = RunFolder(folder)
    if not run.info_file.is_file():
        names = f"{run.metrics_file.name}, {run.spec_file.name} and {run.steps.name}/"
        hint = ". This one holds episodes of `rolegraph run`, which trains nothing"
        raise UsageError(
            f"{folder} is not the folder of a training run: expected {run.info_file.name} in it, "
            f"beside {names}{hint if run.episodes.is_file() else ''}"
        )
    info = run.training()
    broken: list[DataError] = []
    steps: dict[float, dict[str, float]] = {}
    if run.metrics_file.is_file():
        for line in read_jsonl(run.metrics_file, _figures, "a step's figures", broken.append):
            steps.setdefault(line.value["step"], {}).update(line.value)
    lines = tuple(steps[step] for step in sorted(steps))
    return Run(folder, info, _text(run.spec_file), lines, run.controls(), len(broken))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _figures(line: bytes) -> dict[str, float]:
    """The numbers of a line, one of which is `step`."""
    figures: dict[str, float] = {
        key: value
        for key, value in parse_json(line).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    _ = figures["step"]  # raises KeyError
    return figures
