"""Files of episodes, with one line of JSON for each episode, and the index beside each file.

The index of `episodes.jsonl` is `episodes.index.jsonl`: for each episode a line with its offset and its
outcome. The index is derived: where it is missing or incomplete, the entries are made from the episodes
themselves.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from rolegraph.engine.errors import DataError, WorldError, os_errors_as
from rolegraph.engine.limits.records import RECORD_LINE
from rolegraph.engine.records.episode import Episode, Step, Trajectory, averaged
from rolegraph.engine.records.files import is_no_file
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
from rolegraph.engine.records.means import Means


@dataclass(frozen=True, slots=True)
class RoleIndexEntry:
    """Summary of a role in one episode: number of trajectories, their rewards, and failures by name."""

    count: int = 0
    """Number of trajectories."""
    rewards: Sequence[float] = ()
    """Rewards of the trajectories that have one, in order."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of failures by name."""


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
    """Outcome of each role, by its name."""
    undecided: bool = False
    """True where it is not known whether the episode is correct."""

    @property
    def figures(self) -> Mapping[str, float]:
        """Values that are averaged over episodes, as `Episode.figures`."""
        return averaged(self.metrics, None if self.undecided else self.is_correct)

    @property
    def end(self) -> int:
        """Offset of the byte after the line."""
        return self.offset + self.length


_EPISODE = "an episode"
_INDEX_ENTRY = TypeAdapter(IndexEntry)
_VALUE = attrgetter("value")
_logger = logging.getLogger(__name__)


class EpisodeWriter(contextlib.AbstractContextManager["EpisodeWriter"]):
    """Writer that appends episodes to a file and to its index."""

    def __init__(self, path: Path) -> None:
        """Create a file, or open one and complete its index.

        Raises DataError where a line of the file is not an episode, WorldError where the file is not
        writable.
        """
        entries = [*EpisodeFile(path).entries()] if path.exists() else []
        write_whole(index_path(path), b"".join(json_line(asdict(entry)) for entry in entries))
        self.path = path
        self._episodes = JsonlWriter(path, "episodes")
        self._index = JsonlWriter(index_path(path))

    def append(self, episode: Episode) -> None:
        """Write one episode in one write; raises WorldError.

        An episode beyond `record_line` or `record_values` could not be read again. It is written without its
        token ids and log-probabilities, or else without its steps and task; the log has a warning, and
        `left_out` in the episode's metadata names the missing parts.
        """
        episode, line = _line(episode)
        offset = self._episodes.append(line, f"episode {episode.id}")
        self._index.append(json_line(asdict(_index_entry(episode, offset, len(line)))))

    def __exit__(self, *_: object) -> None:
        self._episodes.close()
        self._index.close()


class EpisodeFile:
    """Reader of a file of episodes by its index."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, broken: Callable[[DataError], object] = refuse) -> Iterator[IndexEntry]:
        """Yield the index entry of each episode in file order; entries that the index lacks are read from the
        file.

        `broken` is called with the error of each damaged line, and by default raises it.
        """
        end, number = 0, 1
        for entry in self._indexed():
            end, number = entry.end, number + 1
            yield entry
        for line in read_jsonl(self.path, _entry, _EPISODE, broken, start=end, number=number):
            yield replace(line.value, offset=line.start)

    def read(self, entry: IndexEntry) -> Episode:
        """Read the episode of an entry; raises DataError where the file has no longer that episode there."""
        with os_errors_as(DataError, f"cannot read {self.path}"), self.path.open("rb") as file:
            file.seek(entry.offset)
            text = file.read(min(entry.length, RECORD_LINE.most + 1))
        try:
            episode = _episode(text)
            if (episode.task_id, episode.rollout) != (entry.task, entry.rollout):
                raise ValueError("another episode is there")
        except ValueError as error:
            name = f"the episode {entry.task}:{entry.rollout} at byte {entry.offset}"
            fault = f"{reason(error)}; the file may have changed since its index was read"
            raise DataError(f"{self.path}: cannot read {name}: {fault}") from error
        return episode

    def _indexed(self) -> Iterator[IndexEntry]:
        """Yield the entries of the index file, as long as they match the episodes file without gaps."""
        if is_no_file(self.path):
            return
        end = 0
        # The other entries are made from the episodes.
        with contextlib.suppress(DataError, OSError), self.path.open("rb", buffering=0) as file:
            for line in read_jsonl(index_path(self.path), _indexed_entry, "an entry"):
                entry = line.value
                if entry.offset != end or entry.length < 1:
                    return
                file.seek(entry.end - 1)
                if file.read(1) != b"\n":
                    return
                yield entry
                end = entry.end


def index_path(path: Path) -> Path:
    """Return the path of the index of a file of episodes."""
    return path.with_suffix(f".index{path.suffix}")


def read_episodes(path: Path, broken: Callable[[DataError], object] = refuse) -> Iterator[Episode]:
    """Read the episodes of a file, one at a time, in the order of the file.

    Args:
        path: A file of episodes (JSONL), such as `runs/first/episodes.jsonl`. A last line without a newline,
            which a killed run leaves, is skipped.
        broken: Function called with a DataError that names file, line and reason for each line that is not an
            episode; where it returns, the line is skipped. By default the error is raised.

    Returns:
        An iterator over the episodes. Files of earlier versions and of rLLM are read too.

    Raises:
        DataError: The file is missing or unreadable, or a line is not an episode.
    """
    # `map`, because the variable of a loop would keep one episode in memory while the next is read.
    return map(_VALUE, read_jsonl(path, _episode, _EPISODE, broken))


def write_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Write a file of episodes, which appears whole, and its index; raises WorldError."""
    part = path.with_name(f".{path.name}.part")
    try:
        with os_errors_as(WorldError, f"cannot write {path}"):
            part.unlink(missing_ok=True)  # a killed run may have left it
            with EpisodeWriter(part) as writer:
                for episode in episodes:
                    writer.append(episode)
            index_path(path).unlink(missing_ok=True)  # its offsets are those of the old file
            part.replace(path)
            index_path(part).replace(index_path(path))
    finally:
        part.unlink(missing_ok=True)
        index_path(part).unlink(missing_ok=True)


