"""Tests that the YAML in the documentation compiles and that the reference mentions every key.

A part of a spec is either top-level keys or the keys of one role. `FRAME` defines the roles that a part may
refer to, and missing templates are written by `faults`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from rolegraph.engine.compile import check_file
from rolegraph.engine.shipped import PROMPTS
from rolegraph.engine.spec import ModelRef, Role, Spec, Train
from rolegraph.engine.spec.base import SpecModel
from tests.documents import LANGUAGE, PAGES, ROOT, TRAINING, is_spec, specs_in, yaml_in
from tests.edge import decided

PARTS = [*LANGUAGE, *TRAINING, ROOT / "docs" / "data.md"]
"""Pages whose YAML is whole specs and parts of specs."""
REWARD = {"length": {"under": 400}}
FRAME: dict[str, dict[str, Any]] = {
    "planner": {},
    "solver": {"count": 4, "reward": REWARD},
    "verifier": {"needs": {"solver": "each"}},
    "draft": {"count": 2},
    "critic": {"needs": {"draft": "each"}},
    "debater": {"count": 2},
    "judge": {"needs": ["solver"], "parser": "json", "reward": REWARD},
    "vote": {"needs": ["solver"], "reward": REWARD},
}
LOOP = {"rounds": {"roles": ["mine", "debater", "critic"], "times": 2}}
"""Loop around the role of a part, so that the part may refer to rounds."""
DATA = {"train": "tasks.jsonl"}
NEEDED = {
    "reasoning_gym": "reasoning_gym",
    "math_verify": "math",
    "bm25s": "corpus:",
    "pydantic_monty": "python:",
}
"""Optional modules, each with the word in a spec that requires the module."""
TASK = {
    **{"question": "3 + 4?", "answer": "7", "nums": [3, 4], "target": 7, "solution": "3 + 4", "game": ""},
    **{"order": 7, "state": "cancelled", "checks": "assert True", "text": "Good.", "label": "good"},
}


def faults(folder: Path, spec: str) -> list[str]:
    """Compile a spec, after writing its missing templates and data, and return its errors."""
    path = folder / "spec.yaml"
    path.write_text(spec, encoding="utf-8")
    for name in {DATA["train"], *re.findall(r"[\w-]+\.jsonl", spec)}:
        (folder / name).write_text(json.dumps(TASK), encoding="utf-8")
    for name in re.findall(r"[\w-]+\.csv", spec):
        (folder / name).write_text("question,answer\n3 + 4?,7\n", encoding="utf-8")
    for name in re.findall(r"[\w-]+\.j2", spec):
        if not (PROMPTS / name).exists():
            (folder / name).write_text("{{ task.question }}", encoding="utf-8")
    return [str(found) for found in check_file(path).diagnostics if found.severity == "error"]


def parts_in(text: str) -> Iterator[dict[str, Any]]:
    """Split a block into its examples; each repeated key starts a new example."""
    lines: list[str] = []
    keys: set[str] = set()
    for line in [*text.splitlines(), "end:"]:
        key = re.match(r"(\w+):", line)
        if key and (key[1] in keys or key[1] == "end"):
            yield yaml.safe_load("\n".join(lines))
            lines, keys = [], set()
        if key:
            keys.add(key[1])
        lines.append(line)


def framed(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield whole specs around a part; one spec per edge, because several edges are alternatives."""
    if part.keys() <= Spec.model_fields.keys():
        roles = {**FRAME, **part.get("roles", {})}
        loops = {"loops": {}} if "loops" in part else {}
        yield {**part, **loops, **part, "data": part.get("data", DATA), "roles": filled(roles)}
        return
    needs = part.get("needs")
    for key in needs if isinstance(needs, dict) else [None]:
        role = part if key is None else {**part, "needs": {key: needs[key]}}
        yield {"data": DATA, "roles": filled({**FRAME, "mine": role}), "loops": LOOP}


def filled(roles: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add a prompt to roles without one."""
    filled: dict[str, dict[str, Any]] = {}
    for name, role in roles.items():
        prompt = {} if {"prompt", "run"} & role.keys() else {"prompt": "{{ task.question }}"}
        filled[name] = {**prompt, **role}
    return filled


@pytest.mark.parametrize(("where", "text"), specs_in(*PAGES))
def test_every_whole_spec_in_the_documents_compiles(where: str, text: str, tmp_path: Path) -> None:
    assert not faults(tmp_path, text), where


@pytest.mark.parametrize(("where", "text"), [b for b in yaml_in(*PARTS) if not is_spec(b[1])])
def test_every_part_of_a_spec_in_the_reference_compiles(where: str, text: str, tmp_path: Path) -> None:
    for module, word in NEEDED.items():
        if word in text:
            pytest.importorskip(module)
    for part in parts_in(text):
        unknown = part.keys() - Spec.model_fields.keys() - Role.model_fields.keys()
        assert not unknown, f"{where}: {unknown} is no key of a spec nor of a role"
        for spec in framed(part):
            whole = yaml.safe_dump(decided({"rolegraph": 2, "name": "framed", **spec}), sort_keys=False)
            assert not faults(tmp_path, whole), f"{where}, in the frame of {Path(__file__).name}"


def keys_of(model: type[BaseModel], elsewhere: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield each key of a model and of its nested models but one, with the name of the model of the key."""
    for key, field in model.model_fields.items():
        yield model.__name__, key
        for inner in SpecModel.__subclasses__():
            if inner is not elsewhere and f".{inner.__name__}" in str(field.annotation):
                yield from keys_of(inner, elsewhere)


@pytest.mark.parametrize(
    ("model", "elsewhere", "pages"),
    [(Spec, Train, LANGUAGE), (Train, ModelRef, TRAINING)],
    ids=["language", "train"],
)
def test_the_reference_has_every_key(
    model: type[BaseModel], elsewhere: type[BaseModel], pages: list[Path]
) -> None:
    text = "\n".join(page.read_text("utf-8") for page in pages)
    code = " ".join(re.findall(r"^```.*?^```$|`[^`\n]+`", text, re.MULTILINE | re.DOTALL))
    keys = sorted(set(keys_of(model, elsewhere)))
    missing = [f"{owner}.{key}" for owner, key in keys if not re.search(rf"\b{key}\b", code)]
    assert not missing, (
        f"the pages of {pages[0].name} lack an example, or `a word in code`, of {', '.join(missing)}"
    )
