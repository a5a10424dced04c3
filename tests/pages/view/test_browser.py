"""Tests of the pages in Chromium at 400 and 1280 pixels, light and dark, by keyboard; served or as a file."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rolegraph as rg
from tests.cli.conftest import ENVIRONMENT
from tests.pages.view.browser import WHERE, Browser, browsing, found
from tests.pages.view.runs import write_training

pytestmark = pytest.mark.skipif(found() is None, reason=f"no Chromium on the path, nor named by {WHERE}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    long = 'roles.solver.prompt={inline: "{{ task.question }} ' + "averylongword" * 40 + '"}'
    return write_training(tmp_path_factory.mktemp("browser") / "training", "solver_judge", long)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Run the command `view` and yield the address that the command prints."""
    command = [sys.executable, "-m", "rolegraph", "view", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0


@pytest.fixture(scope="module")
def static(folder: Path) -> str:
    file = folder.parent / "one.html"
    rg.view(folder).write(file, hidden=False, most=10)
    return file.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


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
    browser.open(address, 1280, dark=False)
    browser.press("j")
    assert browser.of(FOCUS) == "row"
    browser.press("Enter")
    browser.press("j")
    browser.press("j")
    second = browser.of("document.activeElement.getAttribute('href')")
    assert second.endswith("/train-000002/1")
    browser.go(lambda: browser.press("Enter"))
    assert browser.of("location.pathname") == second
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


def test_a_filter_is_asked_for_by_the_form(browser: Browser, address: str) -> None:
    browser.open(address, 400, dark=False)
    browser.of("document.querySelector('[name=text]').value = 'Task 1'")
    browser.go(lambda: browser.of("setTimeout(() => document.querySelector('form').requestSubmit())"))
    shown = browser.of("[...document.querySelectorAll('summary .asked')].map((it) => it.textContent)")
    assert shown and all("Task 1" in asked for asked in shown)


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
    assert browser.of(shown) == 4
