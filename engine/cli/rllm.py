"""rLLM's trainer, which `train --trainer rllm` starts, and `eject`, which writes specs for other trainers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli import options
from rolegraph.rllm import RllmJob, describe, estimator_map, launch, prepare, script


def train_with_rllm(
    source: rg.Source,
    backend: str,
    *,
    print_config: bool,
    folder: Path | None,
    resume: bool,
    **settings: Any,
) -> int:
    """Start rLLM's trainer on a spec, or print the config that it would be started with.

    Args:
        source: The spec, which is needed with `resume`, too.
        backend: A backend of rLLM, or one of your own as `package.module:Class`.
        print_config: Whether to print the config and return.
        folder: Folder of the training; required with `resume`.
        resume: Whether to continue the training in `folder`.
        settings: `seed` of the order of the data, and `trackers` that metrics are sent to.

    Returns:
        The exit code, 0.
    """
    if resume and folder is None:
        raise rg.UsageError("--resume with --trainer rllm needs --out, the training's folder")
    folder = folder or rg.new_folder(f"{Path(source.named_spec).stem}-rllm")
    job = prepare(source, backend, folder=folder, resume=resume, **settings)
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


@click.command("eject")
@options.source("The model to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@options.backend(default="tinker")
@options.seed("Seed of the order of the data.")
@options.path("--out", "out", "FILE.py", "File of the script. Default: standard output.")
@options.path("--verifiers", "verifiers", "DIR", "New folder of an environment package for verifiers.")
@options.path("--slime", "slime", "DIR", "New folder of a module for slime.")
def command(
    source: rg.Source, backend: str, seed: int, out: Path | None, verifiers: Path | None, slime: Path | None
) -> int:
    """Write a script that trains SPEC as `rolegraph train SPEC --trainer rllm` does, to read and change.

    With --verifiers or --slime, write a folder for that project instead.
    """
    if sum(path is not None for path in (out, verifiers, slime)) > 1:
        raise rg.UsageError("--out, --verifiers and --slime exclude each other")
    if verifiers is not None:
        rg.eject_verifiers(source, verifiers)
        click.echo(f"wrote {verifiers}; install it with: pip install -e {verifiers}")
        return 0
    if slime is not None:
        rg.eject_slime(source, slime)
        click.echo(f"wrote {slime}; the arguments of slime are in {slime / 'arguments.sh'}")
        return 0
    job = prepare(source, backend, seed=seed)
    show_warnings(job)
    text = script(job)
    if out is None:
        click.echo(text, nl=False)
        return 0
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise rg.UsageError(f"{out} already exists; choose another file with --out") from None
    except OSError as error:
        raise rg.UsageError(f"cannot write {out}: {error.strerror}") from error
    click.echo(f"wrote {out}; run it with: python {out}")
    return 0
