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
"""Rows of a table at most: a step may have thousands of answers, and a training hundreds of steps."""
ANSWER = 1_000
"""Characters of an answer in a table."""
COLUMNS = ("task", "rollout", "correct", "role", "index", "reward", "failure", "tokens", "answer")

_logger = logging.getLogger(__name__)


class Table(NamedTuple):
    """Table for a tracker: column names, and rows of as many values."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def lists(self) -> dict[str, list[Any]]:
        """Return `columns` and `data` as Weights & Biases and Trackio take them."""
        return {"columns": [*self.columns], "data": [[*row] for row in self.rows]}


def episode_table(episodes: Iterable[Episode], rule: DisclosureRule) -> Table:
    """Return the first trajectories of episodes as rows, at most `ROWS`.

    An answer of a role that may quote a hidden task field is left out, and a failure is its name alone.

    Args:
        episodes: The episodes; no more are read than the rows need.
        rule: Rule for what may leave of the episodes.
    """
    rows: list[Sequence[object]] = []
    for whole in episodes:
        episode = without_hidden(whole, rule)
        for one in episode.trajectories:
            tokens = sum(step.response_tokens for step in one.steps)
            answer = one.steps[-1].model_response if one.steps else ""
            failure = one.failure.name.value if one.failure else ""
            cells = (one.name, one.index, one.reward, failure, tokens, answer[:ANSWER])
            rows.append((episode.task_id, episode.rollout, episode.is_correct, *cells))
        if len(rows) >= ROWS:
            break
    return Table(COLUMNS, rows[:ROWS])


class Tracker(ABC):
    """Run of a training in an experiment tracker; packages register classes (`rolegraph.trackers`)."""

    library: ClassVar[str]
    """Module that the tracker imports."""
    url_variable: ClassVar[str] = ""
    """Environment variable with the URL of the server; empty for trackers without one."""
    name: str = ""
    """Name under which the class is registered."""
    has_tables: ClassVar[bool] = True
    """Whether the service shows tables."""

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
        """Send the metrics and the tables of a step, by name."""

    def add_file(self, path: Path) -> None:  # noqa: B027 - a service without artifacts sends none
        """Send a file as an artifact; nothing where the service has no artifacts."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """End the run in the tracker, marked as failed or finished."""


@contextmanager
def tracker(name: str, folder: Path, run: str, config: Mapping[str, Any]) -> Generator[Tracker]:
    """Open a tracker for a block.

    Args:
        name: The tracker.
        folder: The run's folder. Local files go into a new folder of a random name in it, because the
            libraries follow the links that they find.
        run: Name of the run.
        config: Settings to show beside the metrics.

    Raises:
        UsageError: No such tracker, or its library is not installed.
        WorldError: The tracker cannot start a run, as when its server does not answer.
    """
    kind: type[Tracker] = plugin("trackers", name)
    require_library(kind.library, name, "its metrics")
    url = os.environ.get(kind.url_variable, "")
    bypass_proxies(url)  # the library makes its own clients
    with _new_folder(folder / f"{name}-{secrets.token_hex(8)}") as files:
        try:
            opened = kind(files, f"{run} {folder.name}", config)
        except Exception as error:  # a tracker's library may raise anything
            raise WorldError(f"{name} cannot start a run{route(url)}: {first_line(error)}") from error
        opened.name, failed = name, True
        try:
            yield opened
            failed = False
        finally:
            try:
                opened.close(failed=failed)
            except Exception as error:  # the training is over, and its folder is whole
                _logger.warning("%s cannot end its run: %s", name, first_line(error))


@contextmanager
def _new_folder(path: Path) -> Generator[Path]:
    """Create a folder that does not exist, and remove it after the block where it is empty."""
    with os_errors_as(WorldError, f"cannot write {path}"):
        path.mkdir()
    try:
        yield path
    finally:
        with suppress(OSError):  # the tracker has written files
            path.rmdir()
