"""Folders of the specs, prompts and models that the package contains, in a checkout and in a wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = Path(__file__).resolve().parents[1]

SPECS = _PACKAGE / "specs"
PROMPTS = _PACKAGE / "prompts"

BASE_NAME = "rolegraph-base"
_MODELS = _PACKAGE / "local" / "base"
MODELS = {BASE_NAME: _MODELS / "model", "rolegraph-teacher": _MODELS / "teacher"}
"""Folders of the shipped models, by their names in specs and in the local service."""


def model_folder(name: str | None) -> Path:
    """Return the folder of a local model: a shipped model by name, the base model for None, else the path."""
    return MODELS.get(name or BASE_NAME) or Path(name or BASE_NAME)


@cache
def taught_prompts() -> frozenset[str]:
    """Return the texts of all shipped prompt templates, the only prompts that the shipped models were trained
    on."""
    return frozenset(file.read_text("utf-8") for file in PROMPTS.glob("*.j2"))


def templates_in(folder: Path, *, html: bool = False) -> Environment:
    """Return the environment of a folder of Jinja templates; `html` escapes the values that they write."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import

    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
        autoescape=html,
    )
