"""Runs as the viewer reads them: files of episodes, and a row for each episode.

A row is a line of an index, with outcome and offset of an episode. Indexes are read again after their files
have changed; episodes are read one at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from rolegraph.engine.compile.leaving import DisclosureRule, disclosure_rule, without_hidden
from rolegraph.engine.errors import DataError, RolegraphError, UsageError, os_errors_as
from rolegraph.engine.records import Episode, RunFolder, RunInfo
from rolegraph.engine.records.episode import EpisodePart
from rolegraph.engine.records.episodes import EpisodeFile, IndexEntry
from rolegraph.engine.records.means import means_by_task
from rolegraph.engine.records.writer_lock import is_held
from rolegraph.engine.spec import Spec
from rolegraph.engine.spec.yaml_source import parse_yaml, value_at
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.training.analysis.intervals import ByTask
from rolegraph.pages.report.compare.sides import side_names
from rolegraph.pages.report.reading import read_spec
from rolegraph.pages.view.pieces import PiecesOf, pieces_of
from rolegraph.pages.view.timeline import Dag, read_dag

_LOOKED_AT = 20
"""Number of files in which `hidden_fields` looks at a task."""
PARTS: Sequence[EpisodePart] = get_args(EpisodePart)
"""Kinds of files of a training's episodes."""
_SPLITS = ("validation", "train", "greedy")
"""Splits in the order in which the files of a step are listed."""
_PART = re.compile(rf"(?P<split>{'|'.join(PARTS)})-(?P<step>\d{{1,12}})")


class RunPart(NamedTuple):
    """File of recorded episodes: of a whole run, or of one training step."""

    name: str
    path: Path
    split: str = ""
    """For a training: `train`, `validation` or `greedy`."""
    step: int = 0


class EpisodeLocation(NamedTuple):
    """Location of an episode: its number in a file, from 0, and its index entry."""

    part: RunPart
    number: int
    entry: IndexEntry

    @property
    def rewards(self) -> dict[str, float]:
        """Mean reward of each role that has rewards, by its name."""
        roles = self.entry.roles.items()
        return {name: sum(role.rewards) / len(role.rewards) for name, role in roles if role.rewards}


def values_by_task(rows: Iterable[EpisodeLocation], names: Collection[str]) -> dict[str, ByTask]:
    """Return the figures with these names of episodes, each with its mean over the rollouts of each task.

    The rewards of roles follow as `reward/{role}`.
    """
    rows = [*rows]
    figures = means_by_task((row.entry.task, row.entry.figures) for row in rows)
    rewards = means_by_task((row.entry.task, row.rewards) for row in rows)
    return {
        **{name: values for name, values in figures.items() if name in names},
        **{f"reward/{role}": values for role, values in rewards.items()},
    }


@dataclass(slots=True)
class EpisodeCounts:
    """Numbers of episodes by outcome, and by the failures in them."""

    right: int = 0
    wrong: int = 0
    """Number of episodes that are not correct, with or without a failure."""
    undecided: int = 0
    failed: int = 0
    """Number of episodes with a failure of any role."""
    wrong_by_failure: int = 0
    """Number of the wrong episodes that have a failure."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Number of episodes by role and name of a failure in them."""

    @property
    def total(self) -> int:
        """Number of all episodes."""
        return self.right + self.wrong + self.undecided


def count_episodes(rows: Iterable[EpisodeLocation]) -> EpisodeCounts:
    """Count episodes by their index entries."""
    counts = EpisodeCounts()
    for entry in (row.entry for row in rows):
        failures = [(name, failure) for name, role in entry.roles.items() for failure in role.failures]
        is_wrong = not (entry.undecided or entry.is_correct)
        counts.undecided += entry.undecided
        counts.right += entry.is_correct and not entry.undecided
        counts.wrong += is_wrong
        counts.failed += bool(failures)
        counts.wrong_by_failure += is_wrong and bool(failures)
        counts.failures.update(failures)
    return counts


_FileState = tuple[int, int, int]
"""Time of change, size and inode of a file when it was read."""
_Content = tuple[_FileState, Any]
T = TypeVar("T")


