"""Tests of the documentation site: its links, its look, its search, and the generated reference."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import TypeAdapter

from tests.pages.view.browser import Browser
from tests.waiting import soon

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md")
)
DEMO = sorted(f"demo/{page.stem}" for page in (ROOT / "docs" / "demo").glob("*.html"))
"""Pages that `make demo` writes."""
TOP = ("changelog", "contributing", "security")
"""Pages that are files of the top folder."""
needs_mkdocs = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra `docs`")

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""Pixels by which a page is wider than the screen."""

UNREACHED = """[...document.querySelectorAll("main pre, main table")].filter((it) =>
  it.scrollWidth > it.clientWidth && getComputedStyle(it).overflowX === "auto" && it.tabIndex !== 0).length"""
"""Number of code blocks and tables that scroll and that the keyboard does not reach."""

FAINT = """(() => {
  const parse = (text) => {
    const most = text.startsWith("color(") ? 255 : 1;  // color-mix gives color(srgb 0.1 0.2 0.3)
    return text.match(/[0-9.]+/g).map((it, place) => it * (place < 3 ? most : 1));
  };
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


@needs_mkdocs
def test_no_link_of_the_site_leads_nowhere(site: Path) -> None:
    """Build with --strict, which fails at the first broken link."""
    pages = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    assert pages == {*PAGES, *TOP, *DEMO, "404"}


def without_links(markdown: str) -> str:
    """Return a text without the targets of its links: those to the top folder differ on the site."""
    return re.sub(r"\]\([^)]*\)", "]", markdown)


@needs_mkdocs
def test_models_find_every_page_in_llms_txt(site: Path) -> None:
    text = (site / "llms.txt").read_text("utf-8")
    assert re.match(r"# Rolegraph\n\n> \S", text)
    linked = re.findall(r"^- \[.+?\]\((.+?)\)(: \S|$)", text, re.MULTILINE)
    assert sorted(link for link, _ in linked) == sorted(f"{page}.html" for page in (*PAGES, *TOP))
    assert len(re.findall("^## ", text, re.MULTILINE)) > 2
    assert sum(bool(about) for _, about in linked) > 0.9 * len(linked)
    whole = without_links((site / "llms-full.txt").read_text("utf-8"))
    for page in PAGES:
        assert without_links((ROOT / "docs" / f"{page}.md").read_text("utf-8").strip()) in whole


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
        assert browser.of(UNREACHED) == 0, page


@needs_mkdocs
def test_the_menu_groups_pages_by_need(site: Path) -> None:
    menu = re.search(
        r'<nav aria-label="Pages">.*?</nav>', (site / "index.html").read_text("utf-8"), re.DOTALL
    )
    assert menu is not None
    groups = re.findall(r'<span class="section">([^<]*)</span>', menu[0])
    assert groups == ["Tutorials", "How-to", "Reference", "Explanation", "For contributors"]
    assert '<a href="tutorial.html">Tutorial</a>' in menu[0]


@needs_mkdocs
def test_links_of_the_readme_into_the_docs_resolve(site: Path) -> None:
    """Check anchors in the site, which has the headings' ids; mkdocs checks the links of all other pages."""
    for page, anchor in re.findall(
        r"\]\(docs/([^)#]+)\.md(?:#([^)]*))?\)", (ROOT / "README.md").read_text("utf-8")
    ):
        text = (site / f"{page}.html").read_text("utf-8")
        assert not anchor or f' id="{anchor}"' in text, f"{page}#{anchor}"


SEARCH = Path(__file__).parent / "search.cjs"
"""Script that runs the pages' own search code and index in Node.js, and prints the hits."""

ASKED = {
    "difference verifiers cookbook keep agent": "faq.html#why-not-rllm",
    "real model trained hardware cost": "faq.html#which-real-model",
    "laptop cpu small model slow": "faq.html#which-small-model",
    "exception in reward masked fatal": "faq.html#what-if-my-reward",
    "how many tasks significance 0.05": "faq.html#how-many-tasks",
    "default kl penalty": "faq.html#is-there-a-kl",
    "equal rewards reinforce baseline": "faq.html#do-groups-of-equal",
    "async reward model api judge": "faq.html#how-do-i-use-an-asynchronous",
    "warm start format fails": "faq.html#how-do-i-warm-start",
    "compare curves two trainings chart": "faq.html#how-do-i-see-two",
    "early stopping token budget": "faq.html#how-do-i-stop-early",
    "multiple gpus machines": "faq.html#can-i-use-several-gpus",
    "publish spec cite": "faq.html#how-do-i-share",
    "telemetry data keys leave": "faq.html#what-leaves",
}
"""What a reader types for each question of docs/faq.md, and the beginning of the address of its section."""


