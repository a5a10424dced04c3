"""What `train --trainer rllm` and `eject` share: a spec made ready for rLLM, its warnings shown."""

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
    """Launch rLLM's trainer on a spec, or show what it would be launched with."""
    if spec is None:
        raise UsageError("which spec? --trainer rllm needs it, with --resume too")
    if resume and folder is None:
        raise UsageError("which run? --trainer rllm resumes the folder that --out names")
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
    # The grouping hook says in its log by which estimator each role's advantages came.
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
    """Write the warnings of a spec to standard error."""
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
