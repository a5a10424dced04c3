"""Tests that no command fails in an unexpected way on a file of episodes with wrong metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import EpisodeMetadata, RunFolder, StepMetadata, read_episodes
from rolegraph.engine.records.episodes import EpisodeWriter, index_path
from tests import replays
from tests.cli.conftest import Command
from tests.pages.view.runs import write_training

Put = tuple[str, str, object]
"""Record, key of its metadata, and value."""

VALUES: list[object] = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    "NaN",
    "",
    "x",
    "long " * 400,
    [],
    [1],
    [None],
    [[1]],
    {},
    {"a": 1},
    {"a": [1]},
    {"a": {"b": {"c": [{"d": None}]}}},
    10**300,
    [{"a": 1}, {"role": "solver", "index": "1"}, {"name": ["x"]}],
    {"a": {"b": 1}, "text": {"c": 2}},
]
KEYS = [
    *(("step", key) for key in sorted({*StepMetadata.__optional_keys__})),
    *(("episode", key) for key in sorted({*EpisodeMetadata.__optional_keys__})),
]
KEYS_BY_FILE = 3
WIDTH = 12_000
"""Bytes of a padded line: an index made for other lines of this length fits."""


def lines(honest: dict[str, Any], puts: Iterable[Put]) -> Iterator[str]:
    """Yield an honest episode with each of the values in its metadata, each on a task of its own."""
    for number, (record, key, value) in enumerate(puts):
        episode = json.loads(json.dumps(honest))
        name = f"t{number}"
        episode |= {"id": f"{name}:0", "task": {**episode["task"], "id": name}}
        episode["info"] |= {"task_id": name}
        info = episode["info"] if record == "episode" else episode["trajectories"][0]["steps"][0]["info"]
        info |= {key: value, "mine": value}
        yield json.dumps(episode)


def write(path: Path, texts: Iterable[str]) -> None:
    path.write_text("".join(f"{text.ljust(WIDTH)}\n" for text in texts))


def split(path: Path, honest: dict[str, Any]) -> tuple[list[Put], list[Put], list[str]]:
    """Return the values that a file may have, those that make a line unreadable, and the messages."""
    puts = [(record, key, value) for record, key in KEYS for value in VALUES]
    write(path, lines(honest, puts))
    broken: list[DataError] = []
    kept = {episode.task_id for episode in read_episodes(path, broken.append)}
    readable = [put for number, put in enumerate(puts) if f"t{number}" in kept]
    return readable, [put for number, put in enumerate(puts) if f"t{number}" not in kept], [*map(str, broken)]


@pytest.fixture
def training(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Write a training and a run, and return the training's file of episodes and its first episode."""
    folder = write_training(tmp_path / "training", steps=1, tasks=1)
    (_, path), *_ = RunFolder(folder).episodes_files("train")
    return path, json.loads(path.read_text().splitlines()[0])


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Write a run on recorded answers, and return its file of episodes and its first episode."""
    path = replays.run(tmp_path / "run", replays.solved(0), tasks=1) / "episodes.jsonl"
    return path, json.loads(path.read_text())


def answers(rolegraph: Command, folder: Path) -> Iterator[tuple[int, str]]:
    """Yield exit code and output of each command that reads the episodes of a run or a training."""
    static, chats = folder.parent / "one.html", folder.parent / "chats.jsonl"
    chats.unlink(missing_ok=True)
    resume = ("run", "--resume", "--out", str(folder))
    for words in (
        ("view", str(folder), "--static", str(static), "--hidden", "--limit", "1000"),
        ("report", str(folder)),
        ("export", str(folder), "--sft", str(chats)),
        ("compare", str(folder), str(folder)),
        *([resume, (*resume, "--retry-failed")] if folder.name == "run" else []),
    ):
        done = rolegraph(*words)
        said = done.stdout + done.stderr
        assert done.returncode in (0, 1, 2), words
        assert "internal error" not in said and "Traceback" not in said, (words, said[-2000:])
        yield done.returncode, said


def test_a_wrong_value_is_named_with_its_line_its_key_and_what_was_found(
    training: tuple[Path, dict[str, Any]],
) -> None:
    path, honest = training
    readable, wrong, messages = split(path, honest)
    assert len(readable) + len(wrong) == len(KEYS) * len(VALUES) and len(messages) == len(wrong)
    assert {(record, key) for record, key, _ in wrong} == {*KEYS}
    for (_, key, _), message in zip(wrong, messages, strict=True):
        assert re.match(rf"{path}:\d+: not an episode: (trajectories\.0\.steps\.0\.)?info\.{key}\b", message)
        assert len(message) < len(str(path)) + 300
    assert any("info.failures: Input should be a valid list, got 0" in message for message in messages)


def test_a_value_that_is_read_hinders_no_command(
    rolegraph: Command, training: tuple[Path, dict[str, Any]], finished: tuple[Path, dict[str, Any]]
) -> None:
    for path, honest in (training, finished):
        readable, *_ = split(path, honest)
        write(path, lines(honest, readable))
        index_path(path).unlink()
        folder = path.parent if path.parent.name == "run" else path.parent.parent
        for code, said in answers(rolegraph, folder):
            assert code == 0 or "is a run" in said or "not the folder of a training" in said, said


def test_a_value_of_another_project_stays_in_the_file(
    rolegraph: Command, finished: tuple[Path, dict[str, Any]]
) -> None:
    path, honest = finished
    mine: list[object] = [7, {"a": [None]}, "x"]
    write(path, lines(honest, [("episode", "theirs", value) for value in mine]))
    index_path(path).unlink()
    done = rolegraph("run", "--resume", "--retry-failed", "--out", str(path.parent))
    assert done.returncode == 0, done.stderr
    written = [episode.metadata for episode in read_episodes(path)]
    assert [metadata["theirs"] for metadata in written if "theirs" in metadata] == mine


@pytest.mark.parametrize("indexed", [True, False])
def test_a_line_with_a_wrong_value_ends_each_command_in_a_message(
    rolegraph: Command,
    training: tuple[Path, dict[str, Any]],
    finished: tuple[Path, dict[str, Any]],
    indexed: bool,
) -> None:
    for path, honest in (training, finished):
        _, wrong, _ = split(path, honest)
        folder = path.parent if path.parent.name == "run" else path.parent.parent
        for number in range(0, len(KEYS), KEYS_BY_FILE):
            puts = [put for put in wrong if put[:2] in KEYS[number : number + KEYS_BY_FILE]]
            write(path, lines(honest, [("step", "mine", 0)] * (len(puts) + 1)))
            index_path(path).unlink(missing_ok=True)
            if indexed:
                with EpisodeWriter(path):
                    pass
            write(path, lines(honest, [("step", "mine", 0), *puts]))
            for code, said in answers(rolegraph, folder):
                assert code != 1, said
