"""Weights of checkpoints: the training that saved them, their service and their base model."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import ValidationError

from rolegraph.engine.connections import is_loopback
from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.records import RUNS, RunFolder, saved_weights
from rolegraph.engine.records.weights import base_name
from rolegraph.engine.spec import ModelRef, Path
from rolegraph.engine.spec.yaml_source import parse_yaml, value_at


def with_base(ref: ModelRef) -> ModelRef:
    """Return a reference that names a model; a missing name is taken from the reference's checkpoint.

    Args:
        ref: The model. Its checkpoint's model is found only if `saved_weights` finds the training.

    Returns:
        The reference with the model folder of the weights, or with the service that holds them.

    Raises:
        UsageError: There are no such weights, or they are at a service of another machine that only the
            training's folder names.
    """
    if ref.names_model or ref.checkpoint is None:
        return ref
    if (saved_model := saved_weights(ref.checkpoint)) is None:
        raise UsageError(f"no model is named for {ref.checkpoint}. {whereabouts(ref.checkpoint)}")
    run, path = saved_model.run, saved_model.paths.sampler
    if saved_model.are_here:
        return ref.model_copy(update={"name": base_name(path, run.weights)})
    found_model = _trained_model(run, saved_model.policy)
    if found_model.served_here:
        raise UsageError(f"{run.weights} does not hold the weights {path}")
    if found_model.base_url is not None and not is_loopback(urlsplit(found_model.base_url).hostname or ""):
        raise UsageError(
            f"the weights of {run.path} are at {found_model.base_url}, which would get your key; give "
            f"--base-url {found_model.base_url} if you want that"
        )
    return ref.model_copy(update={"provider": found_model.provider, "base_url": found_model.base_url})


def whereabouts(checkpoint: str) -> str:
    """Return the advice for weights that a service does not have: the place that has them."""
    saved = saved_weights(checkpoint)
    if saved is None:
        return (
            f"No training in {RUNS}/ saved these weights: name the folder of their training in place of the "
            "path, or their service with --base-url."
        )
    if saved.are_here:
        return f"These weights are in {saved.run.weights}: leave out --base-url and the model's name."
    trained_model = _trained_model(saved.run, saved.policy)
    if trained_model.served_here:
        return f"{saved.run.weights} no longer has these weights."
    url = trained_model.base_url or "the default service"
    return (
        f"{saved.run.path} was trained at {url}: name that service with --base-url; it must have started "
        "with its checkpoints of then."
    )


def _trained_model(run: RunFolder, policy: str) -> ModelRef:
    """Return the model that a training's spec names for a policy; raises UsageError for a damaged spec."""
    data = parse_yaml(run.spec(), str(run.spec_file)).data
    key_paths: tuple[Path, ...] = ("policies", policy, "model"), ("model",)
    model_values = [value for key_path in key_paths if (value := value_at(data, key_path)) is not None]
    try:
        return ModelRef.model_validate(model_values[0]) if model_values else ModelRef()
    except ValidationError as error:
        raise UsageError(f"{run.spec_file} names no valid model: {first_line(error)}") from error
