"""Tests of the demo's page: from a learning curve to the turn before its largest fall."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import get_args

import pytest
from results_demo import PAGE, WORDS, figure_of, write_demo
from results_falls import change_beside, heaviest_turn, largest_fall, smoothed_curve
from results_page import Findings, Verdict
from results_tables import HERE, Run, Study

from rolegraph.engine.records import RunFolder
from rolegraph.pages.view import open_run
from tests.pages.view.browser import Browser
from tests.pages.view.runs import write_training
from tests.test_site import FAINT, WIDER

MEASURED = HERE.parent / "measured"
FALLING = [0.5, 0.7, 0.9, 0.9, 0.3, 0.4]
"""Right answers of six steps: the second half is 0.167 below the first."""


def points(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(float(step), value) for step, value in enumerate(values, 1)]


def test_a_curve_falls_most_between_two_windows() -> None:
    values = [0.5] * 10 + [0.9] * 5 + [0.4] * 5 + [0.6] * 10
    fall = largest_fall(points(values))
    assert fall is not None
    assert fall.steps == [11, 12, 13, 14, 15]
    assert (fall.before, fall.after) == pytest.approx((0.9, 0.4))
    assert smoothed_curve(points(values))[0] == (5, 0.5)
    assert smoothed_curve(points(values))[-1] == (30, pytest.approx(0.6))


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.5], [0.1, 0.2, 0.3, 0.4]])
def test_a_curve_that_never_falls_has_no_fall(values: Sequence[float]) -> None:
    assert largest_fall(points(values)) is None


def test_a_short_curve_is_divided_in_halves_at_most() -> None:
    fall = largest_fall(points([0.8, 0.2]))
    assert fall is not None and fall.steps == [1] and fall.size == pytest.approx(0.6)


def test_another_curve_is_compared_in_the_steps_of_a_fall() -> None:
    fall = largest_fall(points([0.9, 0.9, 0.5, 0.5]))
    assert fall is not None
    assert change_beside(fall, points([0.2, 0.4, 0.5, 0.7])) == pytest.approx(0.3)
    assert change_beside(fall, points([0.2, 0.4, 0.5])) is None
    assert change_beside(fall, []) is None


def place(study: Study, arm: str, seed: int) -> Path:
    """Write a finished training of an arm, whose right answers are `FALLING`, and keep its figures."""
    part = study.table.arms[arm]
    source = study.source(part, seed)
    folder = study.out / "trainings" / study.work(part, seed)
    steps = len(FALLING)
    write_training(folder, str(source.spec), *source.overrides, f"train.steps={steps}", steps=steps, tasks=2)
    run = RunFolder(folder)
    with run.ending():
        for step, value in points(FALLING):
            shares = {f"optim/share/{role}": float(role in ("solver", "worker")) for role in run.info().roles}
            run.add_metrics({"step": step, "episode/correct": value, **shares})
    peak = 0.9 + seed / 100 if arm.endswith("_separate") else 0.7
    figures = {"share": 1.0, "peak": peak, "drop": 0.1, "": 0.6, "start": 0.4}
    values = {name: {"": value} for name, value in figures.items()}
    study.keep(Run(arm=arm, seed=seed, work=folder.name, overrides=(), values=values))
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return the table with both arms of voting in three seeds, and one arm with a loop in one."""
    made = Study("capture", tmp_path_factory.mktemp("results"))
    for seed in range(3):
        for arm in ("judge_shared", "judge_separate"):
            place(made, arm, seed)
    place(made, "loop_shared", 0)
    return made


@pytest.fixture(scope="module")
def page(study: Study) -> Path:
    return write_demo(study, study.out / "demo")


def test_each_verdict_has_a_sentence() -> None:
    assert all({*sentences} == {*get_args(Verdict)} for sentences in WORDS.values())


def text_of(page: Path) -> str:
    """Return a page's text without tags, each run of white space as one space."""
    body = page.read_text("utf-8").partition("<body>")[2].partition("<script>")[0]
    return " ".join(unescape(re.sub("<[^>]*>", " ", body)).split())


