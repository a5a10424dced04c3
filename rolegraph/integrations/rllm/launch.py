"""Trainer `rllm`: checks a spec, composes rLLM's config, serves local models, and trains or writes a script.

Modules that need rLLM are imported where they are used, so that checking and showing work without rLLM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from rolegraph.api.jobs import training_rows
from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile import PlanCheck, check_source
from rolegraph.engine.connections import bypass_proxies
from rolegraph.engine.errors import UsageError, printable
from rolegraph.engine.models import Services
from rolegraph.engine.models.keys import TINKER
from rolegraph.engine.records import RunFolder, Source
from rolegraph.engine.records.data import DATA_FILE, DataRecord, UsedRows, check_data, write_data
from rolegraph.engine.records.ownership import FolderKind
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.engine.run.prepared import other_models
from rolegraph.engine.shipped import BASE_NAME, templates_in
from rolegraph.engine.spec import Diagnostic
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.training.loop.schedule import planned_steps, validation_tasks
from rolegraph.integrations.rllm.backends import INSTALL, TRAITS, check_version, has_rllm, need_backend
from rolegraph.integrations.rllm.compose import as_yaml, compose, config_folder, rllm_keys
from rolegraph.integrations.rllm.config import (
    Launch,
    context_in,
    folder_of,
    hydra_words,
    overrides,
    split_overrides,
)
from rolegraph.integrations.rllm.estimators import custom_estimators, estimator_map, hook_reasons
from rolegraph.integrations.rllm.gpus import layout, parameters_of
from rolegraph.integrations.rllm.keys import findings
from rolegraph.integrations.rllm.names import kind_of

DEFAULT_BACKEND = "tinker"
RLLM = FolderKind(
    "a training of rLLM", {DATA_FILE: DataRecord.model_validate}, re.compile("weights|adapters")
)
"""Folder of a training by rLLM's trainer."""


@dataclass(frozen=True, slots=True)
class RllmJob:
    """A checked spec, ready for rLLM's trainer."""

    source: Source
    """Spec with its own overrides, without those of rLLM's config."""
    rllm_overrides: tuple[str, ...]
    """Overrides of rLLM's config from the command line."""
    run: Launch
    warnings: tuple[Diagnostic, ...]

    @property
    def notes(self) -> list[str]:
        """Estimator and loss of each role, such as `solver: grpo with ppo`."""
        estimators = estimator_map(self.run.plan, self.run.backend)
        return [
            f"{role}: {' with '.join([it] if isinstance(it, str) else it)}" for role, it in estimators.items()
        ]

    @property
    def data(self) -> Sequence[UsedRows]:
        """Rows that the training uses."""
        plan = self.run.plan
        tasks = list(plan.data["train"].rows(None))
        return training_rows(Workflow(plan, self.source), tasks, validation_tasks(plan))

    def hydra_overrides(self) -> list[str]:
        """Return all overrides for composing rLLM's config; those of the command line come last."""
        return [*hydra_words(self.run), *self.rllm_overrides]


def for_backend(backend: str, words: Sequence[str]) -> tuple[list[str], list[str], PlanCheck]:
    """Split overrides into those of the spec and of rLLM's config, and return the check of a plan for a
    backend.

    Args:
        backend: One of rLLM's backends, or `package.module:Class`.
        words: Overrides of the spec and of rLLM's config, mixed.

    Returns:
        (overrides of the spec, overrides of rLLM's config, check that the compiler calls).

    Raises:
        UsageError: The backend is unknown, or rLLM does not work with the version of its package.
    """
    try:
        backend_kind = kind_of(backend)
    except ValueError as error:
        raise UsageError(str(error)) from error
    check_version(backend_kind)
    spec_words, rllm_words = split_overrides(words)
    check = partial(findings, backend=backend_kind, overrides=rllm_words, known_keys=rllm_keys())
    return spec_words, rllm_words, check


def check(source: Source, backend: str) -> tuple[Source, PlanCheck]:
    """Return (source without overrides of rLLM's config, check of the plan for a backend).

    Args:
        source: The spec; overrides that begin with `rllm.` or `++` belong to rLLM's config.
        backend: One of rLLM's backends, or `package.module:Class`.

    Raises:
        UsageError: For an unknown backend.
    """
    spec_words, _, plan_check = for_backend(backend, source.overrides)
    return replace(source, overrides=tuple(spec_words)), plan_check


