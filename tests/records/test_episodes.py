"""Tests that counted episodes are on disk, and that the index finds each of thousands."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rolegraph.engine.errors import DataError, WorldError
from rolegraph.engine.records import Episode, Failure, FailureName, Step, Trajectory
from rolegraph.engine.records.episodes import (
    EpisodeFile,
    EpisodeWriter,
    RoleIndexEntry,
    figures,
    index_path,
    read_episodes,
    write_episodes,
)

MALFORMED = Failure(FailureName.MALFORMED_OUTPUT, "no answer")


def episode(number: int, *, correct: bool = True) -> Episode:
    return Episode(
        task_id=f"t{number}",
        rollout=number % 2,
        task={"id": f"t{number}", "question": "é" * number},
        trajectories=(
            Trajectory("solver", 1, (Step(model_response="yes"),), reward=1.0),
            Trajectory("solver", 2, (), reward=0.0, failure=MALFORMED),
            Trajectory("critic", 1, (Step(),)),
        ),
        is_correct=correct,
        metrics={"solver_acc": 0.5},
    )


def write(path: Path, *numbers: int) -> Path:
    with EpisodeWriter(path) as writer:
        for number in numbers:
            writer.append(episode(number))
    return path


def ids(path: Path) -> list[str]:
    return [e.id for e in read_episodes(path)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a file of four episodes."""
    return write(tmp_path / "episodes.jsonl", 0, 1, 2, 3)


# the episodes


def test_episodes_are_read_back_in_the_order_of_writing(file: Path) -> None:
    assert ids(file) == ["t0:0", "t1:1", "t2:0", "t3:1"]


def test_an_episode_is_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.append(episode(0))
        assert ids(path) == ["t0:0"]
        assert len([*EpisodeFile(path).entries()]) == 1


