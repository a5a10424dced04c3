"""Folders of the specs, prompts and models that the package contains, and of the models that were fetched."""

from __future__ import annotations

import os
import re
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


HUB_NAMES = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Models of the Hugging Face hub that `rolegraph fetch` knows by a short name."""
FIRST_MODEL = "smollm2-135m"
"""Model to fetch for tasks of one's own, which the shipped models do not know."""
_NAME = re.compile(r"(?!\.)[\w.-]{1,96}(/(?!\.)[\w.-]{1,96})?", re.ASCII)
"""Form of a fetched model's name: NAME, or ORG/MODEL."""


def fetched_models() -> Path:
    """Return the folder of fetched models: `rolegraph` in HF_HOME.

    HF_HOME is by default `huggingface` in XDG_CACHE_HOME, and that is by default `~/.cache`, as for the
    libraries of Hugging Face.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    return Path(home, "rolegraph").expanduser().absolute()


def fetched_folder(name: str) -> Path | None:
    """Return the folder that a fetched model of this name has, whether it is there; None for other names."""
    return fetched_models() / name.replace("/", "--") if _NAME.fullmatch(name) else None


def name_of_fetched(folder: Path) -> str | None:
    """Return the name of a fetched model's folder, whether it is there; None for other folders."""
    is_fetched = folder.resolve().parent == fetched_models().resolve()
    return folder.name.replace("--", "/", 1) if is_fetched else None


def hub_name(folder: Path) -> str | None:
    """Return the name at the Hugging Face hub of a fetched model's folder; None for other folders."""
    name = name_of_fetched(folder) or ""
    return HUB_NAMES.get(name) or (name if "/" in name else None)


def names_model(name: str) -> bool:
    """Return True for a name of a shipped, known or fetched model, which no path can take from it."""
    folder = fetched_folder(name)
    return name in MODELS or name in HUB_NAMES or (folder is not None and folder.is_dir())


def model_folder(name: str | None) -> Path:
    """Return the folder of a local model, whether it is there.

    Args:
        name: Name of a shipped model or of a fetched one (its short name, or the hub's), or a path, with or
            without `local:`; None takes the base model.
    """
    name = (name or BASE_NAME).removeprefix("local:")
    short = next((it for it, of_hub in HUB_NAMES.items() if of_hub == name), None)
    if short is not None and not Path(name).is_dir() and (fetched_models() / short).is_dir():
        name = short
    folder = fetched_folder(name) if names_model(name) else None
    return MODELS.get(name) or folder or Path(name)


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
