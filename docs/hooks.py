"""Hooks of the docs' build: the pages' colours, headings' ids, pages from the top folder, a search that
needs no server, and llms.txt for models."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.contrib import search
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
TOP = {f"{name}.md": f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
"""Files of the top folder that are pages of the site, too, each with its path there."""


def heading_id(title: str, separator: str) -> str:
    """Return the id of a heading: its words, without a number in front."""
    return re.sub(r"^[\d\W_]+", "", slugify(title, separator)) or "section"


def on_config(config: MkDocsConfig) -> None:
    """Set the ids' function, which YAML cannot name without running code."""
    config.mdx_configs["toc"]["slugify"] = heading_id


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the files of the top folder."""
    for name, path in TOP.items():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / name)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between docs/ and the top folder, which hold in the repository, into links of the site."""
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri in TOP.values():
        markdown = markdown.replace("](docs/", "](")

    def of_site(link: re.Match[str]) -> str:
        return f"]({posixpath.relpath(TOP[link[1]], folder or '.')}" if link[1] in TOP else link[0]

    return re.sub(r"\]\((?:\.\./)*([A-Z]+\.md)", of_site, markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keep the navigation for `on_post_build`."""
    config.extra["nav"] = nav


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's prose as plain text; empty where the page has none."""
    text = re.sub(r"(?ms)^```.*?^```$|^<(\w+).*?</\1>$", "", markdown)
    blocks = (block.strip() for block in text.split("\n\n"))
    prose = next((block for block in blocks if block and not re.match(r"[#|!<>*-]|\d+\.", block)), "")
    plain = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())).replace("**", "")
    return re.split(r"(?<=[.?!])\s", plain, maxsplit=1)[0].rstrip(":")


def llms_texts(nav: Navigation, config: MkDocsConfig) -> dict[str, str]:
    """Return llms.txt, the pages by section with their first sentences, and llms-full.txt, all of their text.

    The form is that of llmstxt.org.
    """
    lines, texts = [f"# {config.site_name}", ""], list[str]()
    for page in nav.pages:
        section = page.parent.title if page.parent else ""
        if section and f"## {section}" not in lines:
            lines += ["", f"## {section}", ""]
        markdown = page.markdown or ""
        about = first_sentence(markdown)
        if page.is_homepage:
            lines += [f"> {about}", ""]
        lines.append(f"- [{page.title}]({page.url or 'index.html'}){f': {about}' if about else ''}")
        texts.append(markdown.strip())
    return {"llms.txt": "\n".join([*lines, ""]), "llms-full.txt": "\n\n".join([*texts, ""])}


def on_post_build(config: MkDocsConfig) -> None:
    """Write the viewer's colours, the texts for models, and the search index as a script: a page on disk may
    load no JSON.

    The plugin indexes each page as a whole and each section. Only sections stay, so that no text is found
    twice; the first section of a page has the page's address. The changelog would be found for everything.
    """
    site = Path(config.site_dir)
    for name, text in llms_texts(config.extra["nav"], config).items():
        (site / name).write_text(text, "utf-8")
    (site / "colors.css").write_bytes((ROOT / "rolegraph" / "pages" / "report" / "colors.css").read_bytes())
    folder = site / "search"
    sections: list[dict[str, str]] = []
    title, is_first = "", True
    for entry in json.loads((folder / "search_index.json").read_text("utf-8"))["docs"]:
        page, _, anchor = entry["location"].partition("#")
        if anchor and page != TOP["CHANGELOG.md"].replace(".md", ".html"):
            location = page if is_first else entry["location"]
            sections.append({**entry, "page": title, "location": location})
        title, is_first = (title, False) if anchor else (entry["title"], True)
    (folder / "search_index.js").write_text(f"const SEARCH_INDEX = {json.dumps(sections)};\n", "utf-8")
    (folder / "search_index.json").unlink()
    lunr = Path(search.__file__).parent / "templates" / "search" / "lunr.js"
    (folder / "lunr.js").write_bytes(lunr.read_bytes())
