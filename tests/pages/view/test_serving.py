"""Tests of the server: its pages, its clients, and its messages for data that cannot be shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records import Episode, RunFolder
from rolegraph.engine.records.episodes import EpisodeWriter
from rolegraph.pages.view.runs import open_run
from tests.pages.report.runs import write_run as reported
from tests.pages.view.pages import KEY, Parsed, get
from tests.pages.view.runs import episodes, workflow, write_run, write_training


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("serving") / "training", "solver_verifier_loop")


def test_the_first_page_lists_the_episodes_and_each_opens(training: Path) -> None:
    first = get(f"/{KEY}/0", training)
    page = Parsed(first.text)
    assert first.status_code == 200
    assert "26 episodes" in page.text and "Task 1: make 7 from 3 and 4" in page.text
    episodes = [link for link in page.links if "/train-000002/" in link and "beside" not in link]
    assert len(episodes) == 12
    opened = Parsed(get(episodes[0], training).text)
    for words in (
        "hidden",
        "verifier 1",
        "log-prob",
        "loss weight",
        "baseline",
        "parsed as",
        "grpo",
        "reinforce",
    ):
        assert words in opened.text
    assert "Make 7" not in opened.text and "<answer>3" in opened.text


def test_every_page_begins_with_its_links_and_marks_its_own(training: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", tasks=1)
    of_training = [f"/{KEY}/", f"/{KEY}/0", f"/{KEY}/0/report", f"/{KEY}/compare?pick=0"]
    for path, current, links in (
        ("", "Runs", [f"/{KEY}/", f"/{KEY}/compare"]),
        ("0", "Episodes", of_training),
        ("0/train-000001/0", "", of_training),
        ("0/report", "Report", [*of_training, f"/{KEY}/0/report?file=yes"]),
        ("1", "Episodes", [f"/{KEY}/", f"/{KEY}/1", f"/{KEY}/compare?pick=1"]),
        (
            "compare?pick=0&pick=1",
            "Compare",
            [f"/{KEY}/", f"/{KEY}/compare", f"/{KEY}/compare?pick=0&pick=1&file=yes"],
        ),
        ("0?low=x", "", [f"/{KEY}/", f"/{KEY}/compare"]),
    ):
        (bar,) = re.findall(r'<nav class="bar".*?</nav>', get(f"/{KEY}/{path}", training, other).text, re.S)
        assert Parsed(bar).links == links, path
        assert re.findall(r'aria-current="page">(\w+)', bar) == [current] * bool(current)


def test_the_rollouts_of_a_task_are_one_row_with_their_answers_and_figures(training: Path) -> None:
    page = Parsed(get(f"/{KEY}/0?split=train&step=2", training).text)
    assert page.tags.count("details") == 2 + 3, "filters, two steps, and each task of four rollouts"
    assert page.text.count(" of 4 right") == 3
    assert "3 + 4" in page.text, "answers are in the list"
    assert "malformed_output" not in page.text


def test_a_rollout_can_be_downloaded_and_laid_beside_another(training: Path) -> None:
    answer = get(f"/{KEY}/0/train-000001/2/json", training)
    run = open_run(training)
    row = run.row(run.folder.part("train-000001"), 2)
    assert Episode.from_dict(answer.json()) == run.read(row)
    assert answer.headers["content-disposition"].startswith("attachment")
    page = Parsed(get(f"/{KEY}/0/train-000001/beside?left=0&right=2", training).text)
    assert page.tags.count("section") == 2
    for query in ("", "?left=0", "?left=0&right=-1", "?left=0&right=999"):
        assert get(f"/{KEY}/0/train-000001/beside{query}", training).status_code == 400


def test_of_several_runs_a_table_with_their_figures_comes_first(training: Path, tmp_path: Path) -> None:
    page = Parsed(get(f"/{KEY}/", training, write_run(tmp_path / "other")).text)
    assert {f"/{KEY}/0", f"/{KEY}/1"} <= set(page.links)
    assert "other" in page.text and "solver_verifier_loop" in page.text


def test_a_damaged_run_is_a_row_with_its_fault_beside_the_others(training: Path, tmp_path: Path) -> None:
    damaged = write_run(tmp_path / "damaged", tasks=1)
    (damaged / "run.json").write_text('{"name": ')
    answer = get(f"/{KEY}/", damaged, training)
    page = Parsed(answer.text)
    assert answer.status_code == 200
    assert f"/{KEY}/1" in page.links and f"/{KEY}/0" not in page.links
    assert "solver_verifier_loop" in page.text and "run.json" in page.text
    assert get(f"/{KEY}/1", damaged, training).status_code == 200
    assert get(f"/{KEY}/0", damaged, training).status_code == 409
    written = rg.view(damaged, training)
    assert written.hidden and written.write(tmp_path / "one.html", hidden=False).episodes == 26
    assert str(damaged / "run.json") in (tmp_path / "one.html").read_text()


def test_the_table_of_runs_shows_figures_without_reading_an_episode(training: Path, tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", tasks=1))
    for file in (folder.episodes, folder.episodes.with_name("episodes.index")):
        file.unlink()
        file.mkdir()
    page = Parsed(get(f"/{KEY}/", folder.path, training).text)
    assert "correct" in page.text and "4 values" in page.text


def test_the_viewer_shows_the_report_with_links_into_its_lists(tmp_path: Path) -> None:
    folder = reported(tmp_path / "run")
    assert f"/{KEY}/0/report" in Parsed(get(f"/{KEY}/0", folder).text).links
    page = Parsed(get(f"/{KEY}/0/report", folder).text)
    assert any(link.startswith(f"/{KEY}/0?role=judge") for link in page.links)


@pytest.mark.parametrize(
    "path",
    ["/", "/0", "/wrong/0", "/wrong/", "/wrong/0/train-000001/0", f"/{KEY}x/0", f"/{KEY}/0/..%2Frun/0"],
)
def test_without_the_key_nothing_is_there(training: Path, path: str) -> None:
    answer = get(path, training)
    assert answer.status_code == 404
    assert "solver" not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7:8080"])
def test_another_host_s_name_is_refused(training: Path, host: str) -> None:
    answer = get(f"/{KEY}/0", training, host=host)
    assert (answer.status_code, "solver" in answer.text) == (400, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(training: Path, method: str) -> None:
    assert get(f"/{KEY}/0", training, method=method).status_code == 405


def test_a_page_may_load_nothing_and_run_its_own_script_alone(training: Path) -> None:
    for path in (f"/{KEY}/0", f"/{KEY}/0/train-000001/3", f"/{KEY}/0?low=x"):
        answer = get(path, training)
        page = Parsed(answer.text)
        assert "default-src 'none'" in answer.text and "script-src 'sha256-" in answer.text
        assert (page.tags.count("script"), page.attributes & {"src", "style", "onclick"}) == (1, set())
        assert all(link.startswith(("/", "#")) for link in page.links)
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("0?low=much", 400, "low is 'much'; expected a number"),
        (f"0?step={'9' * 400}", 400, "expected a number"),
        ("0?from=-1", 400, "from is '-1'; expected a number"),
        ("7", 400, "there are 1 runs"),
        ("0/train-000001/99", 400, "train-000001 has 12 episodes"),
        ("0/train-000009/0", 409, "cannot read"),
        ("0/passwd/0", 400, "the run has no episodes called 'passwd'"),
    ],
)
def test_what_is_not_there_is_said(training: Path, path: str, code: int, said: str) -> None:
    answer = get(f"/{KEY}/{path}", training)
    assert (answer.status_code, said in Parsed(answer.text).text) == (code, True)


def test_a_filter_stays_with_the_links(training: Path) -> None:
    page = Parsed(get(f"/{KEY}/0?role=solver&failure=any&split=train", training).text)
    opened = [link for link in page.links if "/train-" in link and "beside" not in link]
    assert opened and all(link.endswith("?role=solver&failure=any&split=train") for link in opened)
    inside = Parsed(get(opened[0], training).text)
    assert f"/{KEY}/0?role=solver&failure=any&split=train" in inside.links


def test_an_episode_of_a_foreign_form_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", tasks=1))
    made = episodes(workflow("solver_judge").plan, 1, 1)[0]
    with EpisodeWriter(folder.episodes) as writer:
        writer.append(made._replace(rollout=9, metadata={"failures": [{"role": [], "index": {}}, 3]}))
    foreign = made._replace(rollout=10).to_dict()
    foreign["trajectories"][0]["steps"][0]["chat_completions"] = ["no message"]
    with folder.episodes.open("a") as file:
        file.write(json.dumps(foreign) + "\n")
    assert get(f"/{KEY}/0", folder.path).status_code == 200
    assert get(f"/{KEY}/0/episodes/4", folder.path).status_code == 200
    assert get(f"/{KEY}/0/episodes/5", folder.path).status_code == 400, "no message, no episode"


def test_turns_of_a_very_long_episode_are_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolegraph.pages.view.cards.MOST_CARDS", 2)
    folder = write_run(tmp_path / "run", tasks=1)
    first = Parsed(get(f"/{KEY}/0/episodes/0", folder).text)
    assert "1 more turns follow" in first.text
    (on,) = [link for link in first.links if link.endswith("?from=2")]
    assert "judge" in Parsed(get(on, folder).text).text


def test_a_run_of_an_earlier_version_is_shown(tmp_path: Path) -> None:
    from tests.pages.report.runs import write_run as write_old

    folder = write_old(tmp_path / "old")
    (folder / "spec.yaml").write_text("roles: [")
    page = Parsed(get(f"/{KEY}/0/train-000001/0", folder).text)
    assert "not recorded" in page.text  # the baseline
    assert "No times were recorded" in page.text


@pytest.mark.parametrize(
    "path",
    [
        "0/file?role=judge",
        "0/train-000001/3/file",
        "0/report?file=yes",
        "compare?pick=0&pick=1&file=yes",
        "compare?pick=0&step=1&step=2&file=yes",
    ],
)
def test_a_page_is_downloaded_as_one_file_that_needs_no_viewer(
    training: Path, tmp_path: Path, path: str
) -> None:
    other = write_run(tmp_path / "other", tasks=1)
    answer = get(f"/{KEY}/{path}", training, other)
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    assert KEY not in answer.text and "connect-src" not in answer.text
    assert all(link.startswith("#") for link in Parsed(answer.text).links)


def test_every_downloaded_page_is_linked_and_holds_hidden_fields_on_request_alone(training: Path) -> None:
    for path in ("0", "0?role=solver", "0/train-000001/3"):
        links = Parsed(get(f"/{KEY}/{path}", training).text).links
        plain, whole = (link for link in links if "/file" in link)
        assert ("role=solver" in plain, "hidden" in plain, "hidden=yes" in whole) == (
            "?" in path,
            False,
            True,
        )
        fields = [Parsed(get(link, training).text).text.count("solution") for link in (plain, whole)]
        assert fields[0] < fields[1]


def test_two_steps_of_a_training_are_compared_by_role(training: Path) -> None:
    page = Parsed(get(f"/{KEY}/0", training).text)
    assert page.links.count(f"/{KEY}/compare") == 1, "a form for two steps"
    compared = Parsed(get(f"/{KEY}/compare?pick=0&step=1&step=2", training).text)
    for words in ("training, step 1", "training, step 2", "solver", "verifier"):
        assert words in compared.text
    assert any(
        link.startswith(f"/{KEY}/0?role=solver&failure=any&split=train&step=2") for link in compared.links
    )
    missing = get(f"/{KEY}/compare?pick=0&step=1&step=9", training)
    assert missing.status_code == 400 and "no episodes of step 9" in missing.text
