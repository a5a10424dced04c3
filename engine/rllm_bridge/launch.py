"""Launch of rLLM's own AgentTrainer on a spec: check it for the backend, compose the config, serve, train.

Modules that need rLLM are imported where they are used, so that checking and showing work without it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.backends import Backend, kind_of
from rolegraph.engine.compile import PlanCheck, check_source
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Services
from rolegraph.engine.models.keys import TINKER
from rolegraph.engine.records import RunFolder, Source
from rolegraph.engine.rllm_bridge.backends import INSTALL, TRAITS, has_rllm, need_backend
from rolegraph.engine.rllm_bridge.checks import findings
from rolegraph.engine.rllm_bridge.compose import as_yaml, compose, rllm_keys, verl_config
from rolegraph.engine.rllm_bridge.config import (
    Launch,
    as_hydra,
    context_in,
    folder_of,
    overrides,
    removals,
    split_overrides,
)
from rolegraph.engine.rllm_bridge.estimators import custom_estimators, estimator_map, hook_reasons
from rolegraph.engine.rllm_bridge.prepared import other_models
from rolegraph.engine.spec import Diagnostic, ModelRef
from rolegraph.engine.training.schedule import planned_steps


@dataclass(frozen=True, slots=True)
class RllmJob:
    """Checked spec, ready for rLLM's trainer."""

    source: Source
    """Spec with its overrides, without those of rLLM's config."""
    rllm_overrides: tuple[str, ...]
    """Overrides of rLLM's config from the command line."""
    run: Launch
    warnings: tuple[Diagnostic, ...]

    def hydra_overrides(self) -> list[str]:
        """Return all overrides that rLLM's config is composed with; the command line's come last."""
        return [*removals(self.run), *as_hydra(overrides(self.run)), *self.rllm_overrides]


def for_backend(backend: str, words: Sequence[str]) -> tuple[list[str], list[str], PlanCheck]:
    """Prepare the check of a spec for a backend.

    Args:
        backend: one of rLLM's, or `package.module:Class`.
        words: overrides of the spec and of rLLM's config, mixed.

    Returns:
        The overrides of the spec, those of rLLM's config, and the check for the compiler to call.

    Raises:
        UsageError: for an unknown backend.
    """
    try:
        kind = kind_of(backend)
    except ValueError as error:
        raise UsageError(str(error)) from error
    spec_words, for_rllm = split_overrides(words)
    check = partial(findings, backend=kind, overrides=for_rllm, known_keys=rllm_keys())
    return spec_words, for_rllm, check


def prepare(
    source: Source,
    backend: str,
    *,
    seed: int = 0,
    folder: Path | None = None,
    resume: bool = False,
    trackers: Sequence[str] = (),
) -> RllmJob:
    """Compile a spec and check it for a backend.

    Args:
        source: the spec; its overrides are those of the spec and of rLLM's config, mixed.
        backend: one of rLLM's, or a class of your own as `package.module:Class`.
        seed: seed of the data order.
        folder: folder of the checkpoints; None leaves it to rLLM.
        resume: continue at the folder's last checkpoint.
        trackers: names of trackers, besides the console.

    Raises:
        SpecError: for a faulty spec, or one that the backend cannot train.
        UsageError: for a missing file or an unknown backend, and for a key that would be sent to a URL which
            only the spec names.
    """
    spec_words, for_rllm, further = for_backend(backend, source.overrides)
    source = replace(source, overrides=tuple(spec_words))
    compiled = check_source(source, further, runs=True)
    plan = compiled.valid()
    kind = kind_of(backend)
    _check_keys(plan.spec.model, kind, source.base_url)
    rows = sum(1 for _ in plan.data["train"].rows(None))
    steps = planned_steps(plan.spec.train, rows)
    run = Launch(
        plan,
        kind,
        backend_class=backend if kind == "custom" else None,
        context=context_in(folder_of(plan.spec.model)),
        rows=rows,
        steps=steps,
        seed=seed,
        folder=None if folder is None else str(folder),
        resume=resume,
        trackers=trackers,
    )
    return RllmJob(source, rllm_overrides=tuple(for_rllm), run=run, warnings=compiled.diagnostics)


def _check_keys(ref: ModelRef, backend: Backend, trusted_url: str | None) -> None:
    """Raise UsageError if rLLM would send the environment's key to a URL that only the spec names."""
    rule = TRAITS[backend].key
    if rule is not None and ref.base_url is not None:
        url = rule.url(ref.base_url)
        if not rule.trusts(url, trusted_url):
            raise UsageError(rule.withheld(url))


def describe(job: RllmJob) -> str:
    """Return the launch as YAML: the composed config, or the overrides alone if rLLM is not installed."""
    run = job.run
    plain: dict[str, Any] = {
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
        return "\n".join([*head, _yaml({**plain, "overrides": job.hydra_overrides()})])
    if TRAITS[run.backend].composes_verl_config and verl_config() is None:
        head.append("# verl is not installed: its keys are those of the copy that rLLM carries.")
    head += [f"# {line}" for line in _yaml({"given in Python": plain}).splitlines()]
    return "\n".join([*head, as_yaml(compose(job.hydra_overrides(), run.backend))])


def launch(job: RllmJob) -> None:
    """Train with rLLM's trainer; local models are served until it ends.

    Raises:
        UsageError: if rLLM or the backend is not installed, and for an override that hydra refuses.
    """
    need_backend(job.run.backend)
    from rolegraph.engine.rllm_bridge.trainer import backend_class, trainer

    if job.run.backend_class is not None:
        backend_class(job.run.backend_class)
    compose(job.hydra_overrides(), job.run.backend)  # reports a wrong key before a model is loaded
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    with served(job.run) as (run, services):
        words = replace(job, run=with_context(run, job.source.base_url)).hydra_overrides()
        trainer(run, words, services).train()


def with_context(run: Launch, trusted_url: str | None) -> Launch:
    """Return the run with the model's context by its Tinker service, if the context is unknown."""
    if not TRAITS[run.backend].speaks_tinker or run.context is not None:
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
    return TRAITS[run.backend].speaks_tinker and run.plan.spec.model.served_here


@contextmanager
def served(run: Launch) -> Generator[tuple[Launch, Services], None, None]:
    """Serve a run's local models for the time of the block.

    The policy's key is in the environment meanwhile, where rLLM reads it.

    Args:
        run: the run.

    Yields:
        The run with its policy's URL, and the services, which open the other models.
    """
    state = None if run.folder is None else RunFolder(Path(run.folder)).weights
    with ExitStack() as stack:
        services = stack.enter_context(Services(state_dir=state))
        for ref in other_models(run.plan):
            services.locate(ref)
        if is_served(run):
            policy = services.locate(run.plan.spec.model)
            stack.enter_context(_environment(TINKER.key_variable, policy.api_key or ""))
            run = replace(run, base_url=policy.ref.base_url)
        yield run, services


@contextmanager
def _environment(variable: str, value: str) -> Generator[None, None, None]:
    """Set an environment variable for the time of the block."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100).rstrip()
