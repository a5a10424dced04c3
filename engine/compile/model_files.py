"""Paths of the models that a spec names: beside the spec or below it, as its templates and data.

A spec may come from a stranger, and the replay or the model folder that it names is read. Paths given on the
command line, by a flag or an override, may lie anywhere and are relative to the working folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TypeVar

from rolegraph.engine.records.files import is_file, is_folder
from rolegraph.engine.shipped import MODELS
from rolegraph.engine.spec import Finding, ModelRef, Path, Policy, Role, Spec
from rolegraph.engine.spec.files import display_path, resolve_path

P = TypeVar("P", Spec, Role, Policy)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Folders in which a spec's models may lie."""

    folders: tuple[FilePath, ...]
    """The folder of the spec, then those of the specs that it extends."""
    is_overridden: Callable[[Path], bool]
    """Returns whether the command line set a key."""

    def located(self, ref: ModelRef, path: Path) -> tuple[ModelRef, list[Finding]]:
        """Find the file or folder of a model that the spec names relative to itself.

        Returns the model with a path relative to the working folder, and faults such as a path outside the
        spec's folder. `path` is the model's place in the spec.
        """
        name = ref.name
        if name is None or not _is_file(ref) or self.is_overridden((*path, "name")):
            return ref, []
        places = [(folder, folder / name) for folder in self.folders]
        inside = [file for folder, file in places if resolve_path(file).is_relative_to(folder)]
        if not inside:
            expected = "a path beside the spec or below it"
            message = f"{name} lies outside the spec's folder"
            return ref, [Finding(path, message, expected, "--model names one anywhere", word=name)]
        file = next((file for file in inside if is_file(file) or is_folder(file)), inside[0])
        return ref.model_copy(update={"name": display_path(file)}), []

    def all_located(self, spec: Spec) -> tuple[Spec, list[Finding]]:
        """Return a spec with the paths of all its models but its signals' teachers located, and findings."""
        findings: list[Finding] = []

        def located(part: P, *path: str) -> P:
            if part.model is None:
                return part
            model, wrong = self.located(part.model, (*path, "model"))
            findings.extend(wrong)
            return part.model_copy(update={"model": model})

        roles = {name: located(role, "roles", name) for name, role in spec.roles.items()}
        policies = {name: located(policy, "policies", name) for name, policy in spec.policies.items()}
        return located(spec).model_copy(update={"roles": roles, "policies": policies}), findings


def _is_file(ref: ModelRef) -> bool:
    return ref.provider == "replay" or (ref.served_here and ref.name not in MODELS)
