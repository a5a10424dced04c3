"""Tests of the list of runs: columns, order, search, picks, and runs that go on."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from rolegraph.engine.records.folder import RUN
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


def rows(text: str) -> list[dict[str, str]]:
    """Return the texts of each row's cells in the list of runs by column, its name and kind under `run`."""
    (body,) = re.findall(r"<tbody>(.*?)</tbody>", re.sub(r"<title>.*?</title>", "", text), re.DOTALL)
    return [
        {
            name or "run": " ".join(re.sub(r"<[^>]*>", " ", cell.replace("<wbr>", "")).split())
            for name, cell in re.findall(
                r'<t[dh] (?:data-name="([^"]*)"|scope="row")[^>]*>(.*?)</t[dh]>', row, re.DOTALL
            )
        }
        for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]


def named(text: str) -> dict[str, dict[str, str]]:
    """Return the rows by the name of their run."""
    return {row["run"].split()[0]: row for row in rows(text)}


def names(text: str) -> list[str]:
    """Return the names of the listed runs."""
    return re.findall(r'id="run-\d+"[^>]*>([^<]*)</a>', text.replace("<wbr>", ""))


def test_every_row_has_the_same_columns(folders: list[Path]) -> None:
    text = get(f"/{KEY}/", *folders).text
    beta, gamma = (named(text)[name] for name in ("beta", "gamma"))
    assert list(beta) == list(gamma)
    assert len(beta) + 1 == len(re.findall(r'<th[^>]* scope="col"', text)), "and the picks"
    assert (beta["run"], beta["status"]) == ("beta run of solver_judge", "finished")
    assert beta["model"].startswith("replay:")
    assert gamma["run"] == "gamma training of debate · report"
    assert f"/{KEY}/2/report" in Parsed(text).links
    assert text.count('class="spark"') == 1, "a curve of the training alone"
    assert re.search(r'aria-label="correct from 0.450 at step 0 to [\d.]+ at step 4"', text)


def test_a_figure_has_its_split_its_number_and_an_interval_over_its_tasks(folders: list[Path]) -> None:
    columns = "?column=correct&column=solver_acc&column=reward/solver"
    shown = named(get(f"/{KEY}/{columns}", *folders).text)
    beta, gamma = shown["beta"], shown["gamma"]
    assert beta["correct"] == "0.500 [0.15, 0.85] run, n 4", "Wilson's of 2 in 4 tasks"
    assert beta["solver_acc"] == "0.250 [0.05, 0.68] run, n 4" and beta["reward/solver"] == "–"
    assert re.fullmatch(r"[\d.]+ validation, step 4", gamma["solver_acc"])


def test_the_columns_are_those_that_are_chosen(folders: list[Path]) -> None:
    text = get(f"/{KEY}/?column=solver_acc&column=seed&column=nothing", *folders).text
    assert [list(row) for row in rows(text)] == [["run", "seed", "solver_acc"]] * 3
    checked = re.findall(r'name="column" value="([^"]*)" checked', text)
    assert checked == ["seed", "solver_acc"]
    assert {"spec", "judge_acc", "curve"} <= {*re.findall(r'name="column" value="([^"]*)"', text)}


def test_episodes_count_every_split_and_a_run_names_its_checkpoint(
    tmp_path: Path, folders: list[Path]
) -> None:
    run = replays.run(tmp_path / "tuned", replays.solved(0), tasks=1)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "checkpoint": "runs/gamma#main"}))
    training = write_training(tmp_path / "counted")
    counted = {"step": 5, "episode/n/correct": 64, "validation/n/correct": 32, "greedy/n/correct": 8}
    with (training / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(counted) + "\n")
    shown = named(get(f"/{KEY}/?column=model&column=episodes", run, training).text)
    assert shown["tuned"]["model"].endswith(" checkpoint runs/gamma#main")
    assert shown["counted"]["episodes"] == "104 train 64, validation 32, greedy 8"


