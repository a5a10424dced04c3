"""Index of a file of episodes: for each episode a line with its offset and its outcome.

The lines of a million episodes have few outcomes. Each outcome and each task id is therefore parsed once and
gets a number, so that a line is five integers. The index ends at the first line that is not in the writer's
exact form: later entries are made from the episodes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import from_json

from rolegraph.engine.limits.records import RECORD_LINE
from rolegraph.engine.records.confined import open_to_read
from rolegraph.engine.records.episode import averaged
from rolegraph.engine.records.files import is_no_file
from rolegraph.engine.records.jsonl import json_line, parse_json


@dataclass(frozen=True, slots=True)
class RoleIndexEntry:
    """Summary of a role in one episode: number of trajectories, their rewards, failures and remarks."""

    count: int = 0
    """Number of trajectories."""
    rewards: Sequence[float] = ()
    """Rewards of the trajectories that have one, in order."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of failures by name."""
    remarks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of trajectories by remark (`REMARKS`)."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Line of the index: offset and length of an episode's line, in bytes, and its outcome."""

    __pydantic_config__ = ConfigDict(defer_build=True)  # most commands build no validator

    offset: int
    length: int
    task: str
    rollout: int
    is_correct: bool
    metrics: Mapping[str, float]
    roles: Mapping[str, RoleIndexEntry]
    """Rewards, failures and remarks of each role, by the role's name."""
    undecided: bool = False
    """True if it is unknown whether the episode is correct."""

    @property
    def figures(self) -> Mapping[str, float]:
        """Values that are averaged over episodes, as in `Episode.figures`."""
        return averaged(self.metrics, None if self.undecided else self.is_correct)

    @property
    def rewards(self) -> dict[str, float]:
        """Mean reward of each role that has rewards, by its name."""
        roles = self.roles.items()
        return {name: sum(role.rewards) / len(role.rewards) for name, role in roles if role.rewards}

    @property
    def figures_with_rewards(self) -> dict[str, float]:
        """Values of `figures`, and `reward/{role}` of each role that has rewards."""
        return {**self.figures, **{f"reward/{role}": value for role, value in self.rewards.items()}}

    def located(self, offset: int, length: int, task: str, rollout: int) -> IndexEntry:
        """Return a copy of this entry for another episode with the same outcome."""
        return IndexEntry(
            offset, length, task, rollout, self.is_correct, self.metrics, self.roles, self.undecided
        )


_INDEX_ENTRY = TypeAdapter(IndexEntry)
_LINE = re.compile(
    rb'\{"offset":(\d{1,15}),"length":([1-9]\d{0,14}),"task":("[^"\\]*(?:\\.[^"\\]*)*"),"rollout":(\d{1,18}),'
    rb"(.*\}\n)"
)
"""Pattern of a line: offset, length, task and rollout, then the outcome."""
_NOWHERE = b'{"offset":0,"length":0,"task":"","rollout":0,'
"""Beginning of an index line with zeros for offset, length, task and rollout, so that an outcome alone can be
parsed."""
_BLOCK = 4096
"""Number of lines that are parsed at once."""
_CHECKED = 64
"""Number of a block's lines that are compared with the episodes; comparing all would read most of the
file."""


class _TaskNumbers(dict[bytes | str, int]):
    """Number of each task id, by the id and by the id's JSON text."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []

    def __missing__(self, key: bytes | str) -> int:
        if isinstance(key, bytes):
            number = self[str(from_json(key))]
        else:
            number = len(self.ids)
            self.ids.append(key)
        self[key] = number
        return number


class _OutcomeNumbers(dict[bytes, int]):
    """Number of each outcome, by the JSON text that follows the rollout in a line."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[IndexEntry] = []

    def __missing__(self, text: bytes) -> int:
        return self.add(text, _INDEX_ENTRY.validate_python(parse_json(_NOWHERE + text)))

    def add(self, text: bytes, entry: IndexEntry) -> int:
        """Give an outcome the next number, and return the number.

        Args:
            text: JSON text of the outcome.
            entry: An entry with the outcome.
        """
        self[text] = number = len(self.entries)
        self.entries.append(entry)
        return number


