"""Tests that an index is read as it was written, and never in place of episodes that it does not match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rolegraph.engine.records import Episode, Trajectory
from rolegraph.engine.records.episodes import EpisodeFile, EpisodeWriter
from rolegraph.engine.records.index import IndexNumbers, index_path

IDS = ['say "hi",', "back\\slash", "é 日本", '","rollout":7,"', "t1\n", "", "t1"]
MANY = 5000
"""Number of episodes that takes more than one block of an index."""
CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no JSON": lambda lines: [*lines[:4500], b"oops\n", *lines[4501:]],
    "a line is gone": lambda lines: [*lines[:4500], *lines[4501:]],
    "other spaces": lambda lines: [*lines[:10], lines[10].replace(b":", b": "), *lines[11:]],
    "no outcome": lambda lines: [*lines[:10], lines[10].replace(b"true", b"maybe"), *lines[11:]],
    "cut": lambda lines: lines[:4500],
    "empty": lambda lines: [],
}
"""Changes of an index's lines."""


def write(path: Path, tasks: list[str]) -> list[tuple[str, int, bool, list[float]]]:
    """Write an episode for each task id, and return what their index entries have to say."""
    with EpisodeWriter(path) as writer:
        for number, task in enumerate(tasks):
            solver = Trajectory("solver", 1, (), reward=float(number % 3))
            writer.append(Episode(task, number, {"id": task}, (solver,), is_correct=number % 2 == 0))
    return [(task, n, n % 2 == 0, [float(n % 3)]) for n, task in enumerate(tasks)]


def read(path: Path) -> list[tuple[str, int, bool, list[float]]]:
    entries = EpisodeFile(path).entries()
    return [(it.task, it.rollout, it.is_correct, [*it.roles["solver"].rewards]) for it in entries]


def test_ids_of_any_characters_and_their_outcomes_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    assert write(path, IDS) == read(path)
    for entry in EpisodeFile(path).entries():
        assert EpisodeFile(path).read(entry).rollout == entry.rollout


def test_task_ids_and_outcomes_that_are_the_same_share_a_number(tmp_path: Path) -> None:
    path, numbers = tmp_path / "episodes.jsonl", IndexNumbers()
    write(path, [f"t{number % 10}" for number in range(MANY)])
    blocks = [*EpisodeFile(path).blocks(numbers=lambda: numbers)]
    assert sum(len(block.offsets) for block in blocks) == MANY
    assert [*numbers.tasks] == [f"t{number}" for number in range(10)]
    assert len(numbers.outcomes) == 6, "right or wrong, with one of three rewards"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_entries_that_an_index_lacks_are_made_from_the_episodes(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    path = tmp_path / "episodes.jsonl"
    written = write(path, [f"t{number}" for number in range(MANY)])
    lines = index_path(path).read_bytes().splitlines(keepends=True)
    index_path(path).write_bytes(b"".join(change(lines)))
    assert read(path) == written


def test_a_line_that_left_the_episodes_leaves_their_entries(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    written = write(path, [f"t{number}" for number in range(MANY)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2000], *lines[2001:]]))
    assert read(path) == [*written[:2000], *written[2001:]]
