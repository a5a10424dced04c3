"""`rolegraph eject --verifiers` and `--slime`: a spec as a folder that verifiers or slime runs.

The folder holds all that the spec needs: the spec as one file, its prompts, its rows and imported Python
files, so that it can be moved to another machine, or to the Environments Hub.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.compile import Plan, check_source
from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.records import Source
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.rllm_bridge.prepared import SLIME, VERIFIERS, check_trainable, policy_roles
from rolegraph.engine.shipped import BRIDGES, templates_in
from rolegraph.engine.spec.merge import dump_yaml
from rolegraph.workflow import load, open_source

SPEC = "spec.yaml"
TAKEN = frozenset({"id", "taskset", "timeout", "retries", "max_concurrent_agents", "interception"})
"""Fields of verifiers' EnvConfig (0.4), which no role can be named after."""
Files = Mapping[str, bytes]
"""Contents of files by their paths in the folder."""


def eject_verifiers(source: Source, folder: str | Path) -> list[Path]:
    """Write a spec as an environment of verifiers: a package that `pip` and the Environments Hub take.

    Args:
        source: The spec, with the overrides, imports and permissions that the package keeps.
        folder: The package's folder, which must be new or empty.

    Returns:
        The paths of the files, sorted.

    Raises:
        SpecError: The spec has faults, or asks for a permission that is not given.
        UsageError: The folder has files, or verifiers cannot run the spec.
        WorldError: A file cannot be written.
    """
    return _eject(source, Path(folder), VERIFIERS, _package)


def eject_slime(source: Source, folder: str | Path) -> list[Path]:
    """Write a spec for slime: a module with its functions, the prompt data, and the arguments of slime.

    Args:
        source: The spec, with the overrides, imports and permissions that the module keeps.
        folder: The folder, which must be new or empty, and be on the PYTHONPATH of slime.

    Returns:
        The paths of the files, sorted.

    Raises:
        SpecError: The spec has faults, or asks for a permission that is not given.
        UsageError: The folder has files, or slime cannot train the spec.
        WorldError: A file cannot be written.
    """
    return _eject(source, Path(folder), SLIME, _slime_module)


def load_ejected(module: str, imports: Iterable[str] = (), allow: Iterable[str] = ()) -> Plan:
    """Return the plan of the spec that lies beside an ejected module.

    Args:
        module: The module's `__file__`.
        imports: Names of the Python files beside the module that register rewards, parsers and so on.
        allow: Permissions of the spec.

    Raises:
        SpecError: The spec has faults, or asks for a permission that `allow` does not give.
    """
    folder = Path(module).parent
    flow = load(folder / SPEC, imports=[folder / name for name in imports], allow=allow)
    flow.check_allowed()
    return flow.plan


def _eject(
    source: Source, folder: Path, trainer: str, content: Callable[[Plan, Files, dict[str, Any]], Files]
) -> list[Path]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} already exists and is not empty; choose another folder")
    plan = check_source(source, runs=True).valid()
    check_trainable(plan, trainer)
    about: dict[str, Any] = {
        "name": plan.name,
        "description": plan.spec.description,
        "imports": [Path(file).name for file in source.imports],
        "allow": list(source.allow),
        "roles": [role for role in policy_roles(plan) if role.name],
        "splits": [*plan.data],
    }
    files = content(plan, spec_files(plan, source), about)
    try:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("xb") as file:  # fails where the file exists
                file.write(text)
    except OSError as error:
        raise WorldError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    written = sorted(folder / name for name in files)
    (spec,) = (path for path in written if path.name == SPEC)
    # A spec that needs a file which was left behind must fail now, not on the other machine. Its imports are
    # those of the source: one process takes each name of the vocabulary from one file.
    open_source(replace(source, spec=str(spec), overrides=(), model=None, base_url=None))
    return written


def spec_files(plan: Plan, source: Source) -> Files:
    """Return the spec, the templates and rows that it names, and the files that are imported for it."""
    data: dict[str, Any] = yaml.safe_load(plan.resolved)
    files: dict[str, bytes] = {Path(name).name: Path(name).read_bytes() for name in source.imports}
    for role in plan.roles:
        written = plan.spec.roles[role.name]
        for prompt, template in ((written.prompt, role.prompt), (written.system, role.system)):
            if prompt is not None and prompt.file is not None and template is not None:
                files[f"prompts/{prompt.file}"] = template.source.encode()
    of_files = {split: dataset for split, dataset in plan.data.items() if dataset.file is not None}
    for split, dataset in of_files.items():
        files[f"{split}.jsonl"] = b"".join(map(json_line, dataset.rows(None)))
        data["data"][split] = f"{split}.jsonl"
    if of_files:
        hidden = {field for dataset in of_files.values() for field in dataset.hidden}
        data["data"]["hidden"] = sorted({*data["data"].get("hidden", ()), *hidden})
        data["data"].pop("split", None)  # its rows are divided already
    if plan.spec.model.served_here and not plan.spec.model.is_shipped:
        data.pop("model", None)  # a folder of this machine; the trainer's own model answers
    return {**files, SPEC: dump_yaml(data).encode()}


def _package(plan: Plan, files: Files, about: dict[str, Any]) -> Files:
    """Return the package of a verifiers environment."""
    if not plan.data:
        raise UsageError(
            f"the spec {plan.name} has no data, from which verifiers takes its tasks; add `data`"
        )
    for role in about["roles"]:
        if role.name in TAKEN or keyword.iskeyword(role.name) or role.name.startswith(("_", "model_")):
            raise UsageError(
                f"verifiers has a meaning of its own for the role name {role.name!r}; rename the role"
            )
    about |= {"project": plan.name.replace("_", "-"), "title": _title(plan.name)}
    return {
        "pyproject.toml": _rendered("pyproject.toml.j2", about),
        "README.md": _rendered("environment.md.j2", about),
        f"{plan.name}/__init__.py": _rendered("environment.py.j2", about),
        **{f"{plan.name}/{path}": content for path, content in files.items()},
    }


def _slime_module(plan: Plan, files: Files, about: dict[str, Any]) -> Files:
    """Return the module of slime's functions, its prompt data and its arguments."""
    if "train" not in plan.data:
        raise UsageError(f"the spec {plan.name} has no train data; add `data: {{train: …}}`")
    about |= {"module": f"{plan.name}_slime", "train": plan.spec.train}
    prompts = {
        f"prompts_{split}.jsonl": b"".join(
            json_line({"prompt": str(row["id"]), "metadata": {"row": dict(row)}})
            for row in dataset.rows(None)
        )
        for split, dataset in plan.data.items()
    }
    return {
        f"{about['module']}.py": _rendered("slime.py.j2", about),
        "arguments.sh": _rendered("slime.sh.j2", about),
        **prompts,
        **files,
    }


def _title(name: str) -> str:
    """Return a name as the beginning of class names."""
    return "".join(word.capitalize() for word in name.split("_"))


def _rendered(template: str, about: Mapping[str, Any]) -> bytes:
    environment = templates_in(BRIDGES)
    environment.filters["literal"] = _literal
    return environment.get_template(template).render(about).encode()


def _literal(value: object) -> str:
    """Return a list of texts as Python source, with the quotes that formatters choose."""
    return str(value).replace("'", '"') if '"' not in str(value) else repr(value)
