"""Tests that the recipes in the documentation compile and render."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rolegraph.api.recipes import recipes
from rolegraph.engine.compile.compiler import check_file
from rolegraph.outlook.preview import preview_task
from tests.edge import write_spec

PAGES = sorted((Path(__file__).parents[2] / "docs" / "recipes").glob("*.md"))
INTENDED = {
    "A game of reference": "sees task.target",
    "tau-bench": "needs a permission: http://127.0.0.1:8001/mcp",
    "An environment behind a service": "needs a permission: http://127.0.0.1:9000/",
    "An auction by private value": "bidder sees task.values",
    "STaR": "hinted sees task.answer",
    "SiriuS": "feedback sees task.answer, and its words reach again",
}
"""Warning of a recipe, which its text mentions."""
BY_THE_ROW = {
    "Self-play in three games": "if task.game ==",
    "Werewolf": "if self.index in task.wolves",
    "Reflexion": ("unless outcome.ok", "if not outcome.ok"),
}
"""Condition on the row, or on what a program does, for which a preview does not reach some turns."""
HEAD = "rolegraph: 2\nname: recipe\n"
DATA = "data: {train: rows.jsonl, validation: rows.jsonl}\n"
RECIPES = {recipe.title: recipe.text for recipe in recipes().values()}
ROW: dict[str, Any] = {key: value for recipe in recipes().values() for key, value in recipe.row.items()}
FILES = {name: text for recipe in recipes().values() for name, text in recipe.others.items()}
"""Further specs of recipes, by the file's name."""


def write_files(folder: Path, data: str = DATA) -> None:
    """Write the rows and the further specs of all recipes to a folder."""
    (folder / "rows.jsonl").write_text(json.dumps({"id": "1", **ROW}))
    for name, text in FILES.items():
        (folder / name).write_text(f"rolegraph: 2\nname: {Path(name).stem}\n{data}{text}")


def test_every_section_has_one() -> None:
    sections = [re.findall(r"^## ", page.read_text("utf-8"), re.M) for page in PAGES]
    assert len(RECIPES) == sum(map(len, sections)) >= 10 and all(sections)


def test_the_index_links_to_every_recipe() -> None:
    index = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")
    linked = re.findall(r"\[([^]]+)\]\(recipes/(\w+)\.md#", index)
    assert sorted(linked) == sorted(
        (title, page.stem)
        for page in PAGES
        for title in re.findall(r"^## (.+)", page.read_text("utf-8"), re.M)
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_valid_and_asks_what_can_be_rendered(name: str, tmp_path: Path) -> None:
    text = RECIPES[name]
    if "python:" in text or "tests" in text:
        pytest.importorskip("pydantic_monty")
    if "textarena" in text:
        pytest.importorskip("textarena")
    write_files(tmp_path)
    own = "" if re.search(r"^(data|extends):", text, re.M) else DATA
    checked = check_file(write_spec(tmp_path, HEAD + own + text), allow=["python"])
    meant = INTENDED.get(name, "no warning")
    said = [str(diagnostic) for diagnostic in checked.diagnostics if meant not in diagnostic.message]
    assert not said
    assert len((HEAD + own + text).splitlines()) <= 40
    found = asyncio.run(preview_task(checked.valid(), {"id": "1", **ROW}))
    notes = [prompt.note for of in found.roles for prompt in of.asked]
    assert all(it in ("", "call 2 of the turn") or it.startswith(BY_THE_ROW[name]) for it in notes)
    assert all(of.asked or of.role.run for of in found.roles)
    problems = [problem for of in found.roles for problem in of.problems]
    assert all(problem.startswith("tool_error: nothing to choose from") for problem in problems)
