"""Code blocks in the documentation: whole specs, and parts of specs."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
"""Tutorial, tested as a whole by test_tutorial.py: its spec extends files that its commands write."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != TUTORIAL)]
LANGUAGE = [ROOT / "docs" / "language.md", *sorted((ROOT / "docs" / "language").glob("*.md"))]
"""Pages of the language; the first lists the others."""
TRAINING = [ROOT / "docs" / "training.md", *sorted((ROOT / "docs" / "training").glob("*.md"))]
"""Pages of the training; the first lists the others."""


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Return the language and text of each code block in one of these languages, in page order."""
    pattern = rf"^```({'|'.join(languages)})\n(.*?)^```$"
    return re.findall(pattern, page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def yaml_in(*pages: str | Path) -> list[tuple[str, str]]:
    """Return each YAML block with its `page:line`; a block may hold several examples of the same key."""
    blocks: list[tuple[str, str]] = []
    for page in pages:
        text = (ROOT / page).read_text("utf-8")
        for block in re.finditer(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            blocks.append((f"{Path(page).name}:{line}", dedent(block[1])))
    return blocks


def specs_in(*pages: str | Path) -> list[tuple[str, str]]:
    """Return the YAML blocks that are whole specs or extend a spec, each with its `page:line`."""
    return [(where, text) for where, text in yaml_in(*pages) if is_spec(text)]


def is_spec(text: str) -> bool:
    """Return True if a YAML text has a top-level `rolegraph: 2` or `extends:`."""
    return bool(re.search(r"^(rolegraph: 2|extends:)", text, re.MULTILINE))
