"""Resolution of names that lead outside of a spec: items of the vocabulary, and files of models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from tokenize import TokenError
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rolegraph.engine.errors import FOREIGN_ERRORS, DataError, UserError, did_you_mean, first_line
from rolegraph.engine.records import PolicyPath
from rolegraph.engine.records.files import is_file, is_folder
from rolegraph.engine.shipped import fetched_folder, names_model
from rolegraph.engine.spec import Finding, ModelRef, Path, Policy, Role, Spec
from rolegraph.engine.spec.base import laid_over
from rolegraph.engine.spec.body import JsonObject
from rolegraph.engine.spec.files import display_path, resolve_path
from rolegraph.engine.spec.loader import LoadedSpec
from rolegraph.engine.spec.validation import short_value
from rolegraph.engine.vocabulary import BadOptions, Import, Item, UnknownName, digest_of

OWN_NAME = "name the file that registers it: --import FILE.py, or `rolegraph trust` for a rolegraph.toml"
"""Hint for an unknown name that resembles no other."""
T = TypeVar("T", bound=Item)
M = TypeVar("M", bound=BaseModel)


def resolve(make: Callable[[], T], path: Path, others: str = "") -> tuple[T | None, list[Finding]]:
    """Build the parser, reward or other item that a spec names at `path`; on an error return None and
    findings.

    Args:
        make: Builds the item, as `Registry.build` does.
        path: Key of the spec.
        others: Addition to the names that a message lists as known.
    """
    try:
        return make(), []
    except (UnknownName, BadOptions) as error:
        return None, list(_findings(error, path, others))
    except DataError as error:
        return None, [Finding(path, error.problem, hint=error.hint)]
    except UserError as error:
        return None, [Finding(path, str(error))]
    except FOREIGN_ERRORS as error:  # raised by a package's item
        reason = short_value(f"{type(error).__name__}: {first_line(error)}")
        return None, [Finding(path, f"building this item failed: {reason}")]


def validate_option(
    kind: type[M], written: object, path: Path, key: str, expected: str
) -> tuple[M | None, list[Finding]]:
    """Validate the value of an item's option `key` as `kind`; on an error return None and findings."""
    try:
        return kind.model_validate(written), []
    except ValidationError as error:
        findings: list[Finding] = []
        is_short = not isinstance(written, Mapping) or "provider" in written
        for detail in error.errors(include_url=False):
            loc = detail["loc"][1:] if is_short and detail["loc"][:1] == ("model",) else detail["loc"]
            label = ".".join(map(str, (key, *loc)))
            message, expectation = f"{label}: {detail['msg'].lower()}", expected
            if detail["type"] == "value_error":
                message = f"{label}: these keys do not go together"
                expectation = detail["msg"].removeprefix("Value error, ")
            findings.append(Finding(path, message, expectation, word=key))
        return None, findings


def digest(factory: Callable[..., Any]) -> str:
    """Return the hex digest of the file that defines a vocabulary item.

    Without a file, as in a notebook, the digest is of the function's source.
    """
    if (source := Import.of(factory)).file is not None:
        return source.digest()
    try:
        return digest_of(inspect.getsource(inspect.unwrap(factory)).encode())
    except (OSError, TypeError, SyntaxError, TokenError):  # no source, or lines of another file
        return "unknown"


def _findings(error: UnknownName | BadOptions, path: Path, others: str = "") -> Iterator[Finding]:
    if isinstance(error, UnknownName):
        expected_names = (", ".join(error.names) + others).removeprefix(", or ")
        hint = error.hint or OWN_NAME
        yield Finding(path, str(error), expected_names, hint, word=error.name, code="unknown-name")
        return
    for detail in error.errors:
        key = (*path, *error.call.path_of(detail["loc"]))
        inner_error = detail.get("ctx", {}).get("error")
        if isinstance(inner_error, UnknownName | BadOptions):
            yield from _findings(inner_error, key)
        elif detail["loc"]:
            yield _of_argument(error, detail, key)
        else:
            problem = detail["msg"].removeprefix("Value error, ")
            expected_names = _takes(error) if detail["type"] == "unexpected_positional_argument" else ""
            yield Finding(path, f"{error.kind} {error.name!r}: {problem}", expected_names, word=error.name)


