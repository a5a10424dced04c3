"""Files of episodes, with one line of JSON for each episode, and the index beside each file.

The index of `episodes.jsonl` is `episodes.index`: for each episode a line with its offset and its outcome.
Entries that the index lacks are made from the episodes.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path

from rolegraph.engine.errors import DataError, WorldError, os_errors_as
from rolegraph.engine.limits.records import RECORD_LINE
from rolegraph.engine.records import confined
from rolegraph.engine.records.confined import open_to_read, write_whole
from rolegraph.engine.records.episode import Episode, Step, Trajectory
from rolegraph.engine.records.files import is_folder
from rolegraph.engine.records.index import (
    IndexBlock,
    IndexEntry,
    IndexNumbers,
    RoleIndexEntry,
    index_path,
    read_index,
)
from rolegraph.engine.records.jsonl import (
    JsonlWriter,
    check_size,
    drop_damaged,
    json_line,
    parse_json,
    read_jsonl,
    reason,
    refuse,
)
from rolegraph.engine.records.means import Means

EPISODES = "episodes.jsonl"
"""Name of the file with the episodes of a run."""
_EPISODE = "an episode"
_VALUE = attrgetter("value")
_logger = logging.getLogger(__name__)


class EpisodeWriter(contextlib.AbstractContextManager["EpisodeWriter"]):
    """Writer that appends episodes to a file and to its index."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Create a file, or open an existing file and complete its index; with `new`, an existing file is an
        error.

        Raises DataError if a line of the file is not an episode, WorldError if the file is not writable.
        """
        entries = [*EpisodeFile(path).entries()] if path.exists() else []
        write_whole(index_path(path), b"".join(map(json_line, entries)))
        self.path = path
        self._episodes = JsonlWriter(path, "episodes", new=new)
        self._index = JsonlWriter(index_path(path))

    def append(self, episode: Episode) -> None:
        """Write one episode in one write; raises WorldError.

        An episode beyond `record_line` or `record_values` could not be read again, so it is written without
        its token ids and log-probabilities, or else without its steps and task; the log has a warning, and
        `left_out` in the episode's metadata names the missing parts.
        """
        episode, line = _line(episode)
        offset = self._episodes.append(line, f"episode {episode.id}")
        self._index.append(json_line(_index_entry(episode, offset, len(line))))

    def __exit__(self, *_: object) -> None:
        self._episodes.close()
        self._index.close()


class EpisodeFile:
    """Reader of a file of episodes by its index."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, broken: Callable[[DataError], object] = refuse) -> Iterator[IndexEntry]:
        """Yield the index entry of each episode in file order; raises as `blocks` does."""
        return chain.from_iterable(block.entries() for block in self.blocks(broken))

    def blocks(
        self,
        broken: Callable[[DataError], object] = refuse,
        numbers: Callable[[], IndexNumbers] = IndexNumbers,
    ) -> Iterator[IndexBlock]:
        """Yield the index entries in blocks; entries that the index lacks are made from the episodes.

        Args:
            broken: Function called with the error of each damaged line; by default it raises the error.
            numbers: Function that returns the IndexNumbers for the next block.

        Raises:
            DataError: The file cannot be read, or `broken` raised the error of a line.
        """
        end_offset, number = 0, 1
        for block in read_index(self.path, numbers):
            end_offset, number = block.end, number + len(block.offsets)
            yield block
        for line in read_jsonl(self.path, _entry, _EPISODE, broken, start=end_offset, number=number):
            yield numbers().block_of(replace(line.value, offset=line.start))

    def read(self, entry: IndexEntry) -> Episode:
        """Read the episode of an entry; raises DataError if it is no longer at that place in the file."""
        with os_errors_as(DataError, f"cannot read {self.path}"), open_to_read(self.path) as file:
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


def read_episodes(path: str | Path, broken: Callable[[DataError], object] = refuse) -> Iterator[Episode]:
    """Read the episodes of a file, one at a time, in the order of the file.

    Args:
        path: A file of episodes (JSONL), such as `runs/first/episodes.jsonl`, or the folder of a run. A last
            line without a newline, which a killed run leaves, is skipped.
        broken: Function called with a DataError that names file, line and reason for each line that is not an
            episode; if it returns, the line is skipped. By default the error is raised.

    Returns:
        An iterator over the episodes. Files of earlier versions and of rLLM are read too.

    Raises:
        DataError: The file is missing or unreadable, or a line is not an episode.
    """
    path = Path(path)
    path = path / EPISODES if is_folder(path) else path
    # `map`, because the variable of a loop would keep one episode in memory while the next is read.
    return map(_VALUE, read_jsonl(path, _episode, _EPISODE, broken))


