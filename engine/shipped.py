"""Where the specs and prompts that come with the package lie, in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE / "_shipped" if (_PACKAGE / "_shipped").is_dir() else _PACKAGE.parent

SPECS = _ROOT / "specs"
PROMPTS = _ROOT / "prompts"
