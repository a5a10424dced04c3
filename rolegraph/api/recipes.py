"""Recipes of the documentation: published set-ups, each a section of a page in docs/recipes with its spec.

A wheel contains the pages; in a checkout, the pages are read from docs.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rolegraph.engine.errors import UsageError, did_you_mean

ROWS = "rows.jsonl"
"""File of the rows of a recipe."""
_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE, _PACKAGE.parent / "docs")
_SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.M | re.S)
_BLOCK = re.compile(r"^```yaml\n(?:# (\w+\.yaml)\n)?(?:rolegraph: 2\n)?(.*?)^```$", re.M | re.S)
_HAS_DATA = re.compile(r"^(data|extends):", re.M)
_ROW = re.compile(r"^```json\n(.*?)^```$", re.M | re.S)


class Recipe(NamedTuple):
    """Section of a page of recipes, with its spec."""

    title: str
    line: str
    """First sentence of the section."""
    text: str
    """Text of the spec without its first keys."""
    others: dict[str, str]
    """Texts of further specs that the first one names, by file name."""
    row: dict[str, Any]
    """Row with the fields that the specs read."""

    def files(self, name: str) -> dict[str, str]:
        """Return the files of a workflow from this recipe, by their names in its folder.

        Args:
            name: Name of the workflow.
        """
        texts = {name: self.text, **{Path(file).stem: text for file, text in self.others.items()}}
        validation = f", validation: {ROWS}" if any("validation" in text for text in texts.values()) else ""
        data = f"data: {{train: {ROWS}{validation}}}\n"
        specs = {
            f"{stem}.yaml": f"rolegraph: 2\nname: {stem}\n{'' if _HAS_DATA.search(text) else data}{text}"
            for stem, text in texts.items()
        }
        return {**specs, ROWS: f"{json.dumps(self.row, ensure_ascii=False)}\n"}


@cache
def recipes() -> dict[str, Recipe]:
    """Return all recipes by name, such as `tree-of-thoughts`; empty where the pages are missing."""
    folder = next((folder for folder in _FOLDERS if (folder / "recipes.md").is_file()), _PACKAGE)
    pages = [page.read_text("utf-8") for page in sorted(folder.glob("recipes/*.md"))]
    index_text = (folder / "recipes.md").read_text("utf-8") if pages else ""
    row: dict[str, Any] = json.loads(match[1]) if (match := _ROW.search(index_text)) else {}
    recipes_by_name: dict[str, Recipe] = {}
    for title, section in (parts for page in pages for parts in _SECTION.findall(page)):
        (_, text), *other_blocks = _BLOCK.findall(section)
        other_specs = {file: other for file, other in other_blocks if file}
        all_specs = "\n".join((text, *other_specs.values()))
        fields = {key: it for key, it in row.items() if key in _ALWAYS or re.search(rf"\b{key}\b", all_specs)}
        introduction = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", section.partition("```")[0].strip())
        introduction = re.sub(r" \(\d{4}\.\d{5}[^)]*\)", "", introduction.partition("\n")[0])
        line = re.split(r"(?<!Dr)\.(?: |$)", introduction)[0] or title
        recipes_by_name[re.sub(r"\W+", "-", title.lower()).strip("-")] = Recipe(
            title, line, text, other_specs, fields
        )
    return recipes_by_name


_ALWAYS = ("id", "question", "answer")


def recipe_named(name: str) -> Recipe | None:
    """Return a recipe by its name, or by its title ignoring case; None if no recipe matches."""
    recipes_by_title = {recipe.title.lower(): recipe for recipe in recipes().values()}
    return recipes().get(name) or recipes_by_title.get(name.lower())


def find_recipe(name: str) -> Recipe:
    """Return a recipe as `recipe_named` does.

    Raises:
        UsageError: There is no such recipe; the message has the nearest name.
    """
    if (recipe := recipe_named(name)) is None:
        hint = did_you_mean(name, recipes()) or "`rolegraph list recipes`"
        raise UsageError(f"no recipe {name!r}; {hint}")
    return recipe
