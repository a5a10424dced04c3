"""Tests of the pages in Chromium at 400 and 1280 pixels, light and dark, by keyboard; served or as a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records.folder import RUN
from rolegraph.engine.records.writer_lock import sole_writer
from tests import replays
from tests.cli.conftest import ENVIRONMENT
from tests.pages.view.browser import Browser
from tests.pages.view.runs import write_training
from tests.pages.view.test_overview import cut

AXE = "ROLEGRAPH_AXE"
"""Environment variable with the path of axe-core's axe.min.js."""


def axe() -> Path | None:
    """Return the file of axe-core (`npm install axe-core`); None where it is not installed."""
    file = Path(os.environ.get(AXE) or "node_modules/axe-core/axe.min.js")
    return file if file.is_file() else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    long = 'roles.solver.prompt="{{ task.question }} ' + "averylongword" * 40 + '"'
    return write_training(tmp_path_factory.mktemp("browser") / "training", "solver_judge", long)


@contextmanager
def viewing(*folders: Path) -> Iterator[str]:
    """Run the command `view` and yield the address that the command prints."""
    command = [sys.executable, "-m", "rolegraph", "view", *map(str, folders)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait()
    assert code == 0


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with viewing(folder) as url:
        yield url


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[str]:
    """Yield the address of a viewer of two trainings, without its last slash."""
    other = write_training(folder.parent / "other", "solver_judge")
    for run, right in ((folder, 0.25), (other, 0.5)):
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(
                json.dumps({"step": step, "validation/correct": right * step}) + "\n" for step in (0, 1, 2)
            )
    with viewing(folder, other) as url:
        yield url.rstrip("/")


@pytest.fixture(scope="module")
def static(folder: Path) -> str:
    file = folder.parent / "one.html"
    rg.view(folder).write(file, hidden=False, most=10)
    return file.as_uri()


WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
GROUND = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => +a + +b)"
FOCUS = "document.activeElement.className"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("page", ["list", "episode", "file"])
def test_a_page_fits_its_screen_and_its_colours_the_person_s(
    browser: Browser, address: str, static: str, page: str, width: int, dark: bool
) -> None:
    url = {"list": address, "episode": f"{address}/train-000001/0", "file": static}[page]
    browser.open(url, width, dark=dark)
    if page == "file":
        browser.of("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
    assert browser.of(WIDER) == 0
    assert (browser.of(GROUND) < 200) == dark
    assert browser.of("document.querySelectorAll('.row, .card').length") > 2
    requested = browser.of("performance.getEntriesByType('resource').map((it) => it.name)")
    assert requested == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_a_report_and_a_comparison_fit_the_screen_and_graphs_have_the_ground_of_the_page(
    browser: Browser, folder: Path, width: int, dark: bool
) -> None:
    compared = folder.parent / "compared.html"
    rg.compare(folder, folder, html=compared)
    browser.open(compared.as_uri(), width, dark=dark)
    assert browser.of(WIDER) == 0
    tables = "[...document.querySelectorAll('#figures .scroll, #cost .scroll')]"
    assert browser.of(f"{tables}.map((it) => it.scrollWidth - it.clientWidth)") == [0, 0]
    (page,) = rg.report(folder)
    browser.open(page.as_uri(), width, dark=dark)
    assert browser.of(WIDER) == 0
    assert (browser.of(GROUND) < 200) == dark
    text = (
        "getComputedStyle(document.querySelector('svg text')).fill.match(/\\d+/g).reduce((a, b) => +a + +b)"
    )
    assert (browser.of(text) > 382) == dark


def test_a_person_gets_about_by_keys_alone(browser: Browser, address: str) -> None:
    browser.open(f"{address}?split=train", 1280, dark=False)
    browser.press("j")
    assert browser.of(FOCUS) == "row"
    browser.press("j")
    browser.press("j")
    second = browser.of("document.activeElement.getAttribute('href')")
    assert "/train-000002/1?" in second
    browser.go(lambda: browser.press("Enter"))
    assert browser.of("location.pathname + location.search") == second
    browser.press("j")
    assert browser.of(FOCUS) == "card"
    browser.press("t")
    assert "plain" in browser.of("document.body.className")
    browser.go(lambda: browser.press("n"))
    assert browser.of("location.pathname").endswith("/train-000002/2")
    browser.go(lambda: browser.press("u"))
    browser.press("/")
    assert browser.of("document.activeElement.name") == "text"
    browser.press("Escape")
    browser.press("?")
    assert browser.of("document.getElementById('keys').open") is True


ASKED = "[...document.querySelectorAll('summary .asked')].map((it) => it.firstChild.textContent)"


def test_a_filter_applies_while_it_is_typed(browser: Browser, address: str) -> None:
    browser.open(address, 400, dark=False)
    assert not browser.of(
        "[...document.querySelectorAll('#filter button')].some((it) => it.checkVisibility())"
    )
    browser.of("document.querySelector('[name=text]').focus()")
    for key in "Task 1":
        browser.press(key)
    browser.until("location.search === '?text=Task+1'")
    shown = browser.of(ASKED)
    assert shown and all("Task 1" in asked for asked in shown)
    assert browser.of("[document.activeElement.name, document.activeElement.value]") == ["text", "Task 1"]
    browser.of("document.querySelector('[name=text]').value = ''")
    browser.of("document.querySelector('.menu summary').click()")
    browser.of("document.querySelector('[name=low]').focus()")
    browser.press("x")
    browser.until("document.getElementById('message').textContent.includes('expected a number')")
    assert browser.of(ASKED) == shown, "an invalid filter leaves the list"


def test_enter_in_a_field_neither_sorts_nor_compares(browser: Browser, address: str, two: str) -> None:
    for url, name, text in ((address, "text", "Task 1"), (f"{two}/", "search", "nothing")):
        browser.open(url, 1280, dark=False)
        page = browser.of("location.pathname")
        browser.of(f"Object.assign(document.querySelector('[name={name}]'), {{value: '{text}'}}).focus()")
        browser.press("Enter")
        browser.until(f"new URLSearchParams(location.search).get('{name}') === '{text}'")
        assert browser.of("[location.pathname, new URLSearchParams(location.search).get('sort')]") == [
            page,
            None,
        ]


def test_the_heading_orders_by_task(browser: Browser, address: str) -> None:
    browser.open(address, 1280, dark=False)
    browser.of("document.querySelector('.heads button').click()")
    browser.until("location.search === '?sort=task'")
    shown = browser.of(ASKED)
    assert shown == sorted(shown) and browser.of("document.querySelector('[name=sort]').value") == "task"


def test_a_file_opens_the_episode_of_its_address_and_looks_for_texts(browser: Browser, static: str) -> None:
    browser.open(f"{static}#e0-train-000002-3", 1280, dark=False)
    assert browser.of("[...document.querySelectorAll('details.episode[open]')].map((it) => it.id)") == [
        "e0-train-000002-3"
    ]
    browser.of(
        "(() => { const it = document.getElementById('within'); it.value = 'task 0:';"
        " it.dispatchEvent(new Event('input')); })()"
    )
    shown = "[...document.querySelectorAll('details.episode')].filter((it) => it.checkVisibility()).length"
    assert browser.of(shown) == 5


def test_an_address_opens_the_folded_section_that_it_names(browser: Browser, static: str) -> None:
    browser.open(f"{static}#e0-train-000002-3-solver-1-1-g1", 1280, dark=False)
    opened = "[...document.querySelectorAll('details[open]')].map((it) => it.id)"
    assert browser.of(opened) == ["e0-train-000002-3", "e0-train-000002-3-solver-1-1-g1"]
    assert browser.of("document.querySelector('details[open] .mine').checkVisibility()")


@pytest.fixture
def going(tmp_path: Path) -> Path:
    folder = replays.run(tmp_path / "runs" / "going", replays.solved(0, 1), tasks=4, rollouts=2)
    cut(folder, 3)
    for number in range(30):
        replays.run(tmp_path / "runs" / f"other-{number:02}", replays.solved(0), tasks=1)
    return folder


def test_the_list_of_runs_follows_a_run_and_keeps_what_its_reader_did(browser: Browser, going: Path) -> None:
    """Scroll, order, search, picks and the focus stay while the number of finished episodes grows."""
    with viewing(going.parent) as url, sole_writer(going, RUN):
        browser.open(url, 1280, dark=False)
        browser.of("document.getElementById('sort-run').click()")
        browser.until("location.search.includes('sort=run')")
        browser.of("document.querySelector('[name=search]').value = 'solver'")
        browser.of("document.getElementById('pick-3').focus()")
        browser.press(" ")
        browser.until("location.search.includes('pick=3') && location.search.includes('search=solver')")
        browser.until("document.querySelector('#compare').textContent.includes('picked (1)')")
        browser.of("scrollTo({ top: 300, behavior: 'instant' })")
        place = "[Math.round(document.activeElement.getBoundingClientRect().top), document.activeElement.id]"
        before = browser.of(place)
        assert before[1] == "pick-3" and browser.of("scrollY") == 300
        status = "document.querySelector('[data-running] [data-name=status]').textContent"
        assert "running, 3 of 8" in browser.of(status)
        for name in ("episodes.jsonl", "episodes.index"):
            file = going / name
            with file.open("a") as grown:
                grown.write(file.read_text().splitlines(keepends=True)[0])
        (going / "episodes.index").unlink()
        browser.until(f"{status}.includes('running, 4 of 8')")
        assert browser.of(place) == before, "on the screen"
        assert browser.of("document.getElementById('pick-3').checked") is True
        assert browser.of("document.querySelector('[name=search]').value") == "solver"
        assert browser.of("document.querySelector('[aria-sort=ascending] button').id") == "sort-run"


def test_two_picked_runs_are_compared_by_keys_alone(browser: Browser, going: Path) -> None:
    with viewing(going.parent) as url:
        browser.open(url, 400, dark=True)
        assert browser.of(WIDER) == 0
        for pick in ("pick-0", "pick-1"):
            browser.of(f"document.getElementById('{pick}').focus()")
            browser.press(" ")
        browser.until("document.querySelector('#compare').textContent.includes('picked (2)')")
        browser.of("document.getElementById('compare').focus()")
        browser.go(lambda: browser.press("Enter"))
        assert browser.of("location.pathname").endswith("/compare")
        assert browser.of(WIDER) == 0
        rows = "[...document.querySelectorAll('.tasks tbody tr')].filter((it) => it.checkVisibility()).length"
        assert browser.of(rows) == 0, "folded"
        browser.of("document.querySelector('.tasks summary').focus()")
        browser.press("Enter")
        assert browser.of(rows) == 1


FOCUSED = """(() => {
  const it = document.activeElement, style = getComputedStyle(it);
  return it === document.body ? null : [it.outerHTML.slice(0, 80), style.outlineStyle !== "none"];
})()"""
"""The focused element, and whether its outline shows; None at the end of the page."""
CONTROLS = "a[href]:not([tabindex='-1']), button, input, select, summary, [tabindex='0']"


@pytest.mark.parametrize("page", ["", "0", "0/train-000001/0", "0/report", "compare?pick=0&pick=1"])
def test_every_control_is_reached_by_tab_and_shows_its_focus(browser: Browser, two: str, page: str) -> None:
    browser.open(f"{two}/{page}", 1280, dark=False)
    browser.of(
        f"controls = [...document.querySelectorAll(`{CONTROLS}`)].filter((it) => it.checkVisibility())"
    )
    browser.of("missed = new Set(controls.filter((it) => it.type !== 'hidden'))")
    hidden: list[str] = []
    while True:
        browser.press("Tab")
        browser.of("missed.delete(document.activeElement)")
        focused = browser.of(FOCUSED)
        if focused is None:
            break
        hidden += [] if focused[1] else [focused[0]]
    assert browser.of("[...missed].map((it) => it.outerHTML)") == []
    assert hidden == []


def test_a_chart_tells_its_values_by_arrow_keys(browser: Browser, two: str) -> None:
    browser.open(f"{two}/0/report", 1280, dark=False)
    browser.of("document.querySelector('svg.chart').focus()")
    tips = []
    for key in ("End", "ArrowLeft", "Home"):
        browser.press(key)
        tips.append(browser.of("document.getElementById('tip').textContent"))
    assert len({*tips}) > 1 and all(tip.startswith("step ") for tip in tips)
    assert browser.of("document.getElementById('tip').hidden") is False
    browser.press("Escape")
    assert browser.of("document.getElementById('tip').hidden") is True


def test_columns_and_curves_follow_the_choice_and_a_new_chart_tells_its_values(
    browser: Browser, two: str
) -> None:
    browser.open(f"{two}/", 1280, dark=False)
    headings = "[...document.querySelectorAll('.list thead th')].map((it) => it.textContent.trim())"
    assert "duration (s)" not in browser.of(headings)
    browser.of("document.querySelector('.menu summary').focus()")
    browser.press("Enter")
    browser.of("document.querySelector('[name=column][value=duration]').focus()")
    browser.press(" ")
    browser.until(f"{headings}.includes('duration (s)')")
    for pick in ("pick-0", "pick-1"):
        browser.of(f"document.getElementById('{pick}').focus()")
        browser.press(" ")
    browser.until("document.querySelectorAll('svg.chart .line.bold').length === 2")
    browser.of("document.querySelector('svg.chart').focus()")
    browser.press("End")
    tip = browser.of("document.getElementById('tip').textContent").split("\n")
    assert tip == ["step 2", "training, validation  0.500", "other, validation  1"]
    assert browser.of("document.querySelector('.menu').open") is True
    assert browser.of(WIDER) == 0


def test_an_outcome_is_a_press_away_and_stays_with_a_typed_filter(browser: Browser, address: str) -> None:
    browser.open(address, 400, dark=True)
    browser.of("document.querySelectorAll('.facets a')[2].focus()")
    browser.go(lambda: browser.press("Enter"))
    assert browser.of("location.search") == "?correct=no"
    browser.of("document.querySelector('[name=text]').focus()")
    browser.press("1")
    browser.until("location.search.includes('text=1')")
    assert browser.of("new URLSearchParams(location.search).get('correct')") == "no"


@pytest.mark.skipif(axe() is None, reason=f"no axe-core in node_modules, nor named by {AXE}")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize(
    "page",
    [
        "",
        "0",
        "0/train-000001/0",
        "0/train-000001/0/elsewhere",
        "0/train-000001/0/beside/1/train-000001/0",
        "0/report",
        "compare?pick=0&pick=1",
        "0?low=x",
    ],
)
def test_axe_finds_nothing_serious(browser: Browser, two: str, page: str, width: int, dark: bool) -> None:
    file = axe()
    assert file is not None
    browser.open(f"{two}/{page}", width, dark=dark)
    browser.of("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
    browser.of(f"{file.read_text()};0")
    found = browser.promised(
        "axe.run().then((it) => it.violations.filter((of) => ['serious', 'critical'].includes(of.impact))"
        ".map((of) => [of.id, of.nodes.map((node) => node.html)]))"
    )
    assert found == []
