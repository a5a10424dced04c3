"""Tests of `rolegraph report`, which writes a page per run and, on request, one picture of all runs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Command
from tests.pages.report.runs import write_run


def test_a_page_for_each_run_and_one_picture(rolegraph: Command, tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"seed{seed}", seed=seed)
    done = rolegraph("report", "seed0", "seed1", "--picture", "curves.svg")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["seed0/report.html", "seed1/report.html", "curves.svg"]
    assert "<!doctype html>" in (tmp_path / "seed1" / "report.html").read_text()
    ElementTree.parse(tmp_path / "curves.svg")


def test_a_picture_is_what_its_ending_says(rolegraph: Command, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="needs the extra `png`")
    write_run(tmp_path / "run")
    assert rolegraph("report", "run", "--picture", "curves.png").returncode == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n")
    done = rolegraph("report", "run", "--picture", "curves.jpg")
    assert done.returncode == 2 and "curves.jpg" in done.stderr and not (tmp_path / "curves.jpg").exists()


def test_a_foreign_folder_is_the_user_s_mistake(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    done = rolegraph("report", "photos")
    assert done.returncode == 2
    assert done.stderr.startswith("error: photos is not the folder of a training run: expected run.json")


def test_a_figure_without_a_picture_is_the_user_s_mistake(rolegraph: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    done = rolegraph("report", "run", "--figure", "judge_acc")
    assert (done.returncode, "--figure needs --picture" in done.stderr) == (2, True)


def test_a_picture_that_cannot_be_written_is_the_world_s_fault(rolegraph: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    done = rolegraph("report", "run", "--picture", "absent/curves.svg")
    assert (done.returncode, "cannot write absent/curves.svg" in done.stderr) == (1, True)
