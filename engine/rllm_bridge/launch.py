"""A spec, trained by rLLM's own AgentTrainer: checks it for the backend, composes the config, and starts it.

Whatever needs rLLM is imported where it is used, so that checking and showing work without it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.backends import kind_of
from rolegraph.engine.compile import Further, check_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.keys import TINKER, KeyRule
from rolegraph.engine.rllm_bridge.checks import findings
from rolegraph.engine.rllm_bridge.compose import as_yaml, compose
from rolegraph.engine.rllm_bridge.config import (
    Launch,
    as_words,
    context_in,
    folder_of,
    overrides,
    split_words,
    unset,
)
from rolegraph.engine.rllm_bridge.estimators import custom_estimators, estimator_map, hook_reasons
from rolegraph.engine.rllm_bridge.installed import INSTALL, has_rllm, has_verl, require
from rolegraph.engine.rllm_bridge.services import is_served, served
from rolegraph.engine.spec import Diagnostic, ModelRef
from rolegraph.engine.vocabulary import import_file

FIREWORKS = KeyRule("FIREWORKS_API_KEY", "FIREWORKS_BASE_URL", "https://api.fireworks.ai")


@dataclass(frozen=True, slots=True)
class RllmJob:
    """A spec that the backend can train, and how."""

    spec: str
    words: tuple[str, ...]
    """The overrides of the spec."""
    model: str | None
    base_url: str | None
    imports: tuple[str, ...]
    """Python files that make vocabulary known."""
    allow: tuple[str, ...]
    """What the spec may use."""
    passed: tuple[str, ...]
    """The words for rLLM, which come last."""
    run: Launch
    warnings: tuple[Diagnostic, ...]

    def overrides(self) -> list[str]:
        """Everything that rLLM's config is composed with, as hydra reads it."""
        return [*unset(self.run), *as_words(overrides(self.run)), *self.passed]


def for_backend(backend: str, words: Sequence[str]) -> tuple[list[str], list[str], Further]:
    """The overrides of the spec, the words for rLLM, and the check for what the backend would not do."""
    try:
        kind = kind_of(backend)
    except ValueError as error:
        raise UsageError(str(error)) from error
    spec_words, passed = split_words(words)
    return spec_words, passed, partial(findings, backend=kind, words=passed)


def prepare(
    spec: str,
    words: Sequence[str],
    backend: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    imports: Sequence[Path] = (),
    allow: Sequence[str] = (),
    seed: int = 0,
    folder: Path | None = None,
    resume: bool = False,
    trackers: Sequence[str] = (),
) -> RllmJob:
    """Compile and check a spec for a backend of rLLM's, or one of your own as `package.module:Class`.

    Raises SpecError, or UsageError where there is no file.
    """
    spec_words, passed, further = for_backend(backend, words)
    imported = [import_file(file) for file in imports]
    compiled = check_file(
        spec,
        spec_words,
        further,
        model=model,
        base_url=base_url,
        imports=imported,
        allow=allow,
        runs=True,
    )
    plan = compiled.valid()
    kind = kind_of(backend)
    _check_keys(plan.spec.model, kind, base_url)
    from rolegraph.engine.training.schedule import planned_steps

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
    return RllmJob(
        spec,
        words=tuple(spec_words),
        model=model,
        base_url=base_url,
        imports=tuple(str(file) for file in imports),
        allow=tuple(allow),
        passed=tuple(passed),
        run=run,
        warnings=compiled.diagnostics,
    )


def _check_keys(ref: ModelRef, backend: str, trusted_url: str | None) -> None:
    """Raises UsageError where rLLM would send the environment's key to a URL that only the spec names."""
    rule = {"tinker": TINKER, "fireworks": FIREWORKS}.get(backend)
    if rule is not None and ref.base_url is not None:
        url = rule.url(ref.base_url)
        if not rule.trusts(url, trusted_url):
            raise UsageError(rule.withheld(url))


def describe(job: RllmJob) -> str:
    """What would be launched, as YAML: the composed config, or without rLLM the overrides alone."""
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
        body = _yaml({**plain, "overrides": job.overrides()})
        return "\n".join([*head, body])
    if run.backend == "verl" and not has_verl():
        head.append("# verl is not installed: its keys are those of the copy that rLLM carries.")
    head += [f"# {line}" for line in _yaml({"given in Python": plain}).splitlines()]
    return "\n".join([*head, as_yaml(compose(job.overrides(), run.backend))])


def launch(job: RllmJob) -> None:
    """Train. A local model on tinker is served for the time of the run."""
    require(job.run.backend)
    from rolegraph.engine.rllm_bridge.trainer import backend_class, trainer

    if job.run.backend_class is not None:
        backend_class(job.run.backend_class)
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    with served(job.run) as (run, services):
        words = replace(job, run=with_context(run, job.base_url)).overrides()
        trainer(run, words, services).train()


def with_context(run: Launch, trusted_url: str | None) -> Launch:
    """The run with as much context as its Tinker service says that the model has, where nobody knew."""
    if run.backend != "tinker" or run.context is not None:
        return run
    # Imported here, because the SDK is slow to load.
    from rolegraph.engine.models.tinker_open import open_session

    session = asyncio.run(open_session(run.plan.spec.model, trusted_url=trusted_url))
    session.service.close("success")
    return replace(run, context=session.lengths.get(run.plan.spec.model.name or ""))


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100).rstrip()