@dataclass
class ViewedRun:
    """Run or training that the viewer shows; created by `open_run`."""

    folder: RunFolder
    _contents: dict[tuple[Path, str], _Content] = field(default_factory=dict[tuple[Path, str], "_Content"])
    """Contents of files by file and kind, each with the state of the file that they were read in."""

    @cached_property
    def spec(self) -> Spec | None:
        """Spec of the run; None where it is missing or invalid."""
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
        """Error message for a damaged `run.json`; empty where it can be read."""
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
        """Return the current files of episodes, the newest step first, and of a step its validation."""
        if self.info.kind == "run":
            return [RunPart("episodes", self.folder.episodes)] if self.folder.episodes.exists() else []
        parts = [
            RunPart(path.stem, path, split, step)
            for split in PARTS
            for step, path in self.folder.episodes_files(split)
        ]
        return sorted(parts, key=lambda part: (-part.step, _SPLITS.index(part.split)))

    def part(self, name: str) -> RunPart:
        """Return the file of episodes with a name; raises UsageError where the run can have no such file."""
        if self.info.kind == "run" and name == "episodes":
            return RunPart(name, self.folder.episodes)
        if (match := _PART.fullmatch(name)) and self.info.kind == "train":
            return RunPart(name, self.folder.steps / f"{name}.jsonl", match["split"], int(match["step"]))
        raise UsageError(f"the run has no episodes called {name!r}")

    def rows(self, part: RunPart) -> Sequence[EpisodeLocation]:
        """Return the index entries of a file as rows, in file order without damaged lines; cached until it
        changes.

        Raises DataError as `read` does.
        """

        def read() -> list[EpisodeLocation]:
            entries = EpisodeFile(part.path).entries(lambda fault: None)
            return [EpisodeLocation(part, number, entry) for number, entry in enumerate(entries)]

        return self._current(part.path, read)

    def values(self, part: RunPart) -> Mapping[str, ByTask]:
        """Return `values_by_task` of a file of episodes, cached until it changes; raises as `rows` does."""
        names = self.info.figure_names
        return self._current(part.path, lambda: values_by_task(self.rows(part), names), "values")

    def outcomes(self, part: RunPart) -> EpisodeCounts:
        """Return `count_episodes` of a file of episodes, cached until it changes; raises as `rows` does."""
        return self._current(part.path, lambda: count_episodes(self.rows(part)), "outcomes")

    def setting(self, key: str) -> str:
        """Return the value of a dotted key in the resolved spec as YAML; empty where the spec lacks it."""
        file = self.folder.spec_file
        if not file.exists():
            return ""
        spec = self._current(file, lambda: parse_yaml(self.folder.spec() or "{}", str(file)).data)
        value = value_at(spec, tuple(key.split(".")))
        return "" if value is None else dump_yaml(value, one_line=True)

    def _current(self, file: Path, read: Callable[[], T], kind: str = "") -> T:
        """Return what `read` returns, read again only after the file has changed."""
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
        """Return the rows of a row's task in its file, its own included, in the order of the rollouts."""
        rows = [other for other in self.rows(row.part) if other.entry.task == row.entry.task]
        return sorted(rows, key=lambda other: other.entry.rollout)

    def same_task(self, row: EpisodeLocation) -> list[tuple[EpisodeLocation, Episode]]:
        """Read all episodes of a row's task in its file, its own included; each comes with its row."""
        return [(other, self.read(other)) for other in self.rollouts(row)]

    def same_step(self, row: EpisodeLocation) -> list[tuple[EpisodeLocation, Episode]]:
        """Read all episodes of a row's file; each comes with its row."""
        return [(other, self.read(other)) for other in self.rows(row.part)]

    def hidden_fields(self) -> set[str]:
        """Return the names of hidden task fields, found in the first episode of each file; raises
        DataError."""
        first, info = [rows[0] for part in self.parts() if (rows := self.rows(part))], self.info
        return {field for row in first[:_LOOKED_AT] for field in self.read(row).task if info.is_hidden(field)}

    @cached_property
    def rule(self) -> DisclosureRule:
        """Rule for what may leave of the run's episodes; raises DataError where `run.json` is damaged."""
        return disclosure_rule(self.spec, self.info.is_hidden)

    def without_hidden(self, episode: Episode) -> Episode:
        """Return a copy of an episode that can be shown without revealing hidden task fields."""
        return without_hidden(episode, self.rule)


def open_run(path: Path) -> ViewedRun:
    """Open the run in a folder; raises UsageError for a folder without a run.

    A damaged `run.json` is the run's `fault`, so that it hides no other run.
    """
    if not path.is_dir():
        raise UsageError(f"there is no folder {path}; give the folder of a run or a training")
    folder = RunFolder(path)
    with suppress(DataError):
        folder.info()
    return ViewedRun(folder)


def run_names(runs: Sequence[ViewedRun]) -> list[str]:
    """Return a name for each run: that of its folder, or its path where two runs share the name."""
    return side_names([str(run.folder.path) for run in runs])