def _of_argument(error: BadOptions, detail: ErrorDetails, path: Path) -> Finding:
    """Return the finding for a wrong option of a vocabulary item; `path` is the item's key in the spec."""
    loc, kind, item = detail["loc"], detail["type"], f"{error.kind} {error.name!r}"
    name = ".".join(str(step) for step in loc[isinstance(loc[0], int) :])
    problem = detail["msg"].removeprefix("Value error, ")
    *inner_path, key = loc
    accepted_type = error.type_at(inner_path) if inner_path else _takes(error)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        hint = did_you_mean(str(key), error.keys_at(inner_path))
        message = f"{item} has no option {name!r}"
        return Finding(path, message, accepted_type, hint, at_key=True, code="unknown-key")
    if kind.startswith("missing"):
        expected = accepted_type if name else f"{{{error.name}: …}}"
        return Finding(path, f"{item} needs {name or 'a value'}", expected, at_key=True)
    expected = error.type_at(loc)
    if not problem.startswith("Input should be "):
        expected = "" if kind == "value_error" else expected
        return Finding(path, f"{item}: {name + ': ' if name else ''}{problem}", expected, at_key=True)
    if kind == "finite_number" or expected == "anything":
        expected = problem.removeprefix("Input should be ")
    message = f"{item}: {name or 'its value'} cannot be {short_value(detail['input'])}"
    return Finding(path, message, expected, at_key=True)


def _takes(error: BadOptions) -> str:
    return ", ".join(option.name for option in error.options) or "no options"


P = TypeVar("P", Spec, Role, Policy)
C = TypeVar("C", Policy, ModelRef)


def locate_model(loaded: LoadedSpec, ref: ModelRef, path: Path) -> tuple[ModelRef, list[Finding]]:
    """Find the file or folder of a model, and of its checkpoint, that a spec names: beside the spec or below.

    A spec is untrusted, and the replay or the model folder that it names is read. A path given on the command
    line may lie anywhere, and is relative to the working folder. ORG/MODEL where no such folder is there is
    the name of a model to fetch.

    Args:
        loaded: The spec.
        ref: The model.
        path: Key of the model in the spec.

    Returns:
        The model with a path relative to the working folder, and faults such as a path outside the folder.
    """
    ref, name = _with_place(loaded, ref, path), ref.name
    if name is None:
        return ref, []
    is_file_name = ref.provider == "replay" or (ref.served_here and not names_model(name))
    if not is_file_name or loaded.source.is_overridden((*path, "name")):
        return ref, []
    candidates = [(folder, folder / name) for folder in loaded.folders]
    allowed_files = [file for folder, file in candidates if resolve_path(file).is_relative_to(folder)]
    if not allowed_files:
        expected = "a path beside the spec or below it"
        message = f"{name} lies outside the spec's folder"
        return ref, [Finding(path, message, expected, "--model names one anywhere", word=name)]
    file = next((file for file in allowed_files if is_file(file) or is_folder(file)), None)
    fetch_folder = fetched_folder(name) if file is None and ref.served_here and "/" in name else None
    model_path = str(fetch_folder) if fetch_folder else display_path(file or allowed_files[0])
    return ref.model_copy(update={"name": model_path}), []


def _with_place(loaded: LoadedSpec, part: C, path: Path) -> C:
    """Return a policy or a model with the place of its checkpoint: the folder beside the spec, if one of that
    name exists.

    A checkpoint of the command line, a `tinker://` path and any other folder stay as they are; a folder is
    relative to the working folder.
    """
    policy_path = None if part.checkpoint is None else PolicyPath.parse(part.checkpoint)
    if policy_path is None or loaded.source.is_overridden((*path, "checkpoint")):
        return part
    candidates = (folder / policy_path.folder for folder in loaded.folders)
    if (folder := next(filter(is_folder, candidates), None)) is None:
        return part
    return part.model_copy(update={"checkpoint": str(PolicyPath(display_path(folder), policy_path.policy))})


def locate_models(loaded: LoadedSpec) -> tuple[Spec, list[Finding]]:
    """Return a copy of the spec with the paths of its models and checkpoints, and findings for missing ones.

    A model of a role or a policy that names neither `provider` nor `name` is the spec's with other keys.
    Models of signals' teachers are left as they are, for `locate_model`.
    """
    findings: list[Finding] = []

    def located(part: P, *path: str) -> P:
        if isinstance(part, Policy):
            part = _with_place(loaded, part, path)
        if part.model is None:
            return part
        model = _with_place(loaded, part.model, (*path, "model"))
        if path and not {"provider", "name"} & model.model_fields_set:
            body = JsonObject({**spec.model.body, **model.body})
            merged_model = laid_over(spec.model, model).model_copy(update={"body": body})
            return part.model_copy(update={"model": merged_model})
        model, finding = locate_model(loaded, part.model, (*path, "model"))
        findings.extend(finding)
        return part.model_copy(update={"model": model})

    spec = located(loaded.spec)
    roles = {name: located(role, "roles", name) for name, role in spec.roles.items()}
    policies = {name: located(policy, "policies", name) for name, policy in spec.policies.items()}
    return spec.model_copy(update={"roles": roles, "policies": policies}), findings
