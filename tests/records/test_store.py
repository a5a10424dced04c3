"""An episode that was counted is on disk; a full disk loses none before it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from engine.errors import DataError, UsageError, WorldError
from engine.records import Episode
from engine.records.store import RunFolder, read_episodes


def episode(number: int) -> Episode:
    return Episode(task_id=f"t{number}", rollout=0, task={"id": f"t{number}"}, trajectories=())


def test_episodes_are_read_back_in_the_order_of_writing(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", "name: x\n") as folder:
        for number in range(3):
            folder.append(episode(number))
    assert [e.id for e in read_episodes(folder.episodes)] == ["t0:0", "t1:0", "t2:0"]
    assert (tmp_path / "run" / "spec.yaml").read_text() == "name: x\n"


def test_an_episode_is_on_disk_before_the_folder_is_closed(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", "") as folder:
        folder.append(episode(0))
        assert len(list(read_episodes(folder.episodes))) == 1


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    with RunFolder(tmp_path, "") as folder:
        folder.append(episode(0))
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder(tmp_path, "")


def test_a_folder_that_cannot_be_made_is_the_world_s_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match="cannot write to the output folder"):
        RunFolder(tmp_path / "file" / "run", "")


def test_a_full_disk_keeps_the_episodes_before_it(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunFolder(tmp_path, "") as folder:
        folder.append(episode(0))
        size = folder.episodes.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        try:
            with pytest.raises(WorldError, match=r"t1:0.*the episodes before it are safe"):
                folder.append(episode(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [e.id for e in read_episodes(folder.episodes)] == ["t0:0"]


def test_half_a_character_in_a_model_s_text_does_not_end_the_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path, "") as folder:
        folder.append(
            Episode(task_id="t", rollout=0, task={"id": "t", "question": "half \ud83d"}, trajectories=())
        )
    assert [e.task["question"] for e in read_episodes(folder.episodes)] == ["half ?"]


def test_a_line_cut_short_by_a_crash_is_passed_over_and_a_broken_one_is_named(tmp_path: Path) -> None:
    with RunFolder(tmp_path, "") as folder:
        folder.append(episode(0))
    with folder.episodes.open("a") as file:
        file.write('{"id": "t1')
    assert len(list(read_episodes(folder.episodes))) == 1
    folder.episodes.write_text("{}\n")
    with pytest.raises(DataError, match=r"episodes\.jsonl:1: not an episode"):
        list(read_episodes(folder.episodes))
