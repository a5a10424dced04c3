"""Template environment, style and scripts of all HTML pages.

Autoescape is on, because texts of models are hostile.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rolegraph.engine.report.charts import number
from rolegraph.engine.report.digest import clipped

_HERE = Path(__file__).parent


@cache
def environment(folder: Path) -> Environment:
    """Return the template environment of a folder, with the filters of all pages."""
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "signed": signed, "clipped": clipped, "svg": Markup}
    return made


def style(*more: Path) -> Markup:
    """Return the style that all pages share, followed by the given files."""
    sheets = (_HERE / "report.css", *more)
    return Markup("".join(sheet.read_text(encoding="utf-8") for sheet in sheets))


def script(file: Path) -> tuple[Markup, str]:
    """Return a script and its SHA-256 in base64, for a content security policy."""
    text = file.read_text(encoding="utf-8")
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def signed(value: float) -> str:
    """Format a number with its sign."""
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{number(abs(value))}"