def prepare(
    source: Source,
    backend: str | None = None,
    *,
    seed: int = 0,
    folder: Path | None = None,
    resume: bool = False,
    trackers: Sequence[str] = (),
    gpus: int | None = None,
) -> RllmJob:
    """Compile a spec and check it for a backend.

    Args:
        source: The spec; its overrides are those of the spec and of rLLM's config, mixed.
        backend: One of rLLM's backends, or a class of your own as `package.module:Class`; None for tinker.
        seed: Seed of the data order.
        folder: Folder of the checkpoints; None for rLLM's default.
        resume: True to continue at the folder's last checkpoint.
        trackers: Names of trackers, besides the console.
        gpus: Number of GPUs of 80 GB on one machine, for verl; None for verl's defaults.

    Raises:
        SpecError: The spec is faulty, or the backend cannot train it.
        UsageError: A file is missing, the backend is unknown, the GPUs have too little memory for the model,
            a key would be sent to a URL that only the spec names, or the data has changed since the start of
            a training that is resumed.
        DataError: The folder's digests of the data cannot be read.
    """
    backend = backend or DEFAULT_BACKEND
    spec_words, rllm_words, plan_check = for_backend(backend, source.overrides)
    source = replace(source, overrides=tuple(spec_words))
    compiled = check_source(source, plan_check, runs=True)
    plan, backend_kind = compiled.valid(), kind_of(backend)
    ref, rule = plan.spec.model, TRAITS[backend_kind].key
    # The key of the environment goes to no URL that only the spec names.
    if (
        rule is not None
        and ref.base_url is not None
        and not rule.trusts(rule.url(ref.base_url), source.base_url)
    ):
        raise UsageError(rule.withheld(rule.url(ref.base_url)))
    row_count = sum(1 for _ in plan.data["train"].rows(None))
    steps = planned_steps(plan.spec.train, row_count)
    model, context, gpu_layout = folder_of(ref), context_in(folder_of(ref)), None
    if gpus is not None:
        if backend_kind != "verl":
            raise UsageError(f"--gpus is for verl; {backend} has no GPUs to lay out")
        gpu_layout = layout(
            parameters_of(ref.name or BASE_NAME, model), gpus, is_stale=plan.spec.train.staleness > 0
        )
        context = context and min(context, gpu_layout.longest)
    run = Launch(
        plan,
        backend_kind,
        backend_class=backend if backend_kind == "custom" else None,
        context=context,
        gpus=gpu_layout,
        rows=row_count,
        steps=steps,
        seed=seed,
        folder=None if folder is None else str(folder),
        resume=resume,
        trackers=trackers,
    )
    job = RllmJob(source, rllm_overrides=tuple(rllm_words), run=run, warnings=compiled.diagnostics)
    if folder is not None:
        RLLM.check(folder)
        if RunFolder(folder).info_file.exists():
            raise UsageError(f"{folder} holds a run of this project's own loop; choose another with --out")
    if resume and folder is not None:
        check_data(RunFolder(folder).data_file, job.data)
    return job


def describe(job: RllmJob) -> str:
    """Return the launch as YAML: the composed config, or only the overrides if rLLM is not installed."""
    run = job.run
    python_arguments: dict[str, Any] = {
        "estimators": {
            role: list(estimator) if isinstance(estimator, tuple) else estimator
            for role, estimator in estimator_map(run.plan, run.backend).items()
        },
        "registered": sorted(custom_estimators(run.plan, run.backend)),
        "grouping_hook": hook_reasons(run.plan, run.backend),
    }
    head = [f"# {run.plan.name} on rLLM's {run.backend}: {run.steps} updates over {run.rows} tasks."]
    if is_served(run):
        head.append("# tinker_base_url is set when the local service has started.")
    if not has_rllm():
        head.append(f"# rLLM composes the rest of its config from these overrides: {INSTALL}")
        return "\n".join([*head, _yaml({**python_arguments, "overrides": job.hydra_overrides()})])
    if run.backend == "verl" and config_folder("verl") is None:
        head.append("# verl is not installed: its keys are those of the copy that rLLM carries.")
    head += [f"# {line}" for line in _yaml({"given in Python": python_arguments}).splitlines()]
    return "\n".join([*head, as_yaml(compose(job.hydra_overrides(), run.backend))])


def train(
    source: Source,
    folder: Path,
    *,
    seed: int,
    resume: bool,
    trackers: Sequence[str],
    backend: str | None = None,
    gpus: int | None = None,
    print_config: bool = False,
) -> None:
    """Train a spec with rLLM's trainer, or print its config; the arguments are those of `prepare`.

    Raises:
        SpecError, UsageError, DataError, WorldError: As `prepare` and `launch`.
    """
    job = prepare(source, backend, seed=seed, folder=folder, resume=resume, trackers=trackers, gpus=gpus)
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
    if print_config:
        click.echo(printable(describe(job)))
        return
    for note in job.notes:
        click.echo(note, err=True)
    launch(job)


