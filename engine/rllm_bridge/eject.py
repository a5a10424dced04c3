"""Python script of a run of rLLM's trainer, for the user to read, change and keep.

The script has every setting of rLLM's config that the spec implies; roles, prompts and rewards stay in the
spec.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from rolegraph.engine.rllm_bridge.config import as_hydra, overrides, removals
from rolegraph.engine.rllm_bridge.estimators import custom_estimators, estimator_map, hook_reasons
from rolegraph.engine.rllm_bridge.launch import RllmJob, is_served
from rolegraph.engine.rllm_bridge.prepared import other_models
from rolegraph.engine.shipped import BASE_NAME, MODELS, templates_in
from rolegraph.engine.spec import ModelRef

FOLDER_KEYS = ("model.name", "actor_rollout_ref.model.path")
"""Keys with a local model's folder, which the script finds on the machine where it runs."""


def script(job: RllmJob) -> str:
    """Return the script's source, formatted."""
    run = job.run
    ref = run.plan.spec.model
    values = overrides(run)
    folder_key = next((key for key in FOLDER_KEYS if ref.provider == "local" and key in values), None)
    if folder_key is not None:
        del values[folder_key]
    validation_tasks = run.train.validation.tasks if "validation" in run.plan.data else None
    served = is_served(run)
    serves_others = any(ref.served_here for ref in other_models(run.plan))
    folder = _folder(ref) if folder_key is not None else ""
    options = asdict(replace(job.source, spec=None, overrides=()))
    environment = templates_in(Path(__file__).parent)
    environment.filters["literal"] = _literal
    return environment.get_template("train.py.j2").render(
        name=run.plan.name,
        spec=job.source.named_spec,
        overrides=job.source.overrides,
        options=[(name, value) for name, value in options.items() if value],
        config=[*removals(run), *as_hydra(values), *job.rllm_overrides],
        backend=run.backend_class or run.backend,
        kind=run.backend,
        estimators=estimator_map(run.plan, run.backend),
        custom=sorted(custom_estimators(run.plan, run.backend)),
        hook=hook_reasons(run.plan, run.backend),
        validation_tasks=validation_tasks,
        folder_key=folder_key,
        folder=folder,
        serves_others=serves_others,
        shipped="MODELS[" in folder,
        paths="Path(" in folder,
        served=served,
    )


def _folder(ref: ModelRef) -> str:
    """Return the Python expression for a local model's folder."""
    name = ref.name or BASE_NAME
    return f"MODELS[{_literal(name)}]" if name in MODELS else f"Path({_literal(name)}).resolve()"


def _literal(value: object) -> str:
    """Return a value as Python source, with the quotes that formatters choose."""
    if isinstance(value, str):
        plain = repr(value)
        return plain if '"' in value else '"' + plain[1:-1].replace("\\'", "'") + '"'
    if isinstance(value, tuple):
        parts = [*map(_literal, cast("tuple[object, ...]", value))]
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    return repr(value)
