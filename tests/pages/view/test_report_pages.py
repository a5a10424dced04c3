"""Tests of `rolegraph report --out`: from the largest rise and fall of a curve to the turns."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records import RunFolder
from tests.cli.conftest import Command, rolegraph
from tests.pages.view.browser import Browser
from tests.pages.view.pages import Parsed, get
from tests.pages.view.runs import write_training
from tests.test_site import FAINT, WIDER
from tests.trainings import metrics

__all__ = ["rolegraph"]
DEMO = Path(__file__).parents[3] / "docs" / "demo"
CARD = re.compile(r'<article class="role" id="(rise|fall)">(.*?)</article>', re.DOTALL)


def check(site: Path) -> dict[str, str]:
    """Check every link of a report's pages, and return the link of each turning point by its name."""
    pages = {file.name: Parsed(file.read_text("utf-8")) for file in site.glob("*.html")}
    ids = {name: {*re.findall(r' id="([^"]*)"', (site / name).read_text("utf-8"))} for name in pages}
    for name, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            assert not anchor or anchor in ids[target or name], f"{name}: {link}"
    report, turns = (site / "index.html").read_text("utf-8"), dict[str, str]()
    for name, card in CARD.findall(report):
        (turns[name],) = re.findall(r'<a class="button" href="([^"]*)">Open the turn', card)
        file, _, anchor = turns[name].partition("#")
        assert '<circle class="dot link c0"' in report and report.count(f'href="{turns[name]}"') >= 2
        assert "index.html#turning" in pages[file].links
        (advantage,) = re.findall(r'advantage <b class="\w+">([^<]*)</b>', card)
        turn = (site / file).read_text("utf-8").partition(f'<article class="card" id="{anchor}"')[2]
        assert f"advantage {advantage}</b>" in turn.partition("</article>")[0]
    return turns


@pytest.fixture(scope="module")
def fallen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training with a scripted model, whose batches rise and fall."""
    folder = write_training(tmp_path_factory.mktemp("runs") / "fallen", "solver_judge", steps=6, tasks=2)
    run = RunFolder(folder)
    for step, value in enumerate([*[0.1] * 4, *[0.9] * 4, *[0.1] * 4], 1):
        run.add_metrics({"step": step, "episode/correct": value})
    return folder


def test_a_training_leads_from_its_curve_to_the_turns(whole: Path, tmp_path: Path) -> None:
    (page,) = rg.report(whole, out=tmp_path / "site")
    turns = check(page.parent)
    points = [line["validation/correct"] for line in metrics(whole) if "validation/correct" in line]
    changes = [after - before for before, after in pairwise(points)]
    assert ("rise" in turns, "fall" in turns) == (max(changes) > 0, min(changes) < 0)


def test_pages_of_a_site_lead_home_and_to_their_report(fallen: Path, tmp_path: Path) -> None:
    (page,) = rg.report(fallen, out=tmp_path / "site", home="../index.html")
    bars = {file.name: Parsed(file.read_text("utf-8")).links for file in page.parent.glob("*.html")}
    assert bars.pop("index.html")[:2] == ["../index.html"] * 2
    assert bars
    for links in bars.values():
        assert links[:3] == ["../index.html", "../index.html", "index.html#turning"]
    with pytest.raises(rg.UsageError, match="home is the site"):
        rg.report(fallen, home="../index.html")


def test_both_directions_have_a_turn_and_all_rows_of_its_step(fallen: Path, tmp_path: Path) -> None:
    (page,) = rg.report(fallen, out=tmp_path / "site")
    turns = check(page.parent)
    assert [*turns] == ["rise", "fall"]
    for link in turns.values():
        step = (page.parent / link.partition("#")[0]).read_text("utf-8")
        assert step.count('<details class="episode"') == 8


def test_the_viewer_leads_to_the_same_turns(fallen: Path) -> None:
    cards = CARD.findall(get("/the-key/0/report", fallen).text)
    assert [name for name, _ in cards] == ["rise", "fall"]
    for _, card in cards:
        (link,) = re.findall(r'<a class="button" href="([^"]*)">Open the turn', card)
        address, _, anchor = link.partition("#")
        assert f'<article class="card" id="{anchor}"' in get(address, fallen).text


def test_a_report_alone_has_the_words_without_a_link(fallen: Path) -> None:
    (page,) = rg.report(fallen)
    text = page.read_text("utf-8")
    assert len(CARD.findall(text)) == 2 and "Open the turn" not in text
    assert 'href="#rise"' in text and 'href="#fall"' in text


def test_the_command_replaces_its_own_pages_alone(rolegraph: Command, fallen: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = rolegraph("report", str(fallen), "--out", "site")
        assert (done.returncode, done.stdout) == (0, "site/index.html\n"), done.stderr
    (tmp_path / "site" / "index.html").write_text("mine")
    done = rolegraph("report", str(fallen), "--out", "site")
    assert done.returncode == 2 and "site/index.html exists" in done.stderr
    assert rolegraph("report", str(fallen), "--out", "site", "--force").returncode == 0
    done = rolegraph("report", str(fallen), str(fallen), "--out", "site")
    assert done.returncode == 2 and "got 2 trainings" in done.stderr


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_click_on_the_curve_opens_the_turn_in_its_group(browser: Browser, width: int, dark: bool) -> None:
    browser.open((DEMO / "index.html").as_uri(), width, dark=dark)
    assert (browser.of(WIDER), browser.of(FAINT)) == (0, [])
    dot = "document.querySelector('svg .link')"
    browser.go(lambda: browser.of(f"{dot}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"))
    assert browser.of("document.querySelector('.card:target').checkVisibility()")
    assert browser.of("document.querySelector('details.credit[open] .mine').checkVisibility()")
    assert browser.of(WIDER) == 0
    browser.go(lambda: browser.press("u"))
    assert browser.of("location.pathname").endswith("/demo/index.html")


def test_the_demo_rose_and_leads_to_turns() -> None:
    assert {*check(DEMO)} == {"rise", "fall"}
    assert '<div class="verdict up">' in (DEMO / "index.html").read_text("utf-8")
    assert sum(file.stat().st_size for file in DEMO.iterdir()) < 3_000_000
