"""`rolegraph train --trainer rllm`, and the warnings that `eject` prints, too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import click

from rolegraph import UsageError, new_folder
from rolegraph.rllm import RllmJob, describe, estimator_map, launch, prepare


def train_with_rllm(
    spec: str | None,
    words: Sequence[str],
    backend: str,
    *,
    print_config: bool,
    model: str | None,
    base_url: str | None,
    imports: Sequence[Path],
    allow: Sequence[str],
    seed: int,
    folder: Path | None,
    resume: bool,
    trackers: Sequence[str],
) -> int:
    """Launch rLLM's trainer on a spec, or with `print_config` print its config."""
    if spec is None:
        raise UsageError("--trainer rllm needs a SPEC, with --resume too")
    if resume and folder is None:
        raise UsageError("--trainer rllm --resume needs --out, the folder to resume")
    job = prepare(
        spec,
        words,
        backend,
        model=model,
        base_url=base_url,
        imports=imports,
        allow=allow,
        seed=seed,
        folder=folder or new_folder(f"{Path(spec).stem}-rllm"),
        resume=resume,
        trackers=trackers,
    )
    show_warnings(job)
    if print_config:
        click.echo(describe(job))
        return 0
    # The grouping hook logs the estimator of each role's advantages.
    log = logging.getLogger("rolegraph.engine.rllm_bridge")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    log.propagate = False
    for role, estimator in estimator_map(job.run.plan, job.run.backend).items():
        click.echo(
            f"{role}: {' with '.join(estimator) if isinstance(estimator, tuple) else estimator}", err=True
        )
    launch(job)
    return 0


def show_warnings(job: RllmJob) -> None:
    """Print a job's warnings to standard error."""
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