def test_a_full_disk_keeps_the_episodes_before_it(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EpisodeWriter(path) as writer:
        writer.append(episode(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
        try:
            with pytest.raises(WorldError, match=r"t1:1.*the episodes before it are safe"):
                writer.append(episode(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ids(path) == ["t0:0"]


def test_half_a_character_in_a_task_does_not_end_the_run(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.append(Episode(task_id="t\ud83d", rollout=0, task={"id": "t\ud83d"}, trajectories=()))
    assert ids(path) == ["t?:0"]
    assert [entry.task for entry in EpisodeFile(path).entries()] == ["t?"]


@pytest.mark.parametrize(
    "line", ["{}", "[]", "oops", '{"id": "t", "task": {}, "trajectories": [], "is_correct": true}']
)
def test_a_line_that_is_no_episode_is_named_or_passed_over(file: Path, line: str) -> None:
    file.write_text(f"{line}\n" + file.read_text())
    with pytest.raises(DataError, match=r"episodes\.jsonl:1: not an episode"):
        ids(file)
    broken: list[DataError] = []
    assert len([*read_episodes(file, broken.append)]) == 4
    assert len(broken) == 1


def test_a_file_written_whole_has_its_index_too(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "train-000001.jsonl"
    write_episodes(path, map(episode, range(4)))
    assert path.read_bytes() == file.read_bytes()
    assert index_path(path).read_bytes() == index_path(file).read_bytes()


# the index


def test_an_entry_says_how_each_role_did(file: Path) -> None:
    entry = [*EpisodeFile(file).entries()][1]
    assert (entry.task, entry.rollout, entry.is_correct) == ("t1", 1, True)
    assert entry.roles == {
        "solver": RoleIndexEntry(2, [1.0, 0.0], {"malformed_output": 1}),
        "critic": RoleIndexEntry(1, [], {}),
    }


def test_any_episode_is_read_by_its_entry(file: Path) -> None:
    entries = [*EpisodeFile(file).entries()]
    assert [EpisodeFile(file).read(entry).id for entry in reversed(entries)] == [
        "t3:1",
        "t2:0",
        "t1:1",
        "t0:0",
    ]
    assert sum(entry.length for entry in entries) == file.stat().st_size


def test_the_index_is_read_in_place_of_the_episodes(file: Path) -> None:
    index = index_path(file)
    index.write_text(index.read_text().replace('"rollout":1', '"rollout":7'))
    assert [entry.rollout for entry in EpisodeFile(file).entries()] == [0, 7, 0, 7]


def test_without_its_index_a_file_says_the_same(file: Path) -> None:
    entries = [*EpisodeFile(file).entries()]
    index_path(file).unlink()
    assert figures(EpisodeFile(file).entries()) == figures(entries)
    assert [entry.offset for entry in EpisodeFile(file).entries()] == [entry.offset for entry in entries]


def test_an_index_cut_at_any_byte_is_completed_from_the_episodes(file: Path) -> None:
    index = index_path(file).read_bytes()
    for cut in range(len(index)):
        index_path(file).write_bytes(index[:cut])
        assert [entry.task for entry in EpisodeFile(file).entries()] == ["t0", "t1", "t2", "t3"]


def test_an_index_of_another_file_is_not_believed(file: Path) -> None:
    other = write(file.with_name("other.jsonl"), 7, 8)
    index_path(file).write_bytes(index_path(other).read_bytes())
    assert [entry.task for entry in EpisodeFile(file).entries()] == ["t0", "t1", "t2", "t3"]


def test_episodes_cut_at_any_byte_are_those_before_the_cut_and_go_on(tmp_path: Path) -> None:
    file = write(tmp_path / "episodes.jsonl", 0, 1, 2)
    whole, index = file.read_bytes(), index_path(file).read_bytes()
    for cut in range(len(whole) + 1):
        file.write_bytes(whole[:cut])
        index_path(file).write_bytes(index)  # an index with more episodes than the file
        kept = [f"t{n}:{n % 2}" for n in range(whole[:cut].count(b"\n"))]
        entries = [*EpisodeFile(file).entries()]
        assert ids(file) == [f"{entry.task}:{entry.rollout}" for entry in entries] == kept
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        index_path(file).write_bytes(index)
        write(file, 9)
        assert ids(file)[-1] == "t9:1"
        assert len([*EpisodeFile(file).entries()]) == whole[:cut].count(b"\n") + 1
        assert index_path(file).read_bytes().count(b"\n") == len(ids(file))


def test_an_episode_that_is_no_longer_where_it_was_is_named(file: Path) -> None:
    entry = [*EpisodeFile(file).entries()][2]
    write_episodes(file, [episode(5)])
    with pytest.raises(DataError, match="cannot read the episode t2:0"):
        EpisodeFile(file).read(entry)


def test_a_damaged_file_can_be_looked_through(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], "oops\n", *lines[1:]]))
    broken: list[DataError] = []
    entries = [*EpisodeFile(file).entries(broken.append)]
    assert [EpisodeFile(file).read(entry).id for entry in entries] == ["t0:0", "t1:1", "t2:0", "t3:1"]
    assert [str(fault).split(": ")[0] for fault in broken] == [f"{file}:2"]


def test_an_episode_whose_rewards_are_no_numbers_has_no_entry(file: Path) -> None:
    index_path(file).unlink()
    file.write_text(file.read_text().replace('"reward":1.0,"info"', '"reward":"much","info"', 1))
    broken: list[DataError] = []
    assert [entry.task for entry in EpisodeFile(file).entries(broken.append)] == ["t1", "t2", "t3"]
    assert len(broken) == 1


def test_figures_are_means_and_failures_are_counts(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [episode(0), episode(1, correct=False)])
    assert figures(EpisodeFile(path).entries()) == {
        "episodes": 2,
        "correct": 0.5,
        "solver_acc": 0.5,
        "failures/solver/malformed_output": 2,
    }
    assert figures([]) == {"episodes": 0}
    skipped = episode(2)._replace(metrics={})
    write_episodes(path, [episode(0), episode(1), skipped])
    found = figures(EpisodeFile(path).entries())
    assert (found["solver_acc"], found["n/solver_acc"]) == (0.5, 2), "a mean is over what ran"


def test_an_episode_whose_task_takes_too_much_is_written_without_it(tmp_path: Path) -> None:
    large = episode(1)._replace(task={"id": "t1", "numbers": [7] * 3_000_000})
    with EpisodeWriter(tmp_path / "e.jsonl") as writer:
        writer.append(large)
    (read,) = read_episodes(tmp_path / "e.jsonl")
    assert read.task == {"id": "t1"}
    assert read.metadata == {"left_out": "steps and task"}
    assert [one.reward for one in read.trajectories] == [1.0, 0.0, None]
    assert next(iter(EpisodeFile(tmp_path / "e.jsonl").entries())).task == "t1"
