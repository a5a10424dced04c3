"""A training run's folder, read into plain data: what was planned, and every figure of every step.

The folder may belong to a run that is still going or was killed: a last line cut short is passed over, a
line that cannot be read is counted, and every figure may be missing. The episodes are `digest`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from engine.errors import UsageError

RUN, METRICS, SPEC, CONTROLS, EPISODES = "run.json", "metrics.jsonl", "spec.yaml", "controls.json", "episodes"
Point = tuple[float, float]
"""A step and a figure's value at it."""
T = TypeVar("T")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RoleInfo(_Data):
    """How a role learns."""

    estimator: str = ""
    loss: str = ""
    trainable: bool = True


class RunInfo(_Data):
    """`run.json`: what was planned."""

    name: str
    roles: dict[str, RoleInfo]
    hash: str = ""
    seed: int = 0
    model: str = ""
    metrics: tuple[str, ...] = ()
    """The spec's figures, such as `judge_acc`."""
    steps: int = 0
    """How many training steps were planned; 0 where it is not known."""
    version: str = ""


class Control(_Data):
    """A figure measured beside the run, to compare with: its mean and an interval over n tasks."""

    name: str
    figure: str
    mean: float
    low: float
    high: float
    n: int = 0


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
    """Read a run's folder. Raises UsageError where it is none."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give the folder that a training run writes")
    if not (folder / RUN).is_file():
        raise UsageError(
            f"{folder} is not the folder of a training run: expected {RUN} in it, beside {METRICS}, {SPEC} "
            f"and {EPISODES}/{_hint(folder)}"
        )
    info = _load(folder / RUN, TypeAdapter(RunInfo))
    controls: tuple[Control, ...] = ()
    if (folder / CONTROLS).is_file():
        controls = _load(folder / CONTROLS, TypeAdapter(tuple[Control, ...]))
    lines, unreadable = _read_metrics(folder / METRICS)
    spec = _bytes(folder / SPEC).decode("utf-8", "replace") if (folder / SPEC).is_file() else ""
    return Run(folder, info, spec, lines, controls, unreadable)


def _hint(folder: Path) -> str:
    if (folder / "episodes.jsonl").is_file():
        return ". This one holds episodes of `rolegraph run`, which trains nothing"
    return ""


def _load(path: Path, adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_json(_bytes(path))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise UsageError(
            f"{path} is not what a training run writes: {place + ': ' if place else ''}{fault['msg']}"
        ) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _read_metrics(path: Path) -> tuple[tuple[dict[str, float], ...], int]:
    """The steps in order, and how many lines could not be read. Lines of one step are put together."""
    steps: dict[float, dict[str, float]] = {}
    unreadable = 0
    if path.is_file():
        for line in whole_lines(path):
            figures = _figures(line)
            if "step" in figures:
                steps.setdefault(figures["step"], {}).update(figures)
            else:
                unreadable += 1
    return tuple(steps[step] for step in sorted(steps)), unreadable


def _figures(line: bytes) -> dict[str, float]:
    try:
        data: Any = from_json(line)
    except ValueError:
        return {}
    if not isinstance(data, dict):
        return {}
    return {
        key: value
        for key, value in cast("dict[str, Any]", data).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that end in a newline; a last one cut short is passed over. Raises UsageError."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n") and line.strip():
                    yield line
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
