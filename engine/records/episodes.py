"""Files of episodes: one line of JSON for each, and an index beside the file to find one of thousands by.

`episodes.jsonl` has its index in `episodes.index.jsonl`: a line for each episode that says where it lies
and how it went. The index is derived: without it, or with less of it, its reader reads the rest from the
episodes themselves, and an episode that was counted is on disk whether or not its index line is.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter

from rolegraph.engine.errors import DataError, WorldError
from rolegraph.engine.limits.records import RECORD_LINE
from rolegraph.engine.records.episode import Episode, Step
from rolegraph.engine.records.jsonl import (
    JsonlWriter,
    check_size,
    json_line,
    parse_json,
    read_jsonl,
    reason,
    refuse,
    write_whole,
)


@dataclass(frozen=True, slots=True)
class RoleIndexEntry:
    """How a role did in an episode, over all its trajectories."""

    count: int = 0
    """Trajectories."""
    rewards: Sequence[float] = ()
    """Of the trajectories that have one, in order."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many failed, by the failure's name."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the index. `offset` and `length` are bytes of the episodes file, the newline included."""

    offset: int
    length: int
    task: str
    rollout: int
    is_correct: bool
    metrics: Mapping[str, float]
    roles: Mapping[str, RoleIndexEntry]

    @property
    def end(self) -> int:
        """The offset of what comes after."""
        return self.offset + self.length


_EPISODE = "an episode"
_VALUE = attrgetter("value")
_logger = logging.getLogger(__name__)


class EpisodeWriter:
    """Appends episodes to a file, and to its index. Raises WorldError where the disk does not take them."""

    def __init__(self, path: Path) -> None:
        """Begin a file, or go on with one, whose index is completed first.

        Raises DataError where a line of it is no episode.
        """
        entries = EpisodeFile(path).entries() if path.exists() else []
        write_whole(index_path(path), b"".join(json_line(asdict(entry)) for entry in entries))
        self.path = path
        self._episodes = JsonlWriter(path, "episodes")
        self._index = JsonlWriter(index_path(path))

    def append(self, episode: Episode) -> None:
        """Write one episode, in one write of a whole line: it is on disk when this returns.

        Of one that nobody could read again (`record_line`, `record_memory`) the token ids and
        log-probabilities are left out, or else the steps, or else what its task says; its rewards and
        failures stay. The log warns of it, and its info has `left_out`.
        """
        episode, line = _line(episode)
        offset = self._episodes.append(line, f"episode {episode.id}")
        self._index.append(json_line(_outcome(episode, offset, len(line))))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._episodes.close()
        self._index.close()


class EpisodeFile:
    """A file of episodes to look through: what each one came to, and any one of them at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, broken: Callable[[DataError], object] = refuse) -> list[IndexEntry]:
        """An entry for each episode, in order, most from the index; `broken` as for `read_episodes`."""
        entries = self._indexed()
        end, number = (entries[-1].end, len(entries) + 1) if entries else (0, 1)
        rest = read_jsonl(self.path, _entry, _EPISODE, broken, start=end, number=number)
        return [*entries, *(replace(line.value, offset=line.start) for line in rest)]

    def read(self, entry: IndexEntry) -> Episode:
        """The episode of an entry; raises DataError where the file does not hold it any more."""
        try:
            with self.path.open("rb") as file:
                file.seek(entry.offset)
                text = file.read(min(entry.length, RECORD_LINE.most + 1))
            episode = _episode(text)
            if (episode.task_id, episode.rollout) != (entry.task, entry.rollout):
                raise ValueError("another episode is there")
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from error
        except ValueError as error:
            name = f"the episode {entry.task}:{entry.rollout} at byte {entry.offset}"
            fault = f"{reason(error)}; the file may have changed since its index was read"
            raise DataError(f"{self.path}: cannot read {name}: {fault}") from error
        return episode

    def _indexed(self) -> list[IndexEntry]:
        """The index as far as it fits the file: entries that lie end to end, the last at a line's end."""
        entries: list[IndexEntry] = []
        end = 0
        with contextlib.suppress(DataError, OSError):  # what the index does not say, the file does
            size = self.path.stat().st_size
            for line in read_jsonl(index_path(self.path), _indexed_entry, "an entry"):
                if line.value.offset != end or not end < line.value.end <= size:
                    break
                entries.append(line.value)
                end = line.value.end
        return entries if self._starts_line(end) else []

    def _starts_line(self, offset: int) -> bool:
        if offset == 0:
            return True
        with self.path.open("rb") as file:
            file.seek(offset - 1)
            return file.read(1) == b"\n"


def index_path(path: Path) -> Path:
    """Where the index of a file of episodes is."""
    return path.with_suffix(f".index{path.suffix}")


