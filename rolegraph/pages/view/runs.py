"""Runs as the viewer reads them: files of episodes, and a row for each episode.

Indexes are read again after their files have changed; episodes are read one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from rolegraph.engine.compile.leaving import DisclosureRule, disclosure_rule, read_spec, without_hidden
from rolegraph.engine.errors import DataError, RolegraphError, UsageError, os_errors_as
from rolegraph.engine.records import Episode, Extent, RunFolder, RunInfo
from rolegraph.engine.records.credit import CreditRow
from rolegraph.engine.records.episodes import EpisodeFile
from rolegraph.engine.records.folder import RunPart, missing_run
from rolegraph.engine.records.index import IndexNumbers
from rolegraph.engine.records.writer_lock import is_held
from rolegraph.engine.spec import Spec
from rolegraph.engine.spec.yaml_source import parse_yaml, value_at
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.training.analysis.intervals import ByTask
from rolegraph.pages.recorded_credit import recorded_rows
from rolegraph.pages.sides import side_names
from rolegraph.pages.view.pieces import PiecesOf, pieces_of
from rolegraph.pages.view.rows import EpisodeCounts, EpisodeLocation, EpisodeRows
from rolegraph.pages.view.timeline import Dag, read_dag

_LOOKED_AT = 20
"""Largest number of files in which `hidden_fields` looks at a task."""

_FileState = tuple[int, int, int]
"""Time of change, size and inode of a file when it was read."""
_Content = tuple[_FileState, Any]
T = TypeVar("T")


@dataclass
class ViewedRun:
    """Run or training that the viewer shows; created by `open_run`."""

    folder: RunFolder
    _contents: dict[tuple[Path, str], _Content] = field(default_factory=dict[tuple[Path, str], "_Content"])
    """Contents of files by path and kind, each with the state of the file when it was read."""
    _numbers: IndexNumbers = field(default_factory=IndexNumbers)
    _reading: Lock = field(default_factory=Lock)
    """Lock of `_numbers`, so that a second page waits while the first reads an index."""

    @cached_property
    def spec(self) -> Spec | None:
        """Spec of the run; None if it is missing or invalid."""
        return read_spec(self.folder)

    @cached_property
    def dag(self) -> Dag | None:
        """DAG of an episode's turns, with an edge to each turn from each turn that it waits for; None without
        a spec."""
        return read_dag(self.spec, self.info.templates)

    @cached_property
    def pieces(self) -> PiecesOf:
        """Function from (role, instance, token ids) to the text of each token."""
        return pieces_of(self.spec)

    @property
    def fault(self) -> str:
        """Error message for a damaged `run.json`; empty if the file can be read."""
        try:
            _ = self.info
        except RolegraphError as error:
            return str(error)
        return ""

    @property
    def info(self) -> RunInfo:
        """Current content of `run.json`; raises DataError where it is damaged."""
        file = self.folder.info_file
        return self._current(file, self.folder.info) if file.exists() else self.folder.info()

    @property
    def is_running(self) -> bool:
        """True where a process writes in the folder of an unfinished run."""
        return self.info.finished is None and is_held(self.folder.path)

    @property
    def lines(self) -> Sequence[Mapping[str, float]]:
        """Metrics of each step of a training, without damaged lines; cached until the file changes.

        Raises DataError where the file cannot be read.
        """
        file = self.folder.metrics_file
        return self._current(file, lambda: self.folder.metrics(lambda fault: None)) if file.exists() else ()

    def parts(self) -> list[RunPart]:
        """Return the current files of episodes, the newest step first; of one step, the validation first."""
        return sorted(self.folder.parts(), key=lambda part: -part.step)

    def common_steps(self) -> list[int]:
        """Return the steps of a training that can be compared: validated steps if there are several, else
        all."""
        parts = [part for part in self.parts()[::-1] if part.split]
        validated = [part.step for part in parts if part.split == "validation"]
        return validated if len(validated) > 1 else [part.step for part in parts if part.split == "train"]

    def rows(self, part: RunPart) -> EpisodeRows:
        """Return the rows of a file, in file order without damaged lines; cached until it changes.

        Raises DataError as `read` does.
        """
        with self._reading:
            return self._current(part.path, lambda: EpisodeRows.read(part, self._numbers))

    def every(self) -> EpisodeRows:
        """Return the rows of all current files, those of the newest step first; raises as `rows` does."""
        return EpisodeRows.joined([self.rows(part) for part in self.parts()], self._numbers)

    def values(self, part: RunPart) -> Mapping[str, ByTask]:
        """Return `EpisodeRows.values` of a file, cached until it changes; raises as `rows` does."""
        return self._current(part.path, lambda: self.rows(part).values(self.info.metric_names), "values")

    def equal_figures(self) -> list[tuple[str, ...]]:
        """Group the names of the episodes' metrics: those with equal values in every episode share a tuple;
        raises as `rows` does."""
        return self.every().equal_figures(self.info.metric_names)

    def outcomes(self, part: RunPart) -> EpisodeCounts:
        """Return `EpisodeRows.counts` of a file, cached until it changes; raises as `rows` does."""
        return self._current(part.path, lambda: self.rows(part).counts(), "outcomes")

    def answers(self, part: RunPart, expression: str) -> dict[int, bool]:
        """Return the cache of an expression's values by offset of the episode; the caller fills it.

        A change of the file empties the cache.
        """
        return self._current(part.path, dict[int, bool], f"where {expression}")

    def setting(self, key: str) -> str:
        """Return the value of a dotted key in the resolved spec as YAML; empty where the spec lacks it."""
        file = self.folder.spec_file
        if not file.exists():
            return ""
        spec = self._current(file, lambda: parse_yaml(self.folder.spec() or "{}", str(file)).data)
        value = value_at(spec, tuple(key.split(".")))
        return "" if value is None else dump_yaml(value, one_line=True)

    def _current(self, file: Path, read: Callable[[], T], kind: str = "") -> T:
        """Return the value of `read` for a file; it is called again only after the file has changed."""
        with os_errors_as(DataError, f"cannot read {file}"):
            status = file.stat()
        state = status.st_mtime_ns, status.st_size, status.st_ino
        key = file, kind
        if key not in self._contents or self._contents[key][0] != state:
            self._contents[key] = state, read()
        return self._contents[key][1]

    def row(self, part: RunPart, number: int) -> EpisodeLocation:
        """Return the row with a number; raises UsageError for an unknown number, DataError as `rows`."""
        rows = self.rows(part)
        if not 0 <= number < len(rows):
            raise UsageError(
                f"{part.name} has {len(rows)} episodes, numbered from 0; episode {number} does not exist"
            )
        return rows[number]

    def read(self, row: EpisodeLocation) -> Episode:
        """Read the episode of a row; raises DataError where the file no longer has it."""
        return EpisodeFile(row.part.path).read(row.entry)

    def rollouts(self, row: EpisodeLocation) -> list[EpisodeLocation]:
        """Return the rows with the same task and file as a row, itself included, in the order of the
        rollouts."""
        return [*self.rows(row.part).of_task(row.entry.task).by_task()]

    def located(self, part: RunPart, task: str, rollout: int) -> list[EpisodeLocation]:
        """Return the locations of the episodes with a task and rollout in a file; raises as `rows` does."""
        rows = self.rows(part).of_task(task)
        return [*rows.take(rows.rollouts == rollout)]

    def credit(self, row: EpisodeLocation, *, hidden: bool) -> list[CreditRow]:
        """Return the credit rows of an episode's turns, and of the turns that they were compared with.

        Roles without a row in the step's table are compared on their task. Raises DataError if a file cannot
        be read.

        Args:
            row: Row of the episode.
            hidden: False to leave out groups whose keys may reveal the value of a hidden field.
        """
        table = self._credit_table(row.part.step) if row.part.split == "train" else None
        next_group = 1 + max((it.group for it in table or () if it.group is not None), default=-1)
        other_rows = [*recorded_rows(self._readable(self.rollouts(row)), start=next_group)]
        if table is None and any(it.over is not Extent.TASK for it in other_rows):
            other_rows = [*recorded_rows(self._readable(self.rows(row.part)))]
        roles_in_table = {it.role for it in table or ()}
        rows = [*(table or ()), *(it for it in other_rows if it.role not in roles_in_table)]
        return [it for it in rows if hidden or self.rule.shows_group(it.role, it.by)]

    def _credit_table(self, step: int) -> list[CreditRow] | None:
        """Return the rows of a step's credit without damaged lines; None without a file. The latest step's
        rows are cached."""
        file = self.folder.credit_file(step)
        if not file.exists():
            return None
        for key in [key for key in self._contents if key[1] == "credit" and key[0] != file]:
            del self._contents[key]
        return self._current(file, lambda: self.folder.credit_rows(step, lambda fault: None), "credit")

    def _readable(self, rows: Iterable[EpisodeLocation]) -> Iterator[Episode]:
        """Yield the episodes of rows, without damaged ones."""
        for row in rows:
            with suppress(DataError):
                yield self.read(row)

    def hidden_fields(self) -> set[str]:
        """Return the names of hidden task fields that the first episode of each file has; raises
        DataError."""
        first_rows, info = [rows[0] for part in self.parts() if (rows := self.rows(part))], self.info
        return {
            field for row in first_rows[:_LOOKED_AT] for field in self.read(row).task if info.is_hidden(field)
        }

    @cached_property
    def rule(self) -> DisclosureRule:
        """Rule for what may leave the run's episodes; raises DataError if `run.json` is damaged."""
        return disclosure_rule(self.spec, self.info.is_hidden)

    def without_hidden(self, episode: Episode) -> Episode:
        """Return a copy of an episode that can be shown without revealing hidden task fields."""
        return without_hidden(episode, self.rule)


def open_run(path: Path) -> ViewedRun:
    """Open the run in a folder; raises UsageError for a folder without a run.

    A damaged `run.json` raises no error here: the message is the run's `fault`, so that other runs are still
    shown.
    """
    if not path.is_dir():
        raise missing_run(path)
    folder = RunFolder(path)
    with suppress(DataError):
        folder.info()
    return ViewedRun(folder)


def run_names(runs: Sequence[ViewedRun]) -> list[str]:
    """Return a name for each run: that of its folder, with parent folders where two runs share the name."""
    return side_names([str(run.folder.path) for run in runs])
