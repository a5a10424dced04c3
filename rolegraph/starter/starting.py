"""New folders from a spec: `rolegraph new`, and the files that a copied spec needs.

`new` copies a shipped spec as written, but with rows in a file instead of generated rows, and with a reward
in Python instead of the generated rows' reward. A spec with `extends` is written out in full, so the new
folder depends on no shipped file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rolegraph.api.jobs import blocking
from rolegraph.api.recipes import Recipe, recipe_named, recipes
from rolegraph.api.skill import language_text
from rolegraph.api.trusting import PROJECT_FILE
from rolegraph.api.workflow import Workflow, json_schema, load
from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError, WorldError, did_you_mean, os_errors_as
from rolegraph.engine.records import Episode, Source, confined
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.records.ownership import NEW, stamped
from rolegraph.engine.shipped import SPECS, templates_in
from rolegraph.engine.spec import TESTS_SUFFIX, names_file
from rolegraph.engine.spec.yaml_source import parse_yaml
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.vocabulary import Item, Split
from rolegraph.outlook.preview import made_up

DEFAULT = "solver_judge"
STARTER = Path(__file__).parent / "templates"
"""Folder of the templates."""
ROWS = 10
"""Number of rows of each split."""
BATCH = 5
"""Number of tasks in a training step, so that the rows fill two steps."""
GENERATED = "countdown"
"""Name of the dataset that the rows replace, and of the reward that a Python function replaces."""
SCHEMA = "rolegraph.schema.json"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SPEC = "spec.yaml"
Files = Mapping[str, bytes]
"""Contents of files by their paths in the folder."""


async def new_async(folder: str | Path, spec: str = DEFAULT) -> list[Path]:
    """Write a new workflow into a new folder: spec, prompts, tasks, a reward, a test, guides.

    `rolegraph.toml` names the reward's file; it has no effect until `trust`.

    Args:
        folder: The folder, which must be new or empty; its name becomes the workflow's name.
        spec: Name of the shipped spec to start from, or of a recipe (`rolegraph list recipes`). A recipe's
            folder has its specs and a row, but no reward or test.

    Returns:
        The paths of the files, sorted.

    Raises:
        UsageError: The folder has files, its name cannot be a workflow's name, or there is no such
            spec or recipe.
        WorldError: A file cannot be written.
    """
    folder = Path(folder)
    name = workflow_name(folder)
    shipped_names = [path.stem for path in sorted(SPECS.glob("*.yaml"))]
    if (recipe := recipe_named(spec)) is not None:
        return _from_recipe(folder, name, recipe)
    if spec not in shipped_names:
        hint = did_you_mean(spec, [*shipped_names, *recipes()])
        hint = hint or f"expected a name of `rolegraph list recipes`, or one of {', '.join(shipped_names)}"
        raise UsageError(f"no shipped spec or recipe {spec!r}; {hint}")
    shipped_flow = load(spec)
    template_values = _about(shipped_flow.plan, name)
    text = (SPECS / f"{spec}.yaml").read_text("utf-8")
    with new_files(folder) as new_folder:
        new_folder.write(_first_files(shipped_flow.plan, text, template_values))
        imports = [folder / "rewards.py"] if template_values["reward"] else []
        workflow = load(folder / f"{name}.yaml", imports=imports)
        new_folder.write(await _later_files(workflow, imports, template_values))
    return sorted(new_folder.written)


new = blocking(new_async)


def _from_recipe(folder: Path, name: str, recipe: Recipe) -> list[Path]:
    """Write a recipe's specs and a row into a new folder, with the permissions, AGENTS.md and the JSON
    Schema."""
    with new_files(folder) as new_folder:
        new_folder.write({file: text.encode() for file, text in recipe.files(name).items()})
        permissions = list(dict.fromkeys(it.name for it in load(folder / f"{name}.yaml").plan.permissions))
        if permissions:
            new_folder.write({PROJECT_FILE: f"allow = {json.dumps(permissions)}\n".encode()})
        new_folder.write({"AGENTS.md": language_text(f"{name}.yaml").encode(), SCHEMA: schema_file([])})
    return sorted(new_folder.written)


def workflow_name(folder: Path) -> str:
    """Return the name of a folder, as the name of its workflow.

    Raises:
        UsageError: The folder's name cannot be a workflow's name.
    """
    name = folder.resolve().name
    if not _IDENTIFIER.fullmatch(name):
        valid_name = re.sub(r"\W", "_", f"_{name}" if name[:1].isdigit() else name, flags=re.ASCII)
        raise UsageError(f"{name!r} is not a workflow name; use letters, digits and _, as in {valid_name!r}")
    return name


def _about(plan: Plan, name: str) -> dict[str, Any]:
    """Return the variables for the templates of `rolegraph new`: name, data splits, reward, permissions, …"""
    rows: list[Split] = [split for split, dataset in plan.data.items() if _is_generated(dataset)]
    rewarded_roles = [role.name for role in plan.asking if role.reward and _is_generated(role.reward)]
    reward = f"{name}_reward" if rows and rewarded_roles else ""
    return {
        "name": name,
        "description": plan.spec.description,
        "rows": rows,
        "hidden": sorted({field for split in rows for field in plan.data[split].hidden}),
        "reward": reward,
        "rewarded": rewarded_roles[0] if reward else "",
        "words": f"{name}.yaml",
        "allow": list(dict.fromkeys(permission.name for permission in plan.permissions)),
        "split": "train" if "train" in plan.data else "validation",
    }


def _is_generated(item: Item) -> bool:
    return item.origin is not None and item.origin.call.name == GENERATED


def _first_files(plan: Plan, text: str, about: Mapping[str, Any]) -> Files:
    """Return the spec, rows, reward and project file by file name, which are needed to load a new spec."""
    # The text is kept as it is written, unless it extends another spec: then the whole is copied.
    spec_text, whole = (_changed(spec, about) for spec in (text, dump_yaml(yaml.safe_load(plan.resolved))))
    spec = spec_text if parse_yaml(spec_text, "").data == parse_yaml(whole, "").data else whole
    files = {f"{about['name']}.yaml": f"# yaml-language-server: $schema={SCHEMA}\n{spec}".encode()}
    for split in about["rows"]:
        rows = (json.dumps(dict(row), ensure_ascii=False) for row in plan.data[split].rows(ROWS))
        files[f"{split}.jsonl"] = "".join(f"{row}\n" for row in rows).encode()
    if about["reward"]:
        files["rewards.py"] = rendered(STARTER, "rewards.py.j2", about)
    if about["reward"] or about["allow"]:
        project = {"imports": ["rewards.py"] if about["reward"] else [], "allow": about["allow"]}
        files[PROJECT_FILE] = "".join(f"{key} = {json.dumps(it)}\n" for key, it in project.items()).encode()
    return {**files, **prompt_files(plan)}


async def _later_files(made: Workflow, imports: list[Path], about: Mapping[str, Any]) -> Files:
    """Return the files made from the loaded new spec by file name: guides, JSON Schema, tests."""
    files = {**guide_files("README.md.j2", about), SCHEMA: schema_file(imports)}
    if not about["allow"]:
        split: Split = about["split"]
        right_task, wrong_task = made.tasks(split, 2)
        answers = [(right_task, str(right_task.get("solution", "1"))), (wrong_task, "0")]
        files |= recorded_tests([await made_up(made.plan, task, answer) for task, answer in answers], about)
    return files


def guide_files(readme: str, about: Mapping[str, Any]) -> Files:
    """Return the README for people, and AGENTS.md, the language in two pages for agents, by file name."""
    return {
        "README.md": rendered(STARTER, readme, about),
        "AGENTS.md": language_text(about["words"]).encode(),
    }


def recorded_tests(episodes: Sequence[Episode], about: Mapping[str, Any]) -> Files:
    """Return the files that `rolegraph test` reads by file name: made-up answers, and their expected results.

    Args:
        episodes: Episodes of two tasks, the first with a right and the second with a wrong answer.
        about: Variables of the templates; `rewarded` is the role whose reward is tested, or empty.
    """
    name, role = about["name"], about["rewarded"]
    bounded = zip(episodes, ({"at_least": 1}, {"at_most": 0.99}), strict=True)
    tasks = {episode.task_id: {"reward": {role: bounds}} for episode, bounds in bounded} if role else {}
    expectations: dict[str, Any] = {"failures": 0, **({"tasks": tasks} if tasks else {})}
    tests = dump_yaml({"tasks": 2, "split": about["split"], "prompts": "any", "expect": expectations})
    lines = b"".join(json_line(episode.to_dict()) for episode in episodes)
    return {
        f"{name}{TESTS_SUFFIX}": rendered(STARTER, "test.yaml.j2", {**about, "tests": tests}),
        f"{name}.answers.jsonl": stamped(lines, "jsonl"),
    }


def schema_file(imports: list[Path]) -> bytes:
    """Return the JSON Schema of a spec that may use the items of imported files."""
    return f"{json.dumps(json_schema(imports), indent=1, ensure_ascii=False)}\n".encode()


def _changed(text: str, about: Mapping[str, Any]) -> str:
    """Return a spec's text with the new name, data files and reward."""
    text = re.sub(r"(?m)^name: .*$", f"name: {about['name']}", text)
    if about["rows"]:
        lines = "".join(f"  {split}: {split}.jsonl\n" for split in about["rows"])
        lines += f"  hidden: [{', '.join(about['hidden'])}]\n"
        text = re.sub(r"(?m)^data:.*\n(  .*\n)*", f"data:\n{lines}", text)
        text = re.sub(r"\bbatch_size: \d+", f"batch_size: {BATCH}", text)
    if about["reward"]:
        text = re.sub(rf"\breward: {GENERATED}\b", f"reward: {about['reward']}", text)
    return text


