"""Tests of files that are written below a folder's descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolegraph.engine.errors import WorldError
from rolegraph.engine.records import confined
from rolegraph.engine.records.ownership import write_output


def test_a_file_appears_whole_and_leaves_no_part(tmp_path: Path) -> None:
    confined.write_whole(tmp_path / "a.txt", b"one")
    confined.write_whole(tmp_path / "a.txt", b"two")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.txt": b"two"}


def test_a_folder_that_is_exchanged_while_it_is_held_is_not_written(tmp_path: Path) -> None:
    folder, theirs = tmp_path / "run", tmp_path / "theirs"
    folder.mkdir()
    theirs.mkdir()
    with confined.held(folder):
        folder.rename(tmp_path / "moved")
        folder.symlink_to(theirs)
        confined.write_whole(folder / "a.txt", b"mine")
    assert (tmp_path / "moved" / "a.txt").read_bytes() == b"mine" and not [*theirs.iterdir()]


@pytest.mark.parametrize("path", ["link/a.txt", "in/link/a.txt", "in/../link/a.txt", "../a.txt"])
def test_below_a_held_folder_no_way_leads_out(path: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    (folder / "in").mkdir(parents=True)
    outside.mkdir()
    for link in (folder / "link", folder / "in" / "link"):
        link.symlink_to(outside)
    with confined.held(folder):
        for write in (confined.write_whole, confined.write_new):
            with pytest.raises(WorldError):
                write(folder / path, b"theirs")
        with pytest.raises(WorldError):
            confined.make_folder((folder / path).parent / "new")
    assert not [*outside.iterdir()] and not (tmp_path / "a.txt").exists()


def test_a_path_of_the_user_may_lead_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "mine").symlink_to(tmp_path / "real")
    confined.make_folder(tmp_path / "mine" / "deep")
    confined.write_whole(tmp_path / "mine" / "deep" / "a.txt", b"mine")
    assert (tmp_path / "real" / "deep" / "a.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND])
def test_an_odd_file_is_not_opened(flags: int, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "name").hardlink_to(precious)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "name", "pipe"):
        with pytest.raises(WorldError, match=name):
            confined.open_file(tmp_path / name, flags)
    with pytest.raises(WorldError, match="no regular file"):
        confined.open_file(Path("/dev/null"), flags)
    assert precious.read_text() == "kept"


def test_a_link_is_removed_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    confined.remove(tmp_path / "link")
    confined.remove(tmp_path / "missing")
    assert [file.name for file in tmp_path.iterdir()] == ["precious"]


def test_parts_of_killed_processes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    names = [confined.part_of(tmp_path / "a").name, ".b.part", "c.part"]
    for name in names:
        (tmp_path / name).touch()
    confined.remove_parts(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".b.part", "c.part"]


def test_a_device_that_the_user_names_is_written_in_place(capfd: pytest.CaptureFixture[str]) -> None:
    write_output(Path("/dev/stdout"), b"page", "html")
    assert capfd.readouterr().out == "page"
