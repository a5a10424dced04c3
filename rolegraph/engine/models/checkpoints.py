"""Models of checkpoints: the model to which the weights of a training belong."""

from __future__ import annotations

from pathlib import Path as FilePath
from urllib.parse import urlsplit

from pydantic import ValidationError

from rolegraph.engine.connections import is_loopback
from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.records import MAIN, PolicyPath, RunFolder
from rolegraph.engine.records.weights import base_name, checkpoint_folder
from rolegraph.engine.spec import ModelRef, Path
from rolegraph.engine.spec.yaml_source import parse_yaml, value_at


def with_base(ref: ModelRef) -> ModelRef:
    """Return a reference that names a model; a missing name is taken from the reference's checkpoint.

    Args:
        ref: The model. Its checkpoint's model is found only if the checkpoint is a training's folder.

    Returns:
        The reference with the model folder of the weights, or with the service that holds them.

    Raises:
        UsageError: There are no such weights, or they are at a service of another machine that only the
            training's folder names.
    """
    folder_of_policy = PolicyPath.parse(ref.checkpoint) if ref.checkpoint is not None else None
    if ref.names_model or folder_of_policy is None:
        return ref
    run = RunFolder(FilePath(folder_of_policy.folder))
    path = run.best_of(folder_of_policy.policy).sampler
    folder = checkpoint_folder(path, run.weights)
    if folder is not None and folder.is_dir():
        return ref.model_copy(update={"name": base_name(path, run.weights)})
    found_model = _trained_model(run, folder_of_policy.policy)
    if found_model.served_here:
        raise UsageError(f"{run.weights} does not hold the weights {path}")
    if found_model.base_url is not None and not is_loopback(urlsplit(found_model.base_url).hostname or ""):
        raise UsageError(
            f"the weights of {run.path} are at {found_model.base_url}, which would get your key; give "
            f"--base-url {found_model.base_url} if you want that"
        )
    return ref.model_copy(update={"provider": found_model.provider, "base_url": found_model.base_url})


def _trained_model(run: RunFolder, policy: str | None) -> ModelRef:
    """Return the model that a training's spec names for a policy; raises UsageError for a damaged spec."""
    data = parse_yaml(run.spec(), str(run.spec_file)).data
    key_paths: tuple[Path, ...] = ("policies", policy or MAIN, "model"), ("model",)
    model_values = [value for key_path in key_paths if (value := value_at(data, key_path)) is not None]
    try:
        return ModelRef.model_validate(model_values[0]) if model_values else ModelRef()
    except ValidationError as error:
        raise UsageError(f"{run.spec_file} names no valid model: {first_line(error)}") from error
