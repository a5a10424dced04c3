"""Tests of the list of runs: columns, order, search, picks, and runs that go on."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.pages.view.pages import Pages
from rolegraph.pages.view.runs import open_run
from rolegraph.pages.view.serving import ServedLinks, app
from tests import replays
from tests.pages.report.runs import write_run as write_training
from tests.pages.view.pages import KEY, Parsed, get, request


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("overview")
    return [
        replays.run(base / "beta", replays.solved(0, 1), tasks=4, rollouts=2),
        replays.run(base / "alpha", replays.solved(0, 1, 2), tasks=4),
        write_training(base / "gamma", name="debate"),
    ]


def rows(text: str) -> list[list[str]]:
    """Return the texts of each row's cells in the list of runs."""
    (body,) = re.findall(r"<tbody>(.*?)</tbody>", text, re.DOTALL)
    found = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in found]
    return [[" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in row] for row in cells]


def names(query: str, *folders: Path) -> list[str]:
    return [row[1] for row in rows(get(f"/{KEY}/{query}", *folders).text)]


def test_every_row_has_the_same_columns(folders: list[Path]) -> None:
    text = get(f"/{KEY}/", *folders).text
    beta, _, gamma = rows(text)
    assert len(beta) == len(gamma) == len(re.findall(r'<th[^>]* scope="col"|<th scope="col"', text))
    assert beta[1:4] == ["beta", "solver_judge", next(cell for cell in beta if cell.startswith("replay:"))]
    assert (beta[4], beta[6], beta[7], beta[9]) == ("run", "8", "0.500 correct n 8", "finished")
    assert gamma[1:3] == ["gamma", "debate"] and gamma[4] == "training" and gamma[10] == "report"
    assert f"/{KEY}/2/report" in Parsed(text).links
    assert text.count('class="spark"') == 1, "a curve of the training alone"
    assert re.search(r'aria-label="correct from 0.450 at step 0 to [\d.]+ at step 4"', text)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["beta", "alpha", "gamma"]),
        ("?sort=run", ["alpha", "beta", "gamma"]),
        ("?sort=-run", ["gamma", "beta", "alpha"]),
        ("?sort=spec", ["gamma", "beta", "alpha"]),
        ("?sort=-episodes", ["beta", "alpha", "gamma"]),
        ("?sort=figure", ["beta", "gamma", "alpha"]),
        ("?sort=when", ["beta", "alpha", "gamma"]),
        ("?search=DEBATE", ["gamma"]),
        ("?search=training", ["gamma"]),
        ("?search=a&sort=-run", ["gamma", "beta", "alpha"]),
        ("?search=nowhere", ["No run fits."]),
    ],
)
def test_a_column_orders_and_a_search_selects(folders: list[Path], query: str, shown: list[str]) -> None:
    found = rows(get(f"/{KEY}/{query}", *folders).text)
    assert [row[1] if len(row) > 1 else row[0] for row in found] == shown


def test_a_second_press_on_a_heading_turns_the_order(folders: list[Path]) -> None:
    text = get(f"/{KEY}/?sort=model", *folders).text
    (heading,) = re.findall(r'<th scope="col" aria-sort="ascending">\s*<button[^>]*>', text)
    assert 'value="-model"' in heading
    assert text.count('aria-sort="none"') == 7


def test_picks_stay_where_the_search_leaves_them_out_and_lead_to_a_comparison(folders: list[Path]) -> None:
    text = get(f"/{KEY}/?search=gamma&pick=0&pick=1", *folders).text
    hidden = re.findall(r'<input form="runs" type="hidden" name="pick" value="(\d)">', text)
    assert hidden == ["0", "1"] and "2 picked" in Parsed(text).text
    assert re.search(r'name="pick" id="pick-1" value="1"[^>]* checked', get(f"/{KEY}/?pick=1", *folders).text)
    compared = get(f"/{KEY}/compare?pick=0&pick=1", *folders)
    page = Parsed(compared.text)
    assert compared.status_code == 200 and f"/{KEY}/" in page.links
    words = " ".join(page.text.split())
    assert "4 tasks, 8 episodes" in words and "4 tasks, 4 episodes" in words
    opened = [link for link in page.links if "?task=" in link]
    assert len(opened) == 8, "of each task the episodes of both sides"
    assert "1 to 1" in get(next(link for link in opened if f"/{KEY}/1?" in link), *folders).text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("compare?pick=0", "a comparison needs two"),
        ("compare", "a comparison needs two"),
        ("compare?pick=0&pick=9", "run 9 does not exist"),
        ("?pick=x", "pick is 'x'; expected the number of a run"),
        ("?sort=size", "sort is 'size'; expected one of run, spec"),
    ],
)
def test_what_cannot_be_compared_or_sorted_is_said(folders: list[Path], path: str, said: str) -> None:
    answer = get(f"/{KEY}/{path}", *folders)
    assert answer.status_code == 400 and said in Parsed(answer.text).text


