"""Trackers of four services; TensorBoard gets only metrics, the others also tables and files."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rolegraph.api.tracking import Table, Tracker

PROJECT = "rolegraph"
"""Name of the project or experiment of a tracker that holds all trainings."""


class TensorBoardTracker(Tracker):
    """Experiment tracker that writes metrics as TensorBoard event files."""

    library = "tensorboardX"
    has_tables = False

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        self._writer: Any = import_module("tensorboardX").SummaryWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """Experiment tracker that sends metrics to a run of Weights & Biases."""

    library = "wandb"
    url_variable = "WANDB_BASE_URL"

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        self._wandb: Any = import_module("wandb")
        self._run = self._wandb.init(project=PROJECT, name=title, dir=str(folder), config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        wandb_tables = {name: self._wandb.Table(**table.lists()) for name, table in tables.items()}
        self._run.log({**metrics, **wandb_tables}, step=step)

    def add_file(self, path: Path) -> None:
        artifact = self._wandb.Artifact(f"{path.stem}-{self._run.id}", type=path.stem)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class MlflowTracker(Tracker):
    """Run of MLflow at the server or store of `MLFLOW_TRACKING_URI`, or at MLflow's default."""

    library = "mlflow"
    url_variable = "MLFLOW_TRACKING_URI"

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        # The client and not the module's functions: their active run belongs to one thread.
        self._client: Any = import_module("mlflow").MlflowClient()
        self._entities: Any = import_module("mlflow.entities")
        experiment = self._client.get_experiment_by_name(PROJECT)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        self._run: str = self._client.create_run(experiment_id, run_name=title).info.run_id
        scalars = {key: value for key, value in config.items() if isinstance(value, str | int | float)}
        parameters = [self._entities.Param(key, str(value)[:500]) for key, value in scalars.items()]
        self._client.log_batch(self._run, params=parameters)
        self._client.log_dict(self._run, dict(config), "run.json")

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        now = int(time.time() * 1000)
        # MLflow refuses other characters, such as those of a task's id in the name of an estimator's figure.
        renamed_metrics = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in metrics.items()}
        entities = [self._entities.Metric(name, value, now, step) for name, value in renamed_metrics.items()]
        self._client.log_batch(self._run, metrics=entities)
        for name, (columns, rows) in tables.items():
            data = {column: [row[index] for row in rows] for index, column in enumerate(columns)}
            self._client.log_table(self._run, data, f"{name}-{step:06d}.json")

    def add_file(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class TrackioTracker(Tracker):
    """Run of Trackio on this machine, or at `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL`."""

    library = "trackio"
    url_variable = "TRACKIO_SERVER_URL"

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        self._trackio: Any = import_module("trackio")
        self._run = self._trackio.init(project=PROJECT, name=title, config=dict(config), embed=False)

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        trackio_tables = {name: self._trackio.Table(**table.lists()) for name, table in tables.items()}
        figures = {name: value for name, value in metrics.items() if name != "step"}  # Trackio's own name
        self._run.log({**figures, **trackio_tables}, step=step)

    def add_file(self, path: Path) -> None:
        self._run.log_artifact(path, name=f"{path.stem}-{self._run.name}".replace(" ", "-"), type=path.stem)

    def close(self, *, failed: bool) -> None:
        self._run.finish()