def test_the_curves_of_picked_trainings_are_one_chart_for_each_figure(
    tmp_path: Path, folders: list[Path]
) -> None:
    other = write_training(tmp_path / "delta", seed=1)
    query = "?pick=0&pick=2&pick=3&column=correct&column=solver_acc"
    text = get(f"/{KEY}/{query}", *folders, other).text
    charts = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert [re.findall(r"<b>(.*?)</b>", chart) for chart in charts] == [["correct"], ["solver_acc"]]
    for chart in charts:
        assert re.findall(r"</span>(\w+)</li>", chart) == ["gamma", "delta"]
        assert {"c0", "c1"} == {*re.findall(r'class="line bold (c\d)"', chart)}
    assert "<figure>" not in get(f"/{KEY}/?pick=0&pick=1", *folders, other).text, "runs have no curves"


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["alpha", "beta", "gamma"]),
        ("?sort=run", ["alpha", "beta", "gamma"]),
        ("?sort=-run", ["gamma", "beta", "alpha"]),
        ("?sort=spec", ["gamma", "beta", "alpha"]),
        ("?sort=-episodes", ["beta", "alpha", "gamma"]),
        ("?sort=correct", ["beta", "gamma", "alpha"]),
        ("?sort=started", ["beta", "alpha", "gamma"]),
        ("?search=DEBATE", ["gamma"]),
        ("?search=training", ["gamma"]),
        ("?search=a&sort=-run", ["gamma", "beta", "alpha"]),
        ("?search=nowhere", []),
    ],
)
def test_a_column_orders_and_a_search_selects(folders: list[Path], query: str, shown: list[str]) -> None:
    text = get(f"/{KEY}/{query}", *folders).text
    assert names(text) == shown and ("No run fits." in text) == (not shown)


def test_a_second_press_on_a_heading_turns_the_order(folders: list[Path]) -> None:
    text = get(f"/{KEY}/?sort=model", *folders).text
    (heading,) = re.findall(r'<th scope="col" aria-sort="ascending">\s*<button[^>]*>', text)
    assert 'value="-model"' in heading
    assert text.count('aria-sort="none"') == 5


def test_picks_stay_where_the_search_leaves_them_out_and_lead_to_a_comparison(folders: list[Path]) -> None:
    text = get(f"/{KEY}/?search=gamma&pick=0&pick=1", *folders).text
    hidden = re.findall(r'<input type="hidden" name="pick" value="(\d)">', text)
    assert hidden == ["0", "1"] and "Compare picked (2)" in Parsed(text).text
    assert re.search(r'name="pick" id="pick-1" value="1"[^>]* checked', get(f"/{KEY}/?pick=1", *folders).text)
    compared = get(f"/{KEY}/compare?pick=0&pick=1", *folders)
    page = Parsed(compared.text)
    assert compared.status_code == 200 and f"/{KEY}/" in page.links
    words = " ".join(page.text.split())
    assert "4 tasks, 8 episodes" in words and "4 tasks, 4 episodes" in words
    (beside,) = (link for link in page.links if "/beside/" in link)
    one, other = (f"/{KEY}/{side}" for side in beside.removeprefix(f"/{KEY}/").split("/beside/"))
    assert {one, other} <= {*page.links}, "of the one flipped task also each episode by itself"
    assert [get(link, *folders).text.count("<main>") for link in (beside, one, other)] == [1, 1, 1]
    opened = [link for link in page.links if "?task=" in link]
    assert len({*opened}) == 8, "of each task the episodes of both sides"
    assert "1 of 4 episodes" in get(next(link for link in opened if f"/{KEY}/1?" in link), *folders).text


@pytest.mark.parametrize(
    ("path", "said"),
    [
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
    for name in ("episodes.jsonl", "episodes.index"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:episodes]))