def drop_episodes(path: Path, dropped: Callable[[Episode], bool]) -> None:
    """Remove the episodes for which `dropped` is true from a file; raises DataError and WorldError."""
    write_episodes(path, (episode for episode in read_episodes(path) if not dropped(episode)))


def figures(entries: Iterable[IndexEntry]) -> dict[str, float]:
    """Return `episodes`, the means of `correct` and each metric, and the counts `failures/{role}/{name}`.

    A mean over fewer than all episodes, such as that of a role which some skipped, has its number of episodes
    beside it: `n/{metric}`.
    """
    counts: Counter[str] = Counter(episodes=0)
    means = Means()
    for entry in entries:
        counts["episodes"] += 1
        means.add(entry.figures)
        for role, outcome in entry.roles.items():
            for name, times in outcome.failures.items():
                counts[f"failures/{role}/{name}"] += times
    counts.update({f"n/{name}": n for name, n in means.partial(counts["episodes"]).items()})
    return {**counts, **means.means()}


def answers_in(entries: Iterable[IndexEntry]) -> dict[str, RoleIndexEntry]:
    """Return by role the number of trajectories over all episodes, and of failures by name."""
    counts, failures = Counter[str](), dict[str, Counter[str]]()
    for entry in entries:
        for role, outcome in entry.roles.items():
            counts[role] += outcome.count
            failures.setdefault(role, Counter()).update(outcome.failures)
    return {role: RoleIndexEntry(count, failures=failures[role]) for role, count in counts.items()}


def common_failure(trajectories: Sequence[Trajectory]) -> str:
    """Describe the most frequent failure of a role's trajectories in one line; empty where none failed."""
    examples = {t.failure.name: t for t in trajectories if t.failure}
    counts = Counter(t.failure.name for t in trajectories if t.failure)
    return "".join(_failed(n, len(trajectories), examples[name]) for name, n in counts.most_common(1))


def common_failures(files: Iterable[EpisodeFile]) -> list[str]:
    """Describe the most frequent failure of each role in files of episodes, a line per role, commonest first.

    Indexes are read, and one episode for each role. Raises DataError where that episode cannot be read.
    """
    counts, answers = Counter[tuple[str, str]](), Counter[str]()
    latest: dict[tuple[str, str], tuple[EpisodeFile, IndexEntry]] = {}
    for file in files:
        for entry in file.entries(lambda _: None):
            for role, outcome in entry.roles.items():
                answers[role] += outcome.count
                counts.update({(role, name): times for name, times in outcome.failures.items()})
                latest |= {(role, name): (file, entry) for name in outcome.failures}
    lines: dict[str, str] = {}
    for (role, name), count in counts.most_common():
        if role not in lines:
            file, entry = latest[role, name]
            failed = [t for t in file.read(entry)[role] if t.failure and t.failure.name.value == name]
            lines[role] = _failed(count, answers[role], failed[-1])
    return list(lines.values())


def _failed(count: int, answers: int, example: Trajectory) -> str:
    return f"{example.name}: {count} of {answers} answers failed with {example.failure_line}"


def _line(episode: Episode) -> tuple[Episode, bytes]:
    """Return an episode and its JSON line; an episode over the limits is replaced by a copy with parts left
    out.

    A warning is logged for each part.
    """
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
"""Functions that shorten an episode which is too large for a line, by the part that they leave out; tried in
order."""


def _episode(text: bytes) -> Episode:
    return Episode.from_dict(parse_json(text))


def _indexed_entry(text: bytes) -> IndexEntry:
    return _INDEX_ENTRY.validate_python(parse_json(text))


def _entry(text: bytes) -> IndexEntry:
    """Parse an episode's JSON line; return its index entry with offset 0."""
    return _index_entry(_episode(text), 0, len(text))


def _index_entry(episode: Episode, offset: int, length: int) -> IndexEntry:
    """Return the index entry, a summary by role, of an episode whose line has this offset and length in
    bytes."""
    members: dict[str, list[Trajectory]] = {}
    for trajectory in episode.trajectories:
        members.setdefault(trajectory.name, []).append(trajectory)
    roles = {
        name: RoleIndexEntry(
            len(trajectories),
            [one.reward for one in trajectories if one.reward is not None],
            dict(Counter(one.failure.name.value for one in trajectories if one.failure is not None)),
        )
        for name, trajectories in members.items()
    }
    return IndexEntry(
        offset,
        length,
        episode.task_id,
        episode.rollout,
        episode.is_correct,
        episode.metrics,
        roles,
        undecided=episode.metadata.get("undecided", False),
    )
