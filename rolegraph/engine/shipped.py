"""Folders of the shipped specs, prompts and models, and of fetched models."""

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
"""Names at the Hugging Face hub of the models that `rolegraph fetch` knows by a short name."""
FIRST_MODEL = "smollm2-135m"
"""Model to fetch for a user's own tasks, which the shipped models cannot answer."""
_NAME = re.compile(r"(?!\.)[\w.-]{1,96}(/(?!\.)[\w.-]{1,96})?", re.ASCII)
"""Pattern of a fetched model's name: NAME, or ORG/MODEL."""


def fetched_models() -> Path:
    """Return the folder of fetched models: `rolegraph` in HF_HOME.

    As in the libraries of Hugging Face, HF_HOME is by default `huggingface` in XDG_CACHE_HOME, which is by
    default `~/.cache`.
    """
    cache_folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hub_home = os.environ.get("HF_HOME") or f"{cache_folder}/huggingface"
    return Path(hub_home, "rolegraph").expanduser().absolute()


def fetched_folder(name: str) -> Path | None:
    """Return the folder for a fetched model of this name, which need not exist; None if no fetched model can
    have the name."""
    return fetched_models() / name.replace("/", "--") if _NAME.fullmatch(name) else None


def name_of_fetched(folder: Path) -> str | None:
    """Return the name of a fetched model from its folder, which need not exist; None for any other folder."""
    is_fetched = folder.resolve().parent == fetched_models().resolve()
    return folder.name.replace("--", "/", 1) if is_fetched else None


def hub_name(folder: Path) -> str | None:
    """Return the name at the Hugging Face hub of a fetched model from its folder; None for any other
    folder."""
    name = name_of_fetched(folder) or ""
    return HUB_NAMES.get(name) or (name if "/" in name else None)


def names_model(name: str) -> bool:
    """Return True if a name is that of a shipped, known or fetched model; such a name takes precedence over a
    path."""
    folder = fetched_folder(name)
    return name in MODELS or name in HUB_NAMES or (folder is not None and folder.is_dir())


def model_folder(name: str | None) -> Path:
    """Return the folder of a local model, which need not exist.

    Args:
        name: Name of a shipped model or of a fetched one (its short name, or the hub's), or a path, with or
            without `local:`; None means the shipped base model.
    """
    name = (name or BASE_NAME).removeprefix("local:")
    short_name = next((local_name for local_name, hub_name in HUB_NAMES.items() if hub_name == name), None)
    if short_name is not None and not Path(name).is_dir() and (fetched_models() / short_name).is_dir():
        name = short_name
    folder = fetched_folder(name) if names_model(name) else None
    return MODELS.get(name) or folder or Path(name)


def templates_in(folder: Path, *, html: bool = False) -> Environment:
    """Return a Jinja environment for the templates of a folder; with `html`, values in templates are
    escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import

    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
        autoescape=html,
    )
