"""What every page of ours has in common: escaping, numbers, one style, scripts that a policy names by hash.

Autoescape is on: what models wrote is hostile text. Knows no run.
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
    """The templates of a folder."""
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
    """The style that all pages share, with those of other files after it."""
    sheets = (_HERE / "report.css", *more)
    return Markup("".join(sheet.read_text(encoding="utf-8") for sheet in sheets))


def script(file: Path) -> tuple[Markup, str]:
    """A script, and its hash for a content security policy."""
    text = file.read_text(encoding="utf-8")
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def signed(value: float) -> str:
    """With its sign, which is what an advantage is about."""
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{number(abs(value))}"
