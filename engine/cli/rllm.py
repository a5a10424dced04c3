"""rLLM's trainer for `train --trainer rllm`, and the warnings that `eject` shows, too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import click

import rolegraph as rg
from rolegraph.rllm import RllmJob, describe, estimator_map, launch, prepare


def train_with_rllm(
    source: rg.Source,
    backend: str,
    *,
    print_config: bool,
    seed: int,
    folder: Path | None,
    resume: bool,
    trackers: Sequence[str],
) -> int:
    """Start rLLM's trainer on a spec, or print the config that it would be started with.

    Args:
        source: The spec, which is needed with `resume`, too.
        backend: A backend of rLLM, or one of your own as `package.module:Class`.
        print_config: Whether to print the config and return.
        seed: Seed of the order of the data.
        folder: Folder of the training; required with `resume`.
        resume: Whether to continue the training in `folder`.
        trackers: Names of the trackers that metrics are sent to.

    Returns:
        The exit code, 0.
    """
    if resume and folder is None:
        raise rg.UsageError("--resume with --trainer rllm needs --out, the training's folder")
    folder = folder or rg.new_folder(f"{Path(source.named_spec).stem}-rllm")
    job = prepare(source, backend, seed=seed, folder=folder, resume=resume, trackers=trackers)
    show_warnings(job)
    if print_config:
        click.echo(describe(job))
        return 0
    # The grouping hook logs which estimator each role's advantages came from.
    log = logging.getLogger("rolegraph.engine.rllm_bridge")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    log.propagate = False
    for role, estimator in estimator_map(job.run.plan, job.run.backend).items():
        names = " with ".join(estimator) if isinstance(estimator, tuple) else estimator
        click.echo(f"{role}: {names}", err=True)
    launch(job)
    return 0


def show_warnings(job: RllmJob) -> None:
    """Print a job's warnings to standard error."""
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
