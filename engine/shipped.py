"""Where the specs, prompts and models that come with the package lie, in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

SPECS = _PACKAGE.parent / "specs"
PROMPTS = _PACKAGE.parent / "prompts"
STARTER = _PACKAGE / "starter"
"""The templates of what `rolegraph new` writes."""

BASE_NAME = "rolegraph-base"
_MODELS = _PACKAGE / "local" / "base"
MODELS = {BASE_NAME: _MODELS / "model", "rolegraph-teacher": _MODELS / "teacher"}
"""Folders of the models, by the names that a service and a spec know them by."""


def model_folder(name: str | None) -> Path:
    """The folder of a local model: a shipped one's, by default the base's, or the path that is given."""
    return MODELS.get(name or BASE_NAME) or Path(name or BASE_NAME)
