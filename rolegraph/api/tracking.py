"""Experiment trackers that receive a training: its metrics, a table of episodes for each step, its report."""

from __future__ import annotations

import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rolegraph.engine.compile.leaving import DisclosureRule, without_hidden
from rolegraph.engine.connections import bypass_proxies, route
from rolegraph.engine.errors import WorldError, first_line, os_errors_as
from rolegraph.engine.plugins import plugin
from rolegraph.engine.records import Episode
from rolegraph.engine.vocabulary import require_library

ROWS = 200
"""Largest number of rows of a table: a step may have thousands of answers, and a training hundreds of
steps."""
ANSWER = 1_000
"""Largest number of characters of an answer in a table."""
COLUMNS = ("task", "rollout", "correct", "role", "index", "reward", "failure", "tokens", "answer")

_logger = logging.getLogger(__name__)


class Table(NamedTuple):
    """Table for a tracker: names of columns, and rows with a value for each column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def lists(self) -> dict[str, list[Any]]:
        """Return `columns` and `data` in the form of Weights & Biases and Trackio."""
        return {"columns": [*self.columns], "data": [[*row] for row in self.rows]}


def episode_table(episodes: Iterable[Episode], rule: DisclosureRule) -> Table:
    """Return the first trajectories of episodes as rows, at most `ROWS`.

    Answers of roles that may quote a hidden task field are left out, and of a failure only the name is shown.

    Args:
        episodes: The episodes; only as many as the rows need are read.
        rule: Rule for the parts of the episodes that may leave this machine.
    """
    rows: list[Sequence[object]] = []
    for recorded_episode in episodes:
        episode = without_hidden(recorded_episode, rule)
        for trajectory in episode.trajectories:
            count = sum(step.response_tokens for step in trajectory.steps)
            answer = trajectory.steps[-1].model_response if trajectory.steps else ""
            failure = trajectory.failure.name.value if trajectory.failure else ""
            cells = (trajectory.name, trajectory.index, trajectory.reward, failure, count, answer[:ANSWER])
            rows.append((episode.task_id, episode.rollout, episode.is_correct, *cells))
        if len(rows) >= ROWS:
            break
    return Table(COLUMNS, rows[:ROWS])


class Tracker(ABC):
    """Run of a training in an experiment tracker; packages register classes (`rolegraph.trackers`)."""

    library: ClassVar[str]
    """Module that the tracker imports."""
    url_variable: ClassVar[str] = ""
    """Environment variable with the URL of the server; empty for a tracker without a server."""
    name: str = ""
    """Name under which the class is registered."""
    has_tables: ClassVar[bool] = True
    """True if the service shows tables."""

    @abstractmethod
    def __init__(self, folder: Path, run: str, config: Mapping[str, Any]) -> None:
        """Start a run in the experiment tracker.

        Args:
            folder: New folder for local files.
            run: Name of the run.
            config: Settings to show beside the metrics.
        """

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float], tables: Mapping[str, Table]) -> None:
        """Send the metrics of a step, and its tables by name."""

    def add_file(self, path: Path) -> None:  # noqa: B027 - a service without artifacts sends none
        """Send a file as an artifact; do nothing if the service has no artifacts."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """End the run in the tracker, marked as failed or finished."""


@contextmanager
def tracker(name: str, folder: Path, run: str, config: Mapping[str, Any]) -> Generator[Tracker]:
    """Open a tracker for a block.

    Args:
        name: The tracker.
        folder: The run's folder. Local files go into a new folder with a random name in it, because the
            trackers' libraries follow links.
        run: Name of the run.
        config: Settings to show beside the metrics.

    Raises:
        UsageError: No such tracker, or its library is not installed.
        WorldError: The tracker cannot start a run, for example because its server does not answer.
    """
    kind: type[Tracker] = plugin("trackers", name)
    require_library(kind.library, name, "its metrics")
    url = os.environ.get(kind.url_variable, "")
    bypass_proxies(url)  # the library makes its own clients
    with _new_folder(folder / f"{name}-{secrets.token_hex(8)}") as files_folder:
        try:
            open_tracker = kind(files_folder, f"{run} {folder.name}", config)
        except Exception as error:  # a tracker's library may raise anything
            raise WorldError(f"{name} cannot start a run{route(url)}: {first_line(error)}") from error
        open_tracker.name, has_failed = name, True
        try:
            yield open_tracker
            has_failed = False
        finally:
            try:
                open_tracker.close(failed=has_failed)
            except Exception as error:  # the training is over, and its folder is whole
                _logger.warning("%s cannot end its run: %s", name, first_line(error))


@contextmanager
def _new_folder(path: Path) -> Generator[Path]:
    """Create a new folder for a block, and remove it afterwards if it is empty."""
    with os_errors_as(WorldError, f"cannot write {path}"):
        path.mkdir()
    try:
        yield path
    finally:
        with suppress(OSError):  # the tracker has written files
            path.rmdir()