def test_the_heaviest_turn_has_most_of_its_policys_gradient(study: Study) -> None:
    run = open_run(study.out / "trainings" / study.work(study.table.arms["judge_separate"], 0))
    turn = heaviest_turn(run, [2, 3, 4])
    assert turn is not None and turn.row.part.split == "train" and turn.row.part.step in (2, 3, 4)
    masses: dict[str, list[float]] = {"solver": [], "judge": []}
    for row in run.rows(turn.row.part):
        for trajectory in run.read(row).trajectories:
            masses[trajectory.name].append(sum(abs(a) for step in trajectory.steps for a in step.advantages))
    own = masses[turn.node.role]
    assert turn.share == pytest.approx(max(own) / sum(own))
    assert heaviest_turn(run, [99]) is None


def test_the_page_has_curves_figures_and_a_way_to_a_turn(page: Path) -> None:
    html, text = page.read_text("utf-8"), text_of(page)
    assert "It is not measured in full yet. 7 of 18 trainings are measured." in text
    assert "So far, of 1 seed." in text
    judge = html.partition('<section id="judge">')[2].partition("</section>")[0]
    titles = re.findall(r"<figcaption><b>(.*?)</b>", judge)
    assert titles[:2] == ["Right answers", "Share of the shared policy&#39;s gradient"]
    assert [title.rpartition(", ")[2] for title in titles[2:]] == ["one policy", "a policy each"]
    assert judge.count('class="band') == 4  # two sides, and two roles, over three seeds
    assert re.search(
        r"The solver writes \d+% of the tokens and has 100% of the shared policy's gradient", text
    )
    assert "Separate policies reach the higher peak (+0.210)." in text
    links = re.findall(r'<td class="cause"><a href="(.*?)#(.*?)">', judge)
    assert judge.count('<td class="cause">') == 6
    assert judge.count("<td>−0.167</td>") == 6  # the other side's curve is the same
    assert len(links) == 2 and {file for file, _ in links} == {"judge.html"}
    assert judge.count('<circle class="dot link') == 2
    workers = html.partition('<section id="orchestrator">')[2].partition("</section>")[0]
    assert "Not measured yet." in workers and "<figure>" not in workers
    assert not re.search(r'(?:src|href)="https?://(?!arxiv\.org)', html)


def test_every_link_opens_the_table_of_a_group(page: Path) -> None:
    links = re.findall(r'<td class="cause"><a href="(.*?)#(.*?)">', page.read_text("utf-8"))
    assert len(links) == 3
    for file, anchor in links:
        assert f'<details class="credit" id="{anchor}">' in (page.parent / file).read_text("utf-8")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_click_on_a_fall_opens_the_credit_trace(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page.as_uri(), width, dark=dark)
    assert browser.of(WIDER) == 0
    assert browser.of(FAINT) == []
    dot = "document.querySelector('#judge svg .link')"
    browser.go(lambda: browser.of(f"{dot}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"))
    assert browser.of("location.pathname").endswith("/judge.html")
    opened = browser.of("[...document.querySelectorAll('details.credit[open]')].map((it) => it.id)")
    assert [f"#{name}" for name in opened] == [browser.of("location.hash")]
    assert browser.of("document.querySelector('details.credit[open] .mine').checkVisibility()")
    assert browser.of(WIDER) == 0


def test_the_page_of_the_docs_says_what_is_measured() -> None:
    study = Study("capture", MEASURED)
    found_here = Findings(study)
    text = text_of(PAGE / "index.html")
    assert f" {found_here.verdict}." in text or not found_here.measured
    for arm in study.table.arms:
        for figure in ("peak", "drop"):
            shown = " ".join(figure_of(found_here, f"{arm}.{figure}").split())
            assert shown in text, f"{arm}: write docs/demo again"
    assert sum(file.stat().st_size for file in PAGE.iterdir()) < 1_000_000