class IndexBlock(NamedTuple):
    """Columns of the index entries of some episodes of a file."""

    numbers: IndexNumbers
    offsets: Sequence[int]
    """Offset of each episode's line."""
    lengths: Sequence[int]
    tasks: Sequence[int]
    """Number of each episode's task id."""
    rollouts: Sequence[int]
    outcomes: Sequence[int]
    """Number of each episode's outcome."""

    @property
    def end(self) -> int:
        """Offset of the byte after the last episode's line."""
        return self.offsets[-1] + self.lengths[-1]

    def entries(self) -> Iterator[IndexEntry]:
        """Yield the entry of each episode."""
        tasks, outcomes = self.numbers.tasks, self.numbers.outcomes
        columns = self.offsets, self.lengths, self.tasks, self.rollouts, self.outcomes
        for offset, length, task, rollout, outcome in zip(*columns, strict=True):
            yield outcomes[outcome].located(offset, length, tasks[task], rollout)


class IndexNumbers:
    """Numbers that stand for task ids and outcomes in the columns of an index."""

    def __init__(self) -> None:
        self._tasks, self._outcomes = _TaskNumbers(), _OutcomeNumbers()
        self.tasks: Sequence[str] = self._tasks.ids
        """Task ids; the index of an id is the task's number in the rows."""
        self.outcomes: Sequence[IndexEntry] = self._outcomes.entries
        """An entry without a location for each outcome, by the outcome's number."""

    def number(self, task: str) -> int:
        """Return the number of a task id; -1 if no line has it."""
        return self._tasks.get(task, -1)

    def block(self, lines: Sequence[bytes]) -> IndexBlock:
        """Parse consecutive lines of an index; raises ValueError for a line in another form."""
        rows: list[tuple[bytes, ...]] = _LINE.findall(b"".join(lines))
        if len(rows) != len(lines):
            raise ValueError("a line is not as the writer would write it")
        offsets, lengths, tasks, rollouts, outcomes = zip(*rows, strict=True)
        lengths = [*map(int, lengths)]
        return IndexBlock(
            self,
            [*accumulate(lengths[:-1], initial=int(offsets[0]))],
            lengths,
            [*map(self._tasks.__getitem__, tasks)],
            [*map(int, rollouts)],
            [*map(self._outcomes.__getitem__, outcomes)],
        )

    def block_of(self, entry: IndexEntry) -> IndexBlock:
        """Return the columns of one entry."""
        outcome = entry.located(0, 0, "", 0)
        text = json_line(outcome).removeprefix(_NOWHERE)
        number = self._outcomes[text] if text in self._outcomes else self._outcomes.add(text, outcome)
        return IndexBlock(
            self, [entry.offset], [entry.length], [self._tasks[entry.task]], [entry.rollout], [number]
        )


def index_path(path: Path) -> Path:
    """Return the path of the index of a file of episodes; its name does not match `*.jsonl`, by which other
    programs find episodes."""
    return path.with_suffix(".index" if path.suffix == ".jsonl" else f".index{path.suffix}")


def read_index(path: Path, numbers: Callable[[], IndexNumbers]) -> Iterator[IndexBlock]:
    """Yield the index of a file of episodes in blocks, up to the first line that does not match the file.

    Args:
        path: The file of episodes.
        numbers: Function that returns the IndexNumbers for the next block.
    """
    index, offset = index_path(path), 0
    if is_no_file(path) or is_no_file(index):
        return
    with suppress(OSError, ValueError), open_to_read(path) as file, open_to_read(index) as entries:
        lines = iter(partial(entries.readline, RECORD_LINE.most + 1), b"")
        while texts := [line for line in islice(lines, _BLOCK) if line.endswith(b"\n")]:
            block = numbers().block(texts)
            end_offsets = [start + length for start, length in zip(block.offsets, block.lengths, strict=True)]
            checked = {*end_offsets[:: -(-len(end_offsets) // _CHECKED)], end_offsets[-1]}
            if block.offsets[0] != offset or any(os.pread(file.fileno(), 1, n - 1) != b"\n" for n in checked):
                return
            offset = block.end
            yield block