@dataclass(frozen=True, slots=True)
class NewFiles:
    """Files that a command writes into a missing or empty folder."""

    folder: Path
    written: list[Path] = field(default_factory=list[Path])

    def write(self, files: Files) -> None:
        """Write files that do not exist yet.

        Raises:
            WorldError: A file exists, or cannot be written.
        """
        for name, content in files.items():
            path = self.folder / name
            confined.make_folder(path.parent)
            with os_errors_as(WorldError, f"cannot write {path}"):
                confined.write_new(path, content)
            self.written.append(path)

    def remove(self) -> None:
        """Delete the written files, and the folders that are then empty."""
        folders = {above for path in self.written for above in path.parents if self.folder in above.parents}
        for path in (*self.written, *sorted(folders, reverse=True), self.folder):
            with suppress(OSError):
                confined.remove(path) if path in self.written else path.rmdir()


@contextmanager
def new_files(folder: Path) -> Generator[NewFiles]:
    """Create a folder for a block that writes files into it; if the block raises an error, the files are
    removed.

    Raises:
        UsageError: The folder has files.
        WorldError: The folder cannot be written.
    """
    NEW.check(folder)
    confined.make_folder(folder)
    files = NewFiles(folder)
    with confined.held(folder):
        try:
            yield files
        except BaseException:
            files.remove()
            raise


