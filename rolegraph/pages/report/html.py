"""Template environment, style and scripts of all HTML pages.

Autoescape is on, because texts of models are hostile.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from rolegraph.engine.records.numbers import number, signed
from rolegraph.engine.shipped import templates_in
from rolegraph.pages.report.digest import clipped, plain_answer

_HERE = Path(__file__).parent
CHARTS = _HERE / "report.js"
"""Script that shows the values of a chart in the page's element `tip`."""
ABOUT = (
    "declares a multi-role LLM workflow in one YAML file and trains every role with reinforcement learning"
)
"""Words after the name at the top of a page that is a file, for whoever gets it without more."""
COLOURS = _HERE / "colors.css"
"""CSS file with the colours of all pages, and of the documentation."""


def render(template: Path, *sheets: Path, **values: Any) -> str:
    """Render a page's template, and return its HTML.

    Args:
        template: Jinja template of the page.
        sheets: CSS files of this page. The template's variable `style` has the style of all pages, then these
            files.
        values: Further variables of the template.
    """
    style_sheets = [sheet.read_text(encoding="utf-8") for sheet in (COLOURS, _HERE / "report.css", *sheets)]
    page = _environment(template.parent).get_template(template.name)
    return page.render(style=Markup("".join(style_sheets)), **values)


def top_bar(entries: Iterable[tuple[str, str]], current: str = "") -> Markup:
    """Return the links at the top of a page.

    Args:
        entries: (text, URL) of each; a text without a URL is no link.
        current: Text of the link to the page itself.
    """
    return Markup(_environment(_HERE).get_template("bar.html.j2").render(entries=entries, current=current))


def file_bar(home: str = "", up: str = "") -> Markup:
    """Return the top of a page that is a file.

    Args:
        home: URL of the site that the page is part of; empty without one.
        up: URL of the report that the page belongs to; empty without one.
    """
    links = [("Documentation", home), ("Report of the training", up)]
    return top_bar([("Rolegraph", home), (ABOUT, ""), *((text, href) for text, href in links if href)])


@cache
def _environment(folder: Path) -> Environment:
    environment = templates_in(folder, html=True)
    filters: Mapping[str, Any] = {"number": number, "signed": signed, "aligned": aligned, "svg": Markup}
    environment.filters.update(filters)
    environment.filters |= {"clipped": clipped, "plain_answer": plain_answer}
    environment.filters |= {"breakable": breakable, "short_path": short_path}
    return environment


def script(*files: Path) -> tuple[Markup, str]:
    """Join files to one script; return the script and its SHA-256 in base64, for a content security
    policy."""
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def breakable(name: str) -> Markup:
    """Return a name as HTML whose lines may break behind its dots, dashes, slashes and underscores."""
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[-._/])(?=\w)", name))


def short_path(model: str) -> str:
    """Return a model's name without the folders of its path: `local:/models/mine` becomes `local:mine`."""
    return re.sub(r"^(\w+:)?/.*/(?=.)", r"\1", model)


def aligned(value: float, column: Iterable[float | None], sign: str = "") -> str:
    """Format a number with as many decimals as the longest number in its column; with `sign="+"`, a plus sign
    is written."""
    decimals = [len(number(other).partition(".")[2]) for other in column if other is not None]
    if value and number(value).count("e"):
        return signed(value) if sign else number(value)
    return f"{value:{sign if value else ''},.{max(decimals, default=0)}f}".replace("-", "−")