def read_episodes(path: Path, broken: Callable[[DataError], object] = refuse) -> Iterator[Episode]:
    """The episodes of a file, in order; a last line that was cut is passed over.

    Raises DataError where the file cannot be read. `broken` is given a DataError for each line that is no
    episode; unless it raises, the line is passed over.
    """
    # Mapped, not looped over: a loop's own name would hold a line while the next one is read.
    return map(_VALUE, read_jsonl(path, _episode, _EPISODE, broken))


def write_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Write a file of episodes that appears whole, and its index; raises WorldError."""
    with contextlib.suppress(OSError):
        index_path(path).unlink()  # it would not fit the new file
    lines: list[bytes] = []
    entries: list[bytes] = []
    offset = 0
    for episode in episodes:
        episode, line = _line(episode)
        lines.append(line)
        entries.append(json_line(_outcome(episode, offset, len(lines[-1]))))
        offset += len(lines[-1])
    write_whole(path, b"".join(lines))
    write_whole(index_path(path), b"".join(entries))


def drop_episodes(path: Path, dropped: Callable[[Episode], bool]) -> None:
    """Take episodes out of a file, which changes whole or not at all; raises DataError and WorldError."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            for line in read_jsonl(path, _episode, _EPISODE):
                if not dropped(line.value):
                    file.write(line.text)
        index_path(path).unlink(missing_ok=True)  # it would not fit the new file
        part.replace(path)
    except OSError as error:
        raise WorldError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def figures(entries: Sequence[IndexEntry]) -> dict[str, float]:
    """`episodes`, the means of `correct` and of each metric, and `failures/{role}/{name}`, how many."""
    counts: Counter[str] = Counter(episodes=len(entries))
    sums: dict[str, float] = {}
    for entry in entries:
        for name, value in {"correct": float(entry.is_correct), **entry.metrics}.items():
            sums[name] = sums.get(name, 0.0) + value
        for role, outcome in entry.roles.items():
            for name, times in outcome.failures.items():
                counts[f"failures/{role}/{name}"] += times
    return {**counts, **{name: value / len(entries) for name, value in sums.items()}}


def _line(episode: Episode) -> tuple[Episode, bytes]:
    """Return an episode and its line; a smaller copy and its line where the line would be over the limits."""
    line = json_line(episode.to_dict())
    for left_out, smaller in _SMALLER.items():
        try:
            check_size(line)
        except ValueError as error:
            _logger.warning("episode %s is written without its %s: %s", episode.id, left_out, error)
            episode = smaller(episode)
            episode = episode._replace(metadata={**episode.metadata, "left_out": left_out})
            line = json_line(episode.to_dict())
    return episode, line


def _without_tokens(episode: Episode) -> Episode:
    def without(step: Step) -> Step:
        advantage = None if isinstance(step.advantage, Sequence) else step.advantage  # one for each token
        return step._replace(prompt_ids=(), response_ids=(), logprobs=(), advantage=advantage)

    trajectories = [one._replace(steps=[*map(without, one.steps)]) for one in episode.trajectories]
    return episode._replace(trajectories=trajectories)


def _without_contents(episode: Episode) -> Episode:
    trajectories = [one._replace(steps=()) for one in episode.trajectories]
    return episode._replace(trajectories=trajectories, task={"id": episode.task_id}, metadata={})


_SMALLER: Mapping[str, Callable[[Episode], Episode]] = {
    "token ids and log-probabilities": _without_tokens,
    "steps and task": _without_contents,
}
"""Copies of an episode that is too large for a line, by what they lack; tried in this order."""


def _episode(text: bytes) -> Episode:
    return Episode.from_dict(parse_json(text))


@cache
def _entry_adapter() -> TypeAdapter[IndexEntry]:
    """Made when it is needed: whoever checks a spec imports this, and reads no index."""
    return TypeAdapter(IndexEntry)


def _indexed_entry(text: bytes) -> IndexEntry:
    return _entry_adapter().validate_python(parse_json(text))


def _entry(text: bytes) -> IndexEntry:
    """The entry of an episode that is at the beginning of its file."""
    return _entry_adapter().validate_python(_outcome(_episode(text), 0, len(text)))


def _outcome(episode: Episode, offset: int, length: int) -> dict[str, Any]:
    """What an `IndexEntry` holds, in plain mappings, because every episode of a run pays for it."""
    roles: dict[str, dict[str, Any]] = {}
    for trajectory in episode.trajectories:
        role = roles.get(trajectory.name)
        if role is None:
            role = roles[trajectory.name] = {"count": 0, "rewards": [], "failures": {}}
        role["count"] += 1
        if trajectory.reward is not None:
            role["rewards"].append(trajectory.reward)
        if trajectory.failure is not None:
            name = trajectory.failure.name.value
            role["failures"][name] = role["failures"].get(name, 0) + 1
    return {
        "offset": offset,
        "length": length,
        "task": episode.task_id,
        "rollout": episode.rollout,
        "is_correct": episode.is_correct,
        "metrics": episode.metrics,
        "roles": roles,
    }