@pytest.fixture(scope="module")
def hits(site: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Return a function that searches the built site."""
    if shutil.which("node") is None:
        pytest.skip("needs Node.js")

    def find(words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            ["node", str(SEARCH), str(site), words], capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return find


def test_every_question_is_searched_for() -> None:
    headings = re.findall(r"^## (.*)", (ROOT / "docs" / "faq.md").read_text("utf-8"), re.MULTILINE)
    assert len(headings) == len(ASKED)
    for words, heading in zip(ASKED, headings, strict=True):
        assert words.lower() not in heading.lower()


@needs_mkdocs
@pytest.mark.parametrize(("words", "section"), ASKED.items())
def test_search_finds_the_answer_to_a_question(
    hits: Callable[[str], list[dict[str, Any]]], words: str, section: str
) -> None:
    assert any(hit["location"].startswith(section) for hit in hits(words)[:3]), words


@needs_mkdocs
@pytest.mark.parametrize(
    ("words", "section"),
    [
        ("resume training", "training.html#resume-a-training"),
        ("resum train", "training.html#resume-a-training"),
        ("continue killed training", "training.html#resume-a-training"),
        ("validation other workflow", "training/schedules.html#validation-by-another-workflow"),
        ("fork conversation", "language/memory.html#forks-and-restarts"),
        ("custom loss dpo", "training/estimators.html#losses-of-your-own"),
        ("mcp server", "reference.html#mcp"),
        ("credit for each turn", "language/credit.html"),
    ],
)
def test_search_finds_a_section(
    hits: Callable[[str], list[dict[str, Any]]], words: str, section: str
) -> None:
    assert section in [hit["location"] for hit in hits(words)[:3]]


@needs_mkdocs
def test_a_section_is_found_once_with_the_words_that_match(
    hits: Callable[[str], list[dict[str, Any]]],
) -> None:
    found_here = hits("resuming trainings")
    assert found_here[0]["location"] == "training.html#resume-a-training"
    places = [hit["location"] for hit in found_here]
    assert len(places) == len(set(places)) == 12
    marked = {text.lower() for text, is_marked in found_here[0]["excerpt"] if is_marked}
    assert "training" in marked and any(word.startswith("resum") for word in marked)
    assert all(len("".join(text for text, _ in hit["excerpt"])) < 200 for hit in found_here)
    assert hits("zyxwvut") == hits("the") == []


@needs_mkdocs
@pytest.mark.parametrize("denied", [False, True], ids=["clipboard", "older-command"])
def test_a_block_of_code_is_copied_by_keyboard_from_the_disk(
    browser: Browser, site: Path, denied: bool
) -> None:
    browser.open((site / "index.html").as_uri(), 1280, dark=False)
    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    count = "document.querySelectorAll({!r}).length"
    assert browser.of(count.format("main pre")) == browser.of(count.format(".block button")) == 2
    if denied:
        browser.of("navigator.clipboard.writeText = () => Promise.reject(new Error('denied'))")
    place = int(denied)  # another block than before, whose text is on the clipboard still
    browser.of(f"document.querySelectorAll('.block button')[{place}].focus()")
    browser.press("Enter")
    block = browser.of(f"document.querySelectorAll('main pre')[{place}].textContent")
    read = "navigator.clipboard.readText().then((text) => { window.copied = text; }), window.copied"
    assert soon(lambda: browser.of(read) == block, 30)


@needs_mkdocs
def test_search_works_from_the_disk(browser: Browser, site: Path) -> None:
    browser.open((site / "index.html").as_uri(), 1280, dark=False)
    browser.press("/")
    for key in "margin":
        browser.press(key)
    hits = browser.of("[...document.querySelectorAll('#found a')].map((it) => it.getAttribute('href'))")
    assert "language/credit.html" in [hit.removeprefix("./") for hit in hits]
    assert "margin" in browser.of("[...document.querySelectorAll('#found mark')].map((it) => it.textContent)")
    browser.go(lambda: browser.press("Enter"))
    assert browser.of("location.pathname").startswith(str(site))
