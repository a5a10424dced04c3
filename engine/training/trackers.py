"""Experiment trackers that receive a training's metrics: TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rolegraph.engine.vocabulary import require_library

TrackerName = Literal["tensorboard", "wandb"]

Log = Callable[[int, Mapping[str, float]], object]
"""Function that sends the metrics of a step."""


@contextmanager
def tracker(name: TrackerName, folder: Path, run: str, config: Mapping[str, Any]) -> Generator[Log]:
    """Open a tracker for a block, and give the function that sends it metrics.

    Args:
        name: the tracker.
        folder: the run's folder, below which local files are written.
        run: name of the run.
        config: settings to show beside the metrics.

    Raises:
        UsageError: if the tracker's library is not installed.
    """
    if name == "tensorboard":
        require_library("tensorboardX", name, "its metrics")
        with import_module("tensorboardX").SummaryWriter(str(folder / name)) as writer:

            def log(step: int, metrics: Mapping[str, float]) -> None:
                for key, value in metrics.items():
                    writer.add_scalar(key, value, step)
                writer.flush()

            yield log
    else:
        require_library("wandb", name, "its metrics")
        tracked: Any = import_module("wandb").init(
            project="rolegraph", name=f"{run} {folder.name}", dir=str(folder), config=dict(config)
        )
        try:
            yield lambda step, metrics: tracked.log(dict(metrics), step=step)
        finally:
            tracked.finish()