def launch(job: RllmJob) -> None:
    """Train with rLLM's trainer; local models are served until the training ends.

    Raises:
        UsageError: If rLLM or the backend is not installed, and for an override that hydra refuses.
        WorldError: The folder cannot be written.
    """
    need_backend(job.run.backend)
    # The grouping hook logs which estimator each role's advantages came from.
    log = logging.getLogger(__package__)
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    log.propagate = False
    from rolegraph.integrations.rllm.trainer import backend_class, trainer

    if job.run.backend_class is not None:
        backend_class(job.run.backend_class)
    compose(job.hydra_overrides(), job.run.backend)  # reports a wrong key before a model is loaded
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    run, key = job.run, TINKER.key_variable
    state = None
    with ExitStack() as stack:
        if run.folder is not None:
            folder = RunFolder(Path(run.folder))
            state = folder.weights
            stack.enter_context(sole_writer(folder.path, RLLM, folder.written()))
            write_data(folder.data_file, job.data, anew=not run.resume)
        services = stack.enter_context(Services(state_dir=state))
        for ref in other_models(run.plan):
            services.locate(ref)
        if is_served(run):
            policy = services.locate(run.plan.spec.model)
            # rLLM reads the policy's key in the environment.
            stack.callback(os.environ.update, {key: os.environ[key]} if key in os.environ else {})
            stack.callback(os.environ.pop, key)
            os.environ[key] = policy.api_key or ""
            run = replace(run, base_url=policy.ref.base_url)
            bypass_proxies(policy.ref.base_url or "")  # rLLM opens the SDK's clients itself
        run = with_context(run, job.source.base_url)
        trainer(run, replace(job, run=run).hydra_overrides(), services).train()


def with_context(run: Launch, trusted_url: str | None) -> Launch:
    """Return the run with the context of its model, asked from the Tinker service if it is unknown.

    Runs on other backends are returned unchanged.

    Args:
        run: The run.
        trusted_url: URL that may get the user's key.
    """
    if run.backend != "tinker" or run.context is not None:
        return run
    # Imported here because the SDK is slow to load.
    from rolegraph.engine.models import ServedModel
    from rolegraph.engine.models.tinker import open_session
    from rolegraph.engine.models.tinker_sdk import close

    async def lengths() -> Mapping[str, int | None]:
        session = await open_session(ServedModel(run.plan.spec.model, trusted_url=trusted_url))
        close(session.service, "success")
        return session.lengths

    return replace(run, context=asyncio.run(lengths()).get(run.plan.spec.model.name or ""))


def is_served(run: Launch) -> bool:
    """Return True if the policy is a local model that the Tinker-compatible service serves."""
    return run.backend == "tinker" and run.plan.spec.model.served_here


def _yaml(value: object) -> str:
    return dump_yaml(value).rstrip()


FOLDER_KEYS = frozenset({"model.name", "actor_rollout_ref.model.path"})
"""Keys whose value is a local model's folder, which a script looks up on the machine that runs it."""


def script(job: RllmJob) -> str:
    """Return a formatted Python script of the launch, for the user to read, change and keep.

    The script has every setting of rLLM's config that follows from the spec; roles, prompts and rewards stay
    in the spec.
    """
    run = job.run
    ref = run.plan.spec.model
    keys = FOLDER_KEYS & overrides(run).keys() if ref.provider == "local" else ()
    folder_key = next(iter(keys), None)
    serves_policy = is_served(run)
    serves_others = any(ref.served_here for ref in other_models(run.plan))
    hook_roles = hook_reasons(run.plan, run.backend)
    import_conditions = {
        "Services": serves_policy or serves_others,
        "agent_trainer": True,
        "compile_workflow": True,
        "grouping_hook": hook_roles,
        "model_folder": folder_key,
    }
    options = asdict(replace(job.source, spec=None, overrides=()))
    environment = templates_in(Path(__file__).parent)
    environment.filters["literal"] = _literal
    return environment.get_template("train.py.j2").render(
        name=run.plan.name,
        spec=job.source.named_spec,
        overrides=job.source.overrides,
        options=[(name, value) for name, value in options.items() if value],
        config=[*hydra_words(run, keys), *job.rllm_overrides],
        backend=run.backend_class or run.backend,
        estimators=estimator_map(run.plan, run.backend),
        hook=hook_roles,
        names=[name for name, is_needed in import_conditions.items() if is_needed],
        validation_tasks=run.train.validation.tasks if "validation" in run.plan.data else None,
        folder_key=folder_key,
        folder=ref.name or BASE_NAME,
        serves_others=serves_others,
        served=serves_policy,
    )


def _literal(value: object) -> str:
    """Return a value as Python source, with the quotes that formatters prefer."""
    if isinstance(value, str):
        plain_text = repr(value)
        return plain_text if '"' in value else '"' + plain_text[1:-1].replace("\\'", "'") + '"'
    if isinstance(value, tuple):
        parts = [*map(_literal, cast("tuple[object, ...]", value))]
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    return repr(value)
