"""Experiment trackers that receive a training: its metrics, a table of episodes for each step, its report.

TensorBoard shows metrics alone; Weights & Biases, MLflow and Trackio show all three.
"""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from rolegraph.engine.compile.earned import quoting_roles
from rolegraph.engine.errors import WorldError, first_line
from rolegraph.engine.records import Episode
from rolegraph.engine.records.info import without_credentials
from rolegraph.engine.spec import Spec
from rolegraph.engine.vocabulary import require_library

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
PROJECT = "rolegraph"
"""Name of the project or experiment that holds all trainings of a tracker."""
ROWS = 200
"""Rows of a table at most: a step may have thousands of answers, and a training hundreds of steps."""
ANSWER = 1_000
"""Characters of an answer in a table."""
COLUMNS = ("task", "rollout", "correct", "role", "index", "reward", "failure", "tokens", "answer")


_logger = logging.getLogger(__name__)


class Table(NamedTuple):
    """Rows of values, each as long as `columns`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def lists(self) -> dict[str, list[Any]]:
        """Return `columns` and `data` as Weights & Biases and Trackio take them."""
        return {"columns": [*self.columns], "data": [[*row] for row in self.rows]}


def episode_table(episodes: Iterable[Episode], spec: Spec) -> Table:
    """Return the first trajectories of episodes as rows, at most `ROWS`.

    An answer of a role that may quote a hidden task field is left out, and a failure is its name alone.

    Args:
        episodes: The episodes; no more are read than the rows need.
        spec: The spec of the episodes.
    """
    rows: list[Sequence[object]] = []
    quoting = quoting_roles(spec)
    for episode in episodes:
        for one in episode.trajectories:
            tokens = sum(step.response_tokens for step in one.steps)
            said = one.steps[-1].model_response if one.steps and one.name not in quoting else ""
            failure = one.failure.name.value if one.failure else ""
            own = (one.name, one.index, one.reward, failure, tokens, said[:ANSWER])
            rows.append((episode.task_id, episode.rollout, episode.is_correct, *own))
        if len(rows) >= ROWS:
            break
    return Table(COLUMNS, rows[:ROWS])


class Tracker(ABC):
    """Run of a training in an experiment tracker; a base for each of the services."""

    name: ClassVar[str]
    library: ClassVar[str]
    has_tables: ClassVar[bool] = True
    """Whether the service shows tables."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        """Send the metrics and the tables of a step, by name."""

    def add_file(self, path: Path) -> None:  # noqa: B027 - a service without artifacts sends none
        """Send a file as an artifact; nothing where the service has no artifacts."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """End the run."""


class _TensorBoard(Tracker):
    name, library = "tensorboard", "tensorboardX"
    has_tables = False

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        self._writer: Any = import_module("tensorboardX").SummaryWriter(str(folder / self.name))

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()


class _Wandb(Tracker):
    name = library = "wandb"

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        self._wandb: Any = import_module("wandb")
        self._run = self._wandb.init(project=PROJECT, name=title, dir=str(folder), config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        shown = {name: self._wandb.Table(**table.lists()) for name, table in tables.items()}
        self._run.log({**metrics, **shown}, step=step)

    def add_file(self, path: Path) -> None:
        artifact = self._wandb.Artifact(f"{path.stem}-{self._run.id}", type=path.stem)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Mlflow(Tracker):
    """Run of MLflow at the server or store of `MLFLOW_TRACKING_URI`, or at MLflow's default."""

    name = library = "mlflow"

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        # The client and not the module's functions: their active run belongs to one thread.
        self._client: Any = import_module("mlflow").MlflowClient()
        self._entities: Any = import_module("mlflow.entities")
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        self._run: str = self._client.create_run(experiment, run_name=title).info.run_id
        scalars = {key: value for key, value in config.items() if isinstance(value, str | int | float)}
        parameters = [self._entities.Param(key, str(value)[:500]) for key, value in scalars.items()]
        self._client.log_batch(self._run, params=parameters)
        self._client.log_dict(self._run, dict(config), "run.json")

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        now = int(time.time() * 1000)
        # MLflow refuses other characters, such as those of a task's id in the name of an estimator's figure.
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in metrics.items()}
        sent = [self._entities.Metric(name, value, now, step) for name, value in named.items()]
        self._client.log_batch(self._run, metrics=sent)
        for name, (columns, rows) in tables.items():
            data = {column: [row[place] for row in rows] for place, column in enumerate(columns)}
            self._client.log_table(self._run, data, f"{name}-{step:06d}.json")

    def add_file(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class _Trackio(Tracker):
    """Run of Trackio on this machine, or at `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL`."""

    name = library = "trackio"

    def __init__(self, folder: Path, title: str, config: Mapping[str, Any]) -> None:
        self._trackio: Any = import_module("trackio")
        self._run = self._trackio.init(project=PROJECT, name=title, config=dict(config), embed=False)

    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        shown = {name: self._trackio.Table(**table.lists()) for name, table in tables.items()}
        figures = {name: value for name, value in metrics.items() if name != "step"}  # Trackio's own name
        self._run.log({**figures, **shown}, step=step)

    def add_file(self, path: Path) -> None:
        self._run.log_artifact(path, name=f"{path.stem}-{self._run.name}".replace(" ", "-"), type=path.stem)

    def close(self, *, failed: bool) -> None:
        self._run.finish()


_KINDS: Mapping[str, Any] = {kind.name: kind for kind in (_TensorBoard, _Wandb, _Mlflow, _Trackio)}


@contextmanager
def tracker(name: TrackerName, folder: Path, run: str, config: Mapping[str, Any]) -> Generator[Tracker]:
    """Open a tracker for a block.

    Args:
        name: The tracker.
        folder: The run's folder, below which local files are written.
        run: Name of the run.
        config: Settings to show beside the metrics.

    Raises:
        UsageError: The tracker's library is not installed.
        WorldError: The tracker cannot start a run, as when its server does not answer.
    """
    kind = _KINDS[name]
    require_library(kind.library, name, "its metrics")
    try:
        opened: Tracker = kind(folder, f"{run} {folder.name}", config)
    except Exception as error:  # a tracker's library may raise anything
        raise WorldError(f"{name} cannot start a run: {without_credentials(first_line(error))}") from error
    failed = True
    try:
        yield opened
        failed = False
    finally:
        try:
            opened.close(failed=failed)
        except Exception as error:  # the training is over, and its folder is whole
            _logger.warning("%s cannot end its run: %s", name, without_credentials(first_line(error)))
