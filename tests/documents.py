"""Code blocks in the documentation: whole specs, and parts of specs."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def cases_in(document: Path) -> dict[str, dict[str, str]]:
    """Return the cases of a document, a heading each, with the texts of their files by name.

    A file is a block in four backticks whose info string ends with the file's name.
    """
    found: dict[str, dict[str, str]] = {}
    for case in re.split(r"^## ", document.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        name, _, text = case.partition("\n")
        found[name] = dict(re.findall(r"^````\w+ (\S+)\n(.*?)^````$", text, re.MULTILINE | re.DOTALL))
    return found


def as_cases(title: str, cases: Mapping[str, Mapping[str, str]]) -> str:
    """Return the document of cases; the inverse of `cases_in`."""
    parts = [f"# {title}\n"]
    for name, files in cases.items():
        parts.append(f"\n## {name}\n")
        parts += [f"\n````{file.rpartition('.')[2]} {file}\n{text}````\n" for file, text in files.items()]
    return "".join(parts)