def prompt_files(plan: Plan) -> Files:
    """Return the template files named by a plan's roles, by their paths relative to the spec."""
    return {
        f"prompts/{template_call}": template.source.encode()
        for role in plan.roles
        for template_call, template in (
            (role.spec.prompt, role.prompt),
            (role.spec.system, role.system),
            (role.spec.examples, role.examples),
        )
        if template_call is not None and names_file(template_call) and template is not None
    }


def spec_files(plan: Plan, source: Source) -> Files:
    """Return the spec, its templates and rows, and the imported files, by file name."""
    data: dict[str, Any] = yaml.safe_load(plan.resolved)
    files: dict[str, bytes] = {Path(name).name: Path(name).read_bytes() for name in source.imports}
    files |= prompt_files(plan)
    file_datasets = {split: dataset for split, dataset in plan.data.items() if dataset.file is not None}
    for split, dataset in file_datasets.items():
        files[f"{split}.jsonl"] = b"".join(map(json_line, dataset.rows(None)))
        data["data"][split] = f"{split}.jsonl"
    if file_datasets:
        hidden_fields = {field for dataset in file_datasets.values() for field in dataset.hidden}
        data["data"]["hidden"] = sorted({*data["data"].get("hidden", ()), *hidden_fields})
        data["data"].pop("split", None)  # its rows are divided already
        data["data"].pop("examples", None)  # its rows carry them already
    if plan.spec.model.served_here and not plan.spec.model.is_shipped:
        data.pop("model", None)  # a folder of this machine; the trainer's own model answers
    return {**files, SPEC: dump_yaml(data).encode()}


def rendered(folder: Path, template: str, about: Mapping[str, Any]) -> bytes:
    """Return the text of a template in a folder, filled with values."""
    environment = templates_in(folder)
    environment.filters["literal"] = _literal
    return environment.get_template(template).render(about).encode()


def _literal(value: object) -> str:
    """Return a list of texts as Python source, with the quotes that formatters prefer."""
    return str(value).replace("'", '"') if '"' not in str(value) else repr(value)
