"""Hooks of the docs' build: the pages' colours, headings' ids, and a search that needs no server."""

from __future__ import annotations

import json
import re
from pathlib import Path

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.contrib import search

ROOT = Path(__file__).parent.parent


def heading_id(title: str, separator: str) -> str:
    """Return the id of a heading: its words, without a number in front."""
    return re.sub(r"^[\d\W_]+", "", slugify(title, separator)) or "section"


def on_config(config: MkDocsConfig) -> None:
    """Set the ids' function, which YAML cannot name without running code."""
    config.mdx_configs["toc"]["slugify"] = heading_id


def on_post_build(config: MkDocsConfig) -> None:
    """Write the viewer's colours, and the search index as a script: a page on disk may load no JSON."""
    site = Path(config.site_dir)
    (site / "colors.css").write_bytes((ROOT / "rolegraph" / "pages" / "report" / "colors.css").read_bytes())
    folder = site / "search"
    index = json.loads((folder / "search_index.json").read_text("utf-8"))["docs"]
    (folder / "search_index.js").write_text(f"const SEARCH_INDEX = {json.dumps(index)};\n", "utf-8")
    (folder / "search_index.json").unlink()
    lunr = Path(search.__file__).parent / "templates" / "search" / "lunr.js"
    (folder / "lunr.js").write_bytes(lunr.read_bytes())
