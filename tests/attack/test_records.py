"""Tests that all readers of episodes reject hostile lines and name the file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rolegraph.engine.errors import DataError
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.records import read_episodes
from rolegraph.engine.records.episodes import EpisodeFile, EpisodeWriter, drop_episodes
from tests.attack import records

READERS: list[Callable[[Path], object]] = [
    lambda path: [*read_episodes(path)],
    lambda path: [*EpisodeFile(path).entries()],
    lambda path: EpisodeWriter(path),
    lambda path: drop_episodes(path, lambda _: False),
    Replay.from_file,
]
HOSTILE = [*(records.line(*put) for put in records.WRONG), *records.NO_LINES]


def test_the_honest_line_is_read(tmp_path: Path) -> None:
    path = records.write(tmp_path, "")
    for read in READERS:
        read(path)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_line_is_refused_with_its_place(tmp_path: Path, hostile: str) -> None:
    path = records.write(tmp_path, hostile)
    for read in READERS:
        with pytest.raises(DataError, match=rf"{path}:2: not an episode: .") as refused:
            read(path)
        assert len(str(refused.value)) < 1_000
    broken: list[DataError] = []
    assert len([*read_episodes(path, broken.append)]) == len(broken) == 1
