"""`rolegraph new`: a workflow of your own in a new folder, made from a shipped spec.

The spec is copied as it is written, with rows of its own in place of generated ones, and with a reward in
Python in place of the one that those rows are for. One that extends another is copied as the whole that it
comes to, so that nothing in the folder hangs on what is shipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError, WorldError, did_you_mean
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.run.preview import made_up
from rolegraph.engine.shipped import SPECS, STARTER, templates_in
from rolegraph.engine.spec.merge import dump_yaml
from rolegraph.engine.vocabulary import Item, Split
from rolegraph.jobs import blocking
from rolegraph.project import PROJECT_FILE
from rolegraph.workflow import Workflow, json_schema, load

DEFAULT = "solver_judge"
ROWS = 10
"""Rows of each split."""
BATCH = 5
"""Tasks in a training step, so that the rows fill two steps."""
GENERATED = "countdown"
"""Name of the dataset and of the reward that rows and a Python function replace."""
SCHEMA = "rolegraph.schema.json"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


async def new_async(folder: str | Path, spec: str = DEFAULT) -> list[Path]:
    """Write a workflow of your own into a new folder: spec, prompts, tasks, a reward, a test, a README.

    Its `rolegraph.toml` names the reward's file; `trust` makes it count.

    Args:
        folder: The folder, which must be new or empty; its name becomes the workflow's name.
        spec: Name of the shipped spec to start from.

    Returns:
        The paths of the files, sorted.

    Raises:
        UsageError: The folder has files, its name cannot be a workflow's name, or no such shipped spec.
        WorldError: A file cannot be written.
    """
    folder = Path(folder)
    name = folder.resolve().name
    if not _IDENTIFIER.fullmatch(name):
        fitting = re.sub(r"\W", "_", f"_{name}" if name[:1].isdigit() else name, flags=re.ASCII)
        raise UsageError(f"{name!r} is not a workflow name; use letters, digits and _, as in {fitting!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} already exists and is not empty; choose another name")
    shipped = [path.stem for path in sorted(SPECS.glob("*.yaml"))]
    if spec not in shipped:
        hint = did_you_mean(spec, shipped) or f"expected one of {', '.join(shipped)}"
        raise UsageError(f"no shipped spec {spec!r}; {hint}")
    shipped_flow = load(spec)
    about = _about(shipped_flow.plan, name)
    text = (SPECS / f"{spec}.yaml").read_text("utf-8")
    written = _write(folder, _first_files(shipped_flow.plan, text, about))
    imports = [folder / "rewards.py"] if about["own"] else []
    made = load(folder / f"{name}.yaml", imports=imports)
    return sorted([*written, *_write(folder, await _later_files(made, imports, about))])


new = blocking(new_async)


def _about(plan: Plan, name: str) -> dict[str, Any]:
    """Return the values that the templates and the spec's text are filled with."""
    rows: list[Split] = [split for split, dataset in plan.data.items() if _is_generated(dataset)]
    rewarded = [role.name for role in plan.asking if role.reward and _is_generated(role.reward)]
    own = f"{name}_reward" if rows and rewarded else ""
    return {
        "name": name,
        "description": plan.spec.description,
        "rows": rows,
        "hidden": sorted({field for split in rows for field in plan.data[split].hidden}),
        "own": own,
        "rewarded": rewarded[0] if own else "",
        "words": f"{name}.yaml",
        "allow": list(dict.fromkeys(permission.name for permission in plan.permissions)),
        "split": "train" if "train" in plan.data else "validation",
    }


def _is_generated(item: Item) -> bool:
    return item.origin is not None and item.origin.call.name == GENERATED


def _first_files(plan: Plan, text: str, about: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the files that the spec needs to be loaded, by file name."""
    changed = changed_spec(text, yaml.safe_load(plan.resolved), about)
    files = {f"{about['name']}.yaml": f"# yaml-language-server: $schema={SCHEMA}\n{changed}"}
    for role in plan.roles:
        written = plan.spec.roles[role.name]
        for source, template in ((written.prompt, role.prompt), (written.system, role.system)):
            if source is not None and source.file is not None and template is not None:
                files[f"prompts/{source.file}"] = template.source
    for split in about["rows"]:
        rows = plan.data[split].rows(ROWS)
        files[f"{split}.jsonl"] = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
    if about["own"]:
        files["rewards.py"] = templates_in(STARTER).get_template("rewards.py.j2").render(about)
    if about["own"] or about["allow"]:
        project = {"imports": ["rewards.py"] if about["own"] else [], "allow": about["allow"]}
        files[PROJECT_FILE] = "".join(f"{key} = {json.dumps(value)}\n" for key, value in project.items())
    return files


async def _later_files(made: Workflow, imports: list[Path], about: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the files that are made from the new spec, by file name."""
    templates = templates_in(STARTER)
    files = {
        "README.md": templates.get_template("README.md.j2").render(about),
        f"test_{about['name']}.py": templates.get_template("test.py.j2").render(about),
        SCHEMA: json.dumps(json_schema(imports), indent=1, ensure_ascii=False) + "\n",
    }
    if not about["allow"]:
        split: Split = about["split"]
        right, wrong = made.tasks(split, 2)
        answers = [(right, str(right.get("solution", "1"))), (wrong, "0")]
        episodes = [await made_up(made.plan, task, answer) for task, answer in answers]
        files["answers.jsonl"] = b"".join(json_line(e.to_dict()) for e in episodes).decode()
    return files


def changed_spec(text: str, data: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return a spec's text with another name, data and reward.

    Args:
        text: Text of the spec; it is kept where replacing its lines gives the wanted values.
        data: Resolved values of the spec.
        about: Values of `_about`.

    Returns:
        The changed text, or the wanted values as YAML.
    """
    wanted: dict[str, Any] = {**data, "name": about["name"]}
    text = re.sub(r"(?m)^name: .*$", f"name: {about['name']}", text)
    if about["rows"]:
        files = {split: f"{split}.jsonl" for split in about["rows"]}
        wanted["data"] = {**data["data"], **files, "hidden": about["hidden"]}
        lines = "".join(f"  {split}: {file}\n" for split, file in files.items())
        lines += f"  hidden: [{', '.join(about['hidden'])}]\n"
        text = re.sub(r"(?m)^data:.*\n(  .*\n)*", f"data:\n{lines}", text)
        wanted["train"] = {**data.get("train", {}), "batch_size": BATCH}
        text = re.sub(r"\bbatch_size: \d+", f"batch_size: {BATCH}", text)
    if about["own"]:
        wanted["roles"] = {
            name: {**role, **({"reward": about["own"]} if role.get("reward") == GENERATED else {})}
            for name, role in cast("Mapping[str, Any]", data["roles"]).items()
        }
        text = re.sub(rf"\breward: {GENERATED}\b", f"reward: {about['own']}", text)
    return text if yaml.safe_load(text) == wanted else dump_yaml(wanted)


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("x", encoding="utf-8") as file:  # fails where the file exists
                file.write(content)
    except OSError as error:
        raise WorldError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return [folder / name for name in files]
