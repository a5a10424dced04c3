"""rLLM's part of the command: `train --trainer rllm`, `eject` and `validate --backend`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.api.jobs import new_folder
from rolegraph.engine.compile import PlanCheck
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Source

if TYPE_CHECKING:
    from rolegraph.integrations.rllm.launch import RllmJob

DEFAULT_BACKEND = "tinker"


def check(source: Source, backend: str) -> tuple[Source, PlanCheck]:
    """Return the source without overrides of rLLM's config, and the check of a backend.

    Args:
        source: The spec; overrides that begin with `rllm.` or `++` are of rLLM's config.
        backend: One of rLLM's, or a class as `package.module:Class`.

    Raises:
        UsageError: The backend is unknown.
    """
    from rolegraph.integrations.rllm.launch import for_backend

    words, _, findings = for_backend(backend, source.overrides)
    return replace(source, overrides=tuple(words)), findings


def train(
    source: Source,
    folder: Path | None,
    say: Callable[[str], None],
    *,
    backend: str | None,
    seed: int,
    resume: bool,
    trackers: Sequence[str],
) -> None:
    """Train a spec with rLLM's trainer.

    Args:
        source: The spec, which is needed with `resume`, too.
        folder: Folder of the training; required with `resume`.
        say: Function that is called with each message.
        backend: One of rLLM's, or a class as `package.module:Class`.
        seed: Seed of the order of the data.
        resume: True to continue the training in `folder`.
        trackers: Names of trackers that metrics are sent to.

    Raises:
        SpecError: The spec is faulty, or the backend cannot train it.
        UsageError: rLLM is not installed, or `resume` has no folder.
    """
    from rolegraph.integrations.rllm.estimators import estimator_map
    from rolegraph.integrations.rllm.launch import launch

    if resume and folder is None:
        raise UsageError("--resume with --trainer rllm needs --out, the training's folder")
    folder = folder or new_folder(f"{Path(source.named_spec).stem}-rllm")
    job = _prepared(source, backend, folder, say, seed=seed, resume=resume, trackers=trackers)
    # The grouping hook logs which estimator each role's advantages came from.
    log = logging.getLogger("rolegraph.integrations.rllm")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    log.propagate = False
    for role, estimator in estimator_map(job.run.plan, job.run.backend).items():
        say(f"{role}: {' with '.join(estimator) if isinstance(estimator, tuple) else estimator}")
    launch(job)


def config(
    source: Source,
    folder: Path | None,
    say: Callable[[str], None],
    *,
    backend: str | None,
    seed: int,
    resume: bool,
    trackers: Sequence[str],
) -> str:
    """Return the config that `train` would start rLLM's trainer with, as YAML; arguments as for `train`."""
    from rolegraph.integrations.rllm.launch import describe

    folder = folder or new_folder(f"{Path(source.named_spec).stem}-rllm")
    return describe(_prepared(source, backend, folder, say, seed=seed, resume=resume, trackers=trackers))


def script(source: Source, say: Callable[[str], None], *, backend: str | None, seed: int) -> str:
    """Return a Python script that trains a spec as `train` does."""
    from rolegraph.integrations.rllm import launch

    return launch.script(_prepared(source, backend, None, say, seed=seed, resume=False, trackers=()))


def _prepared(
    source: Source,
    backend: str | None,
    folder: Path | None,
    say: Callable[[str], None],
    *,
    seed: int,
    resume: bool,
    trackers: Sequence[str],
) -> RllmJob:
    """Compile a spec for a backend, and say its warnings."""
    from rolegraph.integrations.rllm.launch import prepare

    backend = backend or DEFAULT_BACKEND
    job = prepare(source, backend, seed=seed, folder=folder, resume=resume, trackers=trackers)
    for warning in job.warnings:
        say(f"{warning}\n")
    return job
