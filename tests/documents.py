"""The YAML in the documents: whole specs, and parts of one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
"""Whose spec is laid over what its commands write: it is followed as a whole."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != TUTORIAL)]


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Each block of code in one of these languages, with its language, in order."""
    pattern = rf"^```({'|'.join(languages)})\n(.*?)^```$"
    return re.findall(pattern, page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def yaml_in(*pages: str | Path) -> list[tuple[str, str]]:
    """Each block of YAML, with its page and line; one may hold several examples of the same key."""
    blocks: list[tuple[str, str]] = []
    for page in pages:
        text = (ROOT / page).read_text("utf-8")
        for block in re.finditer(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            blocks.append((f"{Path(page).name}:{line}", block[1]))
    return blocks


def specs_in(*pages: str | Path) -> list[tuple[str, str]]:
    """Those blocks that are whole specs, or extend one."""
    return [(where, text) for where, text in yaml_in(*pages) if is_spec(text)]


def is_spec(text: str) -> bool:
    """Whether it begins as a spec does."""
    return bool(re.search(r"^(rolegraph: 1|extends:)", text, re.MULTILINE))
