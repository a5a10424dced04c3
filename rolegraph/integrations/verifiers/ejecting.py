"""`rolegraph eject --verifiers`: a spec as an environment package for verifiers.

An ejected folder holds all that the spec needs: the spec as one file, prompts, rows and imported Python
files.
So it can be moved to another machine, or to the Environments Hub.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolegraph.api.workflow import load, open_source
from rolegraph.engine.compile import Plan, check_source
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Source
from rolegraph.engine.run.prepared import is_policy, policy_roles
from rolegraph.starter.starting import SPEC, Files, new_files, rendered, spec_files

_TEMPLATES = Path(__file__).parent
TAKEN = frozenset({"id", "taskset", "timeout", "retries", "max_concurrent_agents", "interception"})
"""Fields of verifiers' EnvConfig (0.4), which cannot be names of roles."""


def eject_verifiers(source: Source, folder: str | Path) -> list[Path]:
    """Write a spec as an environment of verifiers: a package for `pip` and the Environments Hub.

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
    folder = Path(folder)
    plan = check_source(source, runs=True).valid()
    check_trainable(plan)
    package_facts: dict[str, Any] = {
        "name": plan.name,
        "description": plan.spec.description,
        "imports": [Path(file).name for file in source.imports],
        "allow": list(source.allow),
        "roles": [role for role in policy_roles(plan) if role.name],
        "splits": [*plan.data],
    }
    with new_files(folder) as package_files:
        package_files.write(_package(plan, spec_files(plan, source), package_facts))
        (spec,) = (path for path in package_files.written if path.name == SPEC)
        # A spec that needs a file which was left behind must fail now, not on the other machine. Its imports
        # are those of the source: one process takes each name of the vocabulary from one file.
        open_source(replace(source, spec=str(spec), overrides=(), model=None, base_url=None))
    return sorted(package_files.written)


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


def _package(plan: Plan, files: Files, about: dict[str, Any]) -> Files:
    """Return the files of a verifiers package for a plan, and add names to `about`.

    Args:
        plan: The plan.
        files: Files to include.
        about: Facts about the package, for its templates; changed in place.

    Raises:
        UsageError: The spec has no data, or a role has a name that verifiers reserves.
    """
    if not plan.data:
        raise UsageError(f"the spec {plan.name} has no data for the tasks of verifiers; add `data`")
    for role in about["roles"]:
        if role.name in TAKEN or keyword.iskeyword(role.name) or role.name.startswith(("_", "model_")):
            raise UsageError(
                f"verifiers has its own meaning for the role name {role.name!r}; rename the role"
            )
    class_prefix = "".join(word.capitalize() for word in plan.name.split("_"))  # the beginning of class names
    about |= {"project": plan.name.replace("_", "-"), "title": class_prefix}
    return {
        "pyproject.toml": rendered(_TEMPLATES, "pyproject.toml.j2", about),
        "README.md": rendered(_TEMPLATES, "environment.md.j2", about),
        f"{plan.name}/__init__.py": rendered(_TEMPLATES, "environment.py.j2", about),
        **{f"{plan.name}/{path}": content for path, content in files.items()},
    }


def check_trainable(plan: Plan) -> None:
    """Check that verifiers, which trains one model from rewards, can train a plan.

    Args:
        plan: The plan.

    Raises:
        UsageError: The plan trains several policies, draws past selves, learns from a signal, imitates in
            stages, depends on the step, reads a likelihood, or asks a local model that would have to be
            served.
    """
    if len(plan.policies) > 1:
        raise UsageError(
            f"{plan.name} trains the policies {', '.join(plan.policies)}, and verifiers trains one model; "
            "use `rolegraph train`, or one policy"
        )
    for name in plan.past:
        raise UsageError(
            f"{plan.name} plays against past selves ({name}), which verifiers does not keep; use "
            "`rolegraph train`"
        )
    for name in plan.signals:
        raise UsageError(
            f"roles.{name} learns from a signal, and verifiers takes rewards only; use `rolegraph train`, or "
            "give the role a reward and an estimator"
        )
    if plan.numbers is not None or plan.reads_step:
        first_path = next(iter(plan.scheduled), "an expression of a reward")
        raise UsageError(
            f"{first_path} follows the step of the training, which verifiers does not pass on; use "
            "`rolegraph train`, or a constant"
        )
    if plan.stages:
        raise UsageError(
            "`train.stages` imitates answers in some steps, which verifiers does not pass on; use "
            "`rolegraph train`, or remove it"
        )
    for role in plan.roles:
        if role.likelihoods:
            raise UsageError(
                f"the reward of {role.name} reads a likelihood, and verifiers scores no given tokens; use "
                "`rolegraph train`, or another reward"
            )
    for role in plan.asking:
        for endpoint in plan.endpoints_of(role):
            if not is_policy(plan, endpoint) and endpoint.model.served_here:
                raise UsageError(
                    f"roles.{role.name} asks the model {endpoint.model}, which verifiers does not serve; "
                    "name an endpoint, such as `model: openai:NAME` with a `base_url`"
                )
