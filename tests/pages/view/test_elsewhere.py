"""Tests of a task in other runs and steps: the list of them, and two episodes role by role."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import replays
from tests.pages.view.pages import KEY, Parsed, get
from tests.pages.view.runs import write_training


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("elsewhere")
    first = replays.run(base / "first", replays.solved(0, 1))
    return first, replays.run(base / "other", replays.solved(0), rollouts=2)


def test_the_other_runs_with_a_task_are_listed_with_their_rollouts(folders: tuple[Path, Path]) -> None:
    texts = [get(f"/{KEY}/0/episodes/{n}", *folders).text for n in range(4)]
    (number,) = [n for n, text in enumerate(texts) if '-validation-1">' in text]
    opened = Parsed(get(f"/{KEY}/0/episodes/{number}", *folders).text)
    (path,) = [link for link in opened.links if link.endswith("/elsewhere")]
    listed = Parsed(get(path, *folders).text)
    assert "0 of 2" in listed.text
    beside = [link for link in listed.links if "/beside/" in link]
    assert len(beside) == 2 and all(f"/{KEY}/0/episodes/{number}/beside/1/episodes/" in it for it in beside)
    text = get(beside[0], *folders).text
    pairs = re.findall(
        r'<div class="columns">(.*?)</div>\n(?=<div class="columns">|</main>)', text, re.DOTALL
    )
    headings = [re.findall(r"<article.*?<h2>([^<]*)", pair, re.DOTALL) for pair in pairs[1:]]
    assert headings == [["solver 1 "] * 2, ["solver 2 "] * 2, ["judge "] * 2]


def test_a_role_of_one_side_alone_has_an_empty_place_and_other_rows_are_said(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved(0), tasks=1)
    other = replays.run(tmp_path / "other", replays.solved(0), tasks=1)
    file = other / "episodes.jsonl"
    (episode,) = map(json.loads, file.read_text().splitlines())
    episode["trajectories"] = [it for it in episode["trajectories"] if it["name"] != "judge"]
    episode["task"]["target"] = 1000
    file.write_text(json.dumps(episode) + "\n")
    page = Parsed(get(f"/{KEY}/0/episodes/0/beside/1/episodes/0", first, other).text)
    assert "judge did not take part" in page.text
    assert "fields differ" in page.text


def test_time_lines_side_by_side_have_one_axis(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved(0), tasks=1)
    other = replays.run(tmp_path / "other", replays.solved(0), tasks=1)
    for folder, seconds in ((first, 4.0), (other, 16.0)):
        file = folder / "episodes.jsonl"
        (episode,) = map(json.loads, file.read_text().splitlines())
        for trajectory in episode["trajectories"]:
            started = seconds if trajectory["name"] == "judge" else 0.0
            trajectory["steps"][0]["info"] |= {"started": started, "seconds": seconds}
        file.write_text(json.dumps(episode) + "\n")
    text = get(f"/{KEY}/0/episodes/0/beside/1/episodes/0", first, other).text
    one, two = re.findall(r'<svg class="axis".*?</svg>', text, re.DOTALL)
    assert one == two
    widths = re.findall(r'<rect[^>]* width="(.*?)"', text)
    assert widths == ["124.0"] * 3 + ["496.0"] * 3


def test_of_a_training_the_other_steps_are_listed(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "training", steps=3)
    page = Parsed(get(f"/{KEY}/0/train-000002/0/elsewhere", folder).text)
    steps = {link.split("/")[-2] for link in page.links if "/beside/" in link}
    assert steps == {"train-000001", "train-000003", "validation-000003"}


@pytest.mark.parametrize("path", ["beside/5/episodes/0", "beside/1/train-000001/0", "beside/1/episodes/99"])
def test_what_is_not_there_is_said(folders: tuple[Path, Path], path: str) -> None:
    assert get(f"/{KEY}/0/episodes/0/{path}", *folders).status_code == 400


def test_a_task_that_no_other_run_has_is_said(tmp_path: Path) -> None:
    folder = replays.run(tmp_path / "run", replays.solved(0), tasks=1)
    assert "No other run or step" in Parsed(get(f"/{KEY}/0/episodes/0/elsewhere", folder).text).text