def test_a_run_that_goes_on_shows_how_far_it_is_and_one_that_was_killed_does_not_run(
    tmp_path: Path, folders: list[Path]
) -> None:
    folder = replays.run(tmp_path / "going", replays.solved(0, 1, 2, 3), tasks=4, rollouts=2)
    cut(folder, 3)
    with sole_writer(folder, RUN):
        text = get(f"/{KEY}/", folder, *folders).text
        row = named(text)["going"]
        assert (row["outcomes"], row["curve"], row["status"]) == ("3 right 0 wrong", "–", "running, 3 of 8")
        assert row["correct"].startswith("1.000 [") and row["correct"].endswith("run, n 2")
        assert text.count("<tr data-running>") == 1
        assert " data-running" in get(f"/{KEY}/0", folder).text
    (folder / ".writer").write_text("process 999999999 on " + socket.gethostname())
    text = get(f"/{KEY}/", folder, *folders).text
    assert named(text)["going"]["status"] == "not finished, 3 of 8"
    assert "data-running" not in re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)


def test_a_training_that_goes_on_shows_its_step_and_one_that_ended_early_where(
    tmp_path: Path, folders: list[Path]
) -> None:
    folder = write_training(tmp_path / "training", steps=2, planned=4)
    with sole_writer(folder, RUN):
        assert named(get(f"/{KEY}/", folder, *folders).text)["training"]["status"] == "running, step 2 of 4"
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "finished": "2026-11-27T11:00:00Z"}))
    assert named(get(f"/{KEY}/", folder, *folders).text)["training"]["status"] == "ended at step 2 of 4"
    (folder / "run.json").write_text(json.dumps({**info, "stopped": "no gain", "steps": 2}))
    assert named(get(f"/{KEY}/", folder, *folders).text)["training"]["status"] == "stopped early at step 2"


def test_the_newest_run_comes_first_and_the_numbers_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name in ("one", "two"):
        replays.run(folder / name, replays.solved(0), tasks=1)
    runs = [open_run(folder / name) for name in ("one", "two")]
    served = app(Pages(runs, ServedLinks(KEY), folders=[folder]), KEY)
    assert names(request(served, f"/{KEY}/").text) == ["two", "one"]
    replays.run(folder / "new", replays.solved(0), tasks=1)
    text = request(served, f"/{KEY}/").text
    assert names(text) == ["new", "two", "one"]
    assert f'id="run-2" href="/{KEY}/2"' in text and request(served, f"/{KEY}/2").status_code == 200


@pytest.mark.parametrize(("picks", "there"), [("", ""), ("?pick=1", "?pick=1")])
def test_a_comparison_of_too_few_leads_to_the_list_where_others_are_picked(
    folders: list[Path], picks: str, there: str
) -> None:
    answer = get(f"/{KEY}/compare{picks}", *folders)
    assert (answer.status_code, answer.headers["location"]) == (307, f"/{KEY}/{there}")


def test_the_pages_that_follow_a_run_or_copy_ask_their_own_server_and_no_other_page_asks(
    folders: list[Path],
) -> None:
    asking = "connect-src 'self';"
    for path in ("", "0", "0/episodes/0"):
        assert asking in get(f"/{KEY}/{path}", *folders).text
    for path in ("0/episodes/0/elsewhere", "2/report", "compare?pick=0&pick=1", "7"):
        assert "connect-src" not in get(f"/{KEY}/{path}", *folders).text


def test_settings_that_differ_between_runs_of_a_spec_are_columns(tmp_path: Path) -> None:
    folders = [
        replays.run(
            tmp_path / f"run{number}", replays.solved(0), "sampling.max_tokens=64", f"sampling.top_p={top}"
        )
        for number, top in enumerate((0.9, 0.5))
    ]
    two, one = rows(get(f"/{KEY}/", *folders).text)
    assert (one["sampling.top_p"], two["sampling.top_p"]) == ("0.9", "0.5")
    assert "sampling.max_tokens" not in one, "alike, and shown where it is chosen"
    (chosen, _) = rows(get(f"/{KEY}/?column=sampling.max_tokens", *folders).text)
    assert chosen["sampling.max_tokens"] == "64"
    assert names(get(f"/{KEY}/?sort=sampling.top_p", *folders).text) == ["run1", "run0"]
    assert names(get(f"/{KEY}/?search=top_p%3D0.5", *folders).text) == ["run1"]


