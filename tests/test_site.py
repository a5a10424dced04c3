"""Tests of the documentation site: its links, its look, its search, and the generated reference."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import TypeAdapter

from tests.pages.view.browser import Browser, browsing, found

ROOT = Path(__file__).parent.parent
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
needs_mkdocs = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra `docs`")

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""Pixels by which a page is wider than the screen."""

FAINT = """(() => {
  const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (node) => {
    for (let it = node; it; it = it.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(it).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((it) => it.nodeType === 3 && it.data.trim())) continue;
    if (["SCRIPT", "STYLE"].includes(node.tagName) || !node.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    const name = `${node.tagName}.${node.className} ${node.textContent.slice(0, 30)}`;
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.add(name);
  }
  return [...faint].slice(0, 5);
})()"""
"""Elements whose text has less contrast than WCAG's level AA asks for, 4.5."""


@pytest.mark.parametrize(("function", "file"), [("page", "reference.md"), ("keys", "keys.md")])
def test_the_reference_is_what_the_models_say(function: str, file: str) -> None:
    """Generate the page in a new process, which has no registrations of other tests."""
    write = f"import runpy, sys; sys.stdout.write(runpy.run_path('docs/reference.py')['{function}']())"
    page = subprocess.run(
        [sys.executable, "-c", write], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    assert page.stdout == (ROOT / "docs" / file).read_text("utf-8"), "run python docs/reference.py"


def test_every_key_has_an_example_that_a_spec_may_hold() -> None:
    docs = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    examples, models = docs["EXAMPLES"], {model.__name__: model for model in docs["LINKED"]}
    keys = {name: {*model.model_fields} for name, model in models.items()}
    assert {name: {*own} for name, own in examples["examples"].items()} == keys
    for name, own in examples["examples"].items():
        for key, example in own.items():
            field = models[name].model_fields[key]
            hint: Any = field.annotation
            TypeAdapter(Annotated[hint, *field.metadata] if field.metadata else hint).validate_python(example)
    for want, key, _ in examples["wants"]:
        assert {*yaml.safe_load(key)} <= {"extends"}.union(*keys.values()), want


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = ("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    built = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if found() is None:
        pytest.skip("needs a Chromium")
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@needs_mkdocs
def test_no_link_of_the_site_leads_nowhere(site: Path) -> None:
    """Build with --strict, which fails at the first broken link."""
    assert {page.stem for page in site.glob("*.html")} >= set(PAGES)


@needs_mkdocs
def test_models_find_every_page_in_llms_txt(site: Path) -> None:
    text = (site / "llms.txt").read_text("utf-8")
    assert re.match(r"# Rolegraph\n\n> \S", text)
    linked = re.findall(r"^- \[.+?\]\((.+?)\)(: \S|$)", text, re.MULTILINE)
    assert sorted(link for link, _ in linked) == sorted(f"{page}.html" for page in PAGES)
    assert len(re.findall("^## ", text, re.MULTILINE)) > 2
    assert sum(bool(about) for _, about in linked) > 0.9 * len(linked)
    whole = (site / "llms-full.txt").read_text("utf-8")
    for page in PAGES:
        assert (ROOT / "docs" / f"{page}.md").read_text("utf-8").strip() in whole


@needs_mkdocs
def test_ids_of_headings_are_words(site: Path) -> None:
    for page in PAGES:
        for name in re.findall(r'<h[1-6] id="([^"]*)"', (site / f"{page}.html").read_text("utf-8")):
            assert name[0].isalpha(), f"{page}: {name}"


@needs_mkdocs
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in PAGES:
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', (site / f"{page}.html").read_text("utf-8")
        )
        assert loaded and not [url for url in loaded if re.match(r"(?:https?:)?//", url)], page


@needs_mkdocs
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_every_page_fits_the_screen_and_can_be_read(
    browser: Browser, site: Path, width: int, dark: bool
) -> None:
    for page in PAGES:
        browser.open((site / f"{page}.html").as_uri(), width, dark=dark)
        assert browser.of(WIDER) == 0, page
        assert browser.of(FAINT) == [], page


@needs_mkdocs
def test_search_works_from_the_disk(browser: Browser, site: Path) -> None:
    browser.open((site / "index.html").as_uri(), 1280, dark=False)
    browser.press("/")
    for key in "margin":
        browser.press(key)
    hits = browser.of("[...document.querySelectorAll('#found a')].map((it) => it.getAttribute('href'))")
    assert "language.html#credit-and-groups" in [hit.removeprefix("./") for hit in hits]
    browser.go(lambda: browser.press("Enter"))
    assert browser.of("location.pathname").startswith(str(site))