def cut(folder: Path, episodes: int) -> None:
    """Make a finished run into one that goes on and has fewer episodes."""
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "finished": None, "figures": {}}))
    for name in ("episodes.jsonl", "episodes.index.jsonl"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:episodes]))


def test_a_run_that_goes_on_shows_how_far_it_is_and_one_that_was_killed_does_not_run(
    tmp_path: Path, folders: list[Path]
) -> None:
    folder = replays.run(tmp_path / "going", replays.solved(0, 1, 2, 3), tasks=4, rollouts=2)
    cut(folder, 3)
    with sole_writer(folder):
        text = get(f"/{KEY}/", folder, *folders).text
        assert rows(text)[0][6:10] == ["3", "1.000 correct n 3", "–", "running, 3 of 8"]
        assert text.count("<tr data-running>") == 1
        assert " data-running" in get(f"/{KEY}/0", folder).text
    (folder / ".writer").write_text("process 999999999 on " + socket.gethostname())
    text = get(f"/{KEY}/", folder, *folders).text
    assert rows(text)[0][9] == "not finished, 3 of 8"
    assert "data-running" not in re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)


def test_a_training_that_goes_on_shows_its_step_and_one_that_ended_early_where(
    tmp_path: Path, folders: list[Path]
) -> None:
    folder = write_training(tmp_path / "training", steps=2, planned=4)
    with sole_writer(folder):
        assert rows(get(f"/{KEY}/", folder, *folders).text)[0][9] == "running, step 2 of 4"
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "finished": "2026-11-27T11:00:00Z"}))
    assert rows(get(f"/{KEY}/", folder, *folders).text)[0][9] == "ended at step 2 of 4"
    (folder / "run.json").write_text(json.dumps({**info, "stopped": "no gain", "steps": 2}))
    assert rows(get(f"/{KEY}/", folder, *folders).text)[0][9] == "stopped early at step 2"


def test_a_run_that_begins_later_comes_first_and_the_numbers_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name in ("one", "two"):
        replays.run(folder / name, replays.solved(0), tasks=1)
    runs = [open_run(folder / name) for name in ("one", "two")]
    served = app(Pages(runs, ServedLinks(KEY), folders=[folder]), KEY)
    assert [row[1] for row in rows(request(served, f"/{KEY}/").text)] == ["one", "two"]
    replays.run(folder / "new", replays.solved(0), tasks=1)
    text = request(served, f"/{KEY}/").text
    assert [row[1] for row in rows(text)] == ["new", "one", "two"]
    assert f'id="run-2" href="/{KEY}/2"' in text and request(served, f"/{KEY}/2").status_code == 200


def test_of_many_runs_a_page_names_none_but_its_own(folders: list[Path]) -> None:
    text = get(f"/{KEY}/0", *folders * 3).text
    assert not {f"/{KEY}/1", f"/{KEY}/2"} & {*Parsed(text).links} and f"/{KEY}/" in Parsed(text).links


def test_the_pages_that_follow_a_run_ask_their_own_server_and_no_other_page_asks(folders: list[Path]) -> None:
    asking = "connect-src 'self';"
    for path in ("", "0"):
        assert asking in get(f"/{KEY}/{path}", *folders).text
    for path in ("0/episodes/0", "0/episodes/0/elsewhere", "2/report", "compare?pick=0&pick=1", "7"):
        assert "connect-src" not in get(f"/{KEY}/{path}", *folders).text