def test_a_setting_that_one_command_changed_is_shown_of_the_other_as_its_spec_has_it(tmp_path: Path) -> None:
    plain = replays.run(tmp_path / "plain", replays.solved(0))
    changed = replays.run(tmp_path / "changed", replays.solved(0), "roles.solver.parser.keep_tag=false")
    shown = named(get(f"/{KEY}/", plain, changed).text)
    key = "roles.solver.parser.keep_tag"
    assert (shown["plain"][key], shown["changed"][key]) == ("true", "false")


def test_columns_in_which_all_runs_agree_are_one_sentence(tmp_path: Path, folders: list[Path]) -> None:
    text = get(f"/{KEY}/", folders[0]).text
    (row,) = rows(text)
    assert not {"spec", "model", "seed", "status"} & {*row}
    assert "1 of 1 runs, all of model replay:" in " ".join(Parsed(text).text.split())
    assert {"model", "status"} <= {*rows(get(f"/{KEY}/", *folders).text)[0]}, "of a training as well"


def test_outcomes_and_failures_lead_to_the_episodes_that_they_count(tmp_path: Path) -> None:
    def says(number: int, rollout: int, role: str, index: int) -> str:
        if number == 3 and (role, index) != ("solver", 1):
            return "no tag"
        return replays.solved(0)(number, rollout, role, index)

    text = get(f"/{KEY}/", replays.run(tmp_path / "failing", says, tasks=4, rollouts=2)).text
    (row,) = rows(text)
    failures = "solver: malformed output 2"
    assert row["outcomes"] == f"2 right 6 wrong ( 4 answered, 2 failed ) {failures}"
    (bar,) = re.findall(r'<svg class="shares".*?</svg>', text, re.DOTALL)
    assert re.findall(r"<title>(.*?)</title>", bar) == ["2 right", "4 wrong without a failure", "2 failed"]
    links = [link for link in Parsed(text).links if link.startswith(f"/{KEY}/0?")]
    assert f"/{KEY}/0?role=solver&failure=malformed_output" in links
    for link in links:
        shown = get(link, tmp_path / "failing").text
        n = {"correct=yes": 2, "correct=no": 6}.get(link.partition("?")[2], 2)
        assert f"{n} of 8 episodes" in Parsed(shown).text, link


def test_other_runs_show_their_difference_from_the_oldest_picked_one(
    tmp_path: Path, folders: list[Path]
) -> None:
    far = replays.run(tmp_path / "far", replays.solved(0, 1, 2, 3), tasks=4)
    shown = named(get(f"/{KEY}/?pick=0&pick=3", *folders, far).text)
    assert shown["beta"]["correct"] == "0.500 [0.15, 0.85] run, n 4", "the oldest that is picked"
    difference = r"1.000 \[0.51, 1.00\] \+0.500 \[−0.10, \+0.85\] n 4 run, n 4"
    assert re.fullmatch(difference, shown["far"]["correct"])
    assert shown["alpha"]["correct"].startswith("0.750 [0.30, 0.95] +0.250 [")
    assert (
        "Differences are from beta, the oldest picked." in Parsed(get(f"/{KEY}/?pick=0", *folders).text).text
    )
    assert "+0.250" not in get(f"/{KEY}/", *folders).text, "of nothing picked there is none"


def test_figures_that_are_equal_in_every_run_are_one_column(folders: list[Path]) -> None:
    """In both runs `correct` and `judge_acc` are one figure; in the training they are two."""
    runs = folders[:2]
    text = get(f"/{KEY}/?column=judge_acc&column=solver_acc&sort=correct", *runs).text
    assert [list(row) for row in rows(text)] == [["run", "correct", "solver_acc"]] * 2
    assert re.findall(r'data-name="correct" data-label="([^"]*)"', text) == ["correct"] * 2
    assert 'title="correct = judge_acc"' in text
    assert 'value="judge_acc"' not in text
    assert 'value="judge_acc"' in get(f"/{KEY}/", *folders).text, "of the training it is another figure"
