"""`rolegraph skill`: the language in two pages, for agents that write specs; AGENTS.md of a new folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rolegraph.engine import vocabulary
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import confined
from rolegraph.engine.records.files import is_file
from rolegraph.engine.shipped import templates_in
from rolegraph.engine.spec import Role, Spec
from rolegraph.engine.vocabulary import Registry

NAME = "rolegraph"
_DESCRIPTION = (
    "Write, check and change Rolegraph specs: YAML files that declare multi-role LLM workflows (solver, "
    "judge, validator, debate, router, loops) and train their roles by RL. Use it when a folder has a YAML "
    "file that begins with `rolegraph: 2`, or when someone wants such a workflow."
)
_EXTENDS = "Parent spec in this folder, or a shipped one; mappings merge, `null` removes a key."


def language_text(spec: str = "") -> str:
    """Return the language in two pages, as Markdown.

    Args:
        spec: File name of the spec in the example commands; empty for a made-up name.
    """
    return (
        templates_in(Path(__file__).parent)
        .get_template("skill.md.j2")
        .render(
            spec=spec,
            top={**_keys(Spec), "extends": _EXTENDS},
            role=_keys(Role),
            parsers=_items(vocabulary.parsers),
            rewards=_items(vocabulary.rewards),
            estimators=_items(vocabulary.estimators),
            tools=[f"`{name}`" for name in vocabulary.tools.names()],
        )
    )


def skill_text() -> str:
    """Return SKILL.md: front matter with name and description, then the language in two pages."""
    return f"---\nname: {NAME}\ndescription: {json.dumps(_DESCRIPTION)}\n---\n\n{language_text()}"


def write_skill(folder: str | Path) -> Path:
    """Write the skill into a folder of skills; an earlier version of the same skill is replaced.

    Args:
        folder: Folder of skills, such as `.claude/skills`; the file is `rolegraph/SKILL.md` in it.

    Returns:
        Path of the file.

    Raises:
        UsageError: The folder is a file, or another skill is at the path.
        WorldError: The file cannot be written.
    """
    folder, text = Path(folder), skill_text()
    file = folder / NAME / "SKILL.md"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder for the skill")
    if file.exists() and not (is_file(file) and text.encode().startswith(_head(file))):
        raise UsageError(f"{file} is another skill; name another folder")
    confined.make_folder(folder)
    with confined.held(folder):
        confined.make_folder(file.parent)
        confined.write_whole(file, text.encode())
    return file


def _head(file: Path) -> bytes:
    """Return the beginning of a file up to the name in its front matter."""
    with confined.open_to_read(file) as stream:
        return stream.read(len(f"---\nname: {NAME}\n"))


def _keys(model: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each key of a model, a sentence, by the key's name."""
    return {
        name: re.split(r"(?<=\.) ", _line(field.description or ""), maxsplit=1)[0]
        for name, field in model.model_fields.items()
    }


def _items(registry: Registry[Any]) -> dict[str, str]:
    """Return the summary of each item of a registry, by the item's name."""
    return {name: _line(registry.summary(name)) for name in registry.names()}


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
