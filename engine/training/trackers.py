"""Experiment trackers that receive a training's metrics: TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from rolegraph.engine.vocabulary import require_library

TrackerName = Literal["tensorboard", "wandb"]


class Tracker(Protocol):
    """Receiver of metrics besides the run's folder."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step."""
        ...

    def close(self) -> None:
        """Write buffered metrics and end the tracker's run."""
        ...


class _TensorBoard:
    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        self._writer: Any = import_module("tensorboardX").SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        self._run: Any = import_module("wandb").init(
            project="rolegraph", name=f"{name} {folder.name}", dir=str(folder), config=dict(config)
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS: dict[TrackerName, tuple[str, Callable[[Path, str, Mapping[str, Any]], Tracker]]] = {
    "tensorboard": ("tensorboardX", _TensorBoard),
    "wandb": ("wandb", _WandB),
}


def open_tracker(name: TrackerName, folder: Path, run: str, config: Mapping[str, Any]) -> Tracker:
    """Open a tracker.

    Args:
        name: the tracker.
        folder: the run's folder, below which local files are written.
        run: name of the run.
        config: settings to show beside the metrics.

    Raises:
        UsageError: if the tracker's library is not installed.
    """
    module, make = _TRACKERS[name]
    require_library(module, name, "its metrics")
    return make(folder, run, config)