def write_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Write a file of episodes and its index, completely or not at all; raises WorldError."""
    part_path = confined.part_of(path)
    try:
        with os_errors_as(WorldError, f"cannot write {path}"):
            with EpisodeWriter(part_path, new=True) as writer:
                for episode in episodes:
                    writer.append(episode)
            confined.remove(index_path(path))  # its offsets are those of the old file
            confined.replace(part_path, path)
            confined.replace(index_path(part_path), index_path(path))
    finally:
        confined.remove(part_path)
        confined.remove(index_path(part_path))


def drop_episodes(path: Path, dropped: Callable[[Episode], bool]) -> None:
    """Remove the episodes for which `dropped` returns True from a file; raises DataError and WorldError."""
    write_episodes(path, (episode for episode in read_episodes(path) if not dropped(episode)))


def drop_damaged_episodes(path: Path) -> Path | None:
    """Rewrite a file of episodes without its damaged lines; returns the copy and raises the errors of
    `drop_damaged`."""
    copy = drop_damaged(path, _episode)
    if copy is not None:
        confined.remove(index_path(path))  # its offsets are those of the old file
    return copy


def figures(entries: Iterable[IndexEntry], times: Iterable[int] = repeat(1)) -> dict[str, float]:
    """Return the number of `episodes`, the means of `correct` and each metric, and counts by role.

    The counts are `failures/{role}/{name}` and those of `REMARKS`, such as `truncated/{role}`.

    If a metric is missing in some episodes, for example because they skipped a role, `n/{metric}` is the
    number of episodes in its mean.

    Args:
        entries: Index entries of the episodes.
        times: Number of episodes that each entry stands for.
    """
    counts: Counter[str] = Counter(episodes=0)
    means = Means()
    for index_entry, weight in zip(entries, times, strict=False):
        counts["episodes"] += weight
        means.add(index_entry.figures, weight)
        for role, outcome in index_entry.roles.items():
            for name, failures in outcome.failures.items():
                counts[f"failures/{role}/{name}"] += weight * failures
            for name, remarks in outcome.remarks.items():
                counts[f"{name}/{role}"] += weight * remarks
    counts.update({f"n/{name}": weight for name, weight in means.partial(counts["episodes"]).items()})
    return {**counts, **means.means()}


def answers_in(entries: Iterable[IndexEntry]) -> dict[str, RoleIndexEntry]:
    """Return a RoleIndexEntry for each role with the number of trajectories, and of failures by name, over
    all episodes."""
    counts, failures = Counter[str](), dict[str, Counter[str]]()
    for index_entry in entries:
        for role, outcome in index_entry.roles.items():
            counts[role] += outcome.count
            failures.setdefault(role, Counter()).update(outcome.failures)
    return {role: RoleIndexEntry(count, failures=failures[role]) for role, count in counts.items()}


def common_failure(trajectories: Sequence[Trajectory]) -> str:
    """Describe the most frequent failure of a role's trajectories in one line; empty without a failure."""
    examples = {t.failure.name: t for t in trajectories if t.failure}
    counts = Counter(t.failure.name for t in trajectories if t.failure)
    return "".join(
        _failed(n, len(trajectories), examples[failure_name]) for failure_name, n in counts.most_common(1)
    )


def common_failures(files: Iterable[EpisodeFile]) -> list[str]:
    """Describe the most frequent failure of each role in files of episodes, a line per role, most frequent
    first.

    Only indexes and one episode for each role are read. Raises DataError if that episode cannot be read.
    """
    counts, answers = Counter[tuple[str, str]](), Counter[str]()
    latest_entries: dict[tuple[str, str], tuple[EpisodeFile, IndexEntry]] = {}
    for file in files:
        for index_entry in file.entries(lambda _: None):
            for role, outcome in index_entry.roles.items():
                answers[role] += outcome.count
                counts.update({(role, name): times for name, times in outcome.failures.items()})
                latest_entries |= {(role, name): (file, index_entry) for name in outcome.failures}
    lines: dict[str, str] = {}
    for (role, name), count in counts.most_common():
        if role not in lines:
            file, index_entry = latest_entries[role, name]
            failing = [t for t in file.read(index_entry)[role] if t.failure and t.failure.name.value == name]
            lines[role] = _failed(count, answers[role], failing[-1])
    return list(lines.values())


def _failed(count: int, answers: int, example: Trajectory) -> str:
    return f"{example.name}: {count} of {answers} answers failed with {example.failure_line}"


def _line(episode: Episode) -> tuple[Episode, bytes]:
    """Return (episode, its JSON line); an episode over the limits is replaced by a copy without some parts.

    A warning is logged for each missing part.
    """
    line = json_line(episode.to_dict())
    for left_out, shorten in _SMALLER.items():
        try:
            check_size(line)
        except ValueError as error:
            _logger.warning("episode %s is written without its %s: %s", episode.id, left_out, error)
            episode = shorten(episode)
            episode = episode._replace(metadata={**episode.metadata, "left_out": left_out})
            line = json_line(episode.to_dict())
    return episode, line


def _without_tokens(episode: Episode) -> Episode:
    def without(step: Step) -> Step:
        advantage = None if isinstance(step.advantage, Sequence) else step.advantage  # one for each token
        return step._replace(prompt_ids=(), response_ids=(), logprobs=(), advantage=advantage)

    trajectories = [t._replace(steps=[*map(without, t.steps)]) for t in episode.trajectories]
    return episode._replace(trajectories=trajectories)


def _without_contents(episode: Episode) -> Episode:
    trajectories = [trajectory._replace(steps=()) for trajectory in episode.trajectories]
    return episode._replace(trajectories=trajectories, task={"id": episode.task_id}, metadata={})


_SMALLER: Mapping[str, Callable[[Episode], Episode]] = {
    "token ids and log-probabilities": _without_tokens,
    "steps and task": _without_contents,
}
"""Functions that shorten an episode which is too large for a line, by the name of the part that they remove;
tried in order."""


def _episode(text: bytes) -> Episode:
    return Episode.from_dict(parse_json(text))


def _entry(text: bytes) -> IndexEntry:
    """Parse an episode's JSON line; return its index entry with offset 0."""
    return _index_entry(_episode(text), 0, len(text))


def _index_entry(episode: Episode, offset: int, length: int) -> IndexEntry:
    """Return the index entry of an episode, a summary by role, for a line at this offset with this length in
    bytes."""
    members: dict[str, list[Trajectory]] = {}
    for trajectory in episode.trajectories:
        members.setdefault(trajectory.name, []).append(trajectory)
    roles = {
        name: RoleIndexEntry(
            len(trajectories),
            [t.reward for t in trajectories if t.reward is not None],
            dict(Counter(t.failure.name.value for t in trajectories if t.failure is not None)),
            dict(Counter(name for t in trajectories for name in t.remarks)),
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
