"""`rolegraph train SPEC`, here or under rLLM's trainer, and `rolegraph eject`, a spec for other trainers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

import rolegraph as rg
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions
from rolegraph.cli.terminal import run_until_done

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


@click.command("train")
@options.source(
    "The model to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.",
    "A Tinker service to train on, in place of one started for the run.",
    required=False,
)
@options.path("--out", "out", "FOLDER", "Folder of the training. Default: runs/NAME-TIME.")
@options.seed("Seed of data order, draws and the adapter. Default: 0.", None)
@options.flag("--resume", "Continue the newest training, or --out, at its last checkpoint.")
@options.multirun
@options.choice(
    "--track", TRACKERS, "Send metrics, episodes and the report to a tracker as well.", multiple=True
)
@options.choice("--trainer", ("rolegraph", "rllm"), "This project's loop, or rLLM's.", default="rolegraph")
@options.cluster("--rollouts-on")
@options.backend("rLLM's backend, or a class of your own.")
@options.otlp("Send each finished episode as spans to an OpenTelemetry collector.")
@options.flag("--print-config", "Print rLLM's config and stop.")
@options.output
def train_command(
    source: rg.Source,
    out: Path | None,
    seed: int | None,
    resume: bool,
    multirun: bool,
    track: tuple[rg.TrackerName, ...],
    trainer: str,
    rollouts_on: str | None,
    backend: str | None,
    otlp: options.OtlpOptions,
    print_config: bool,
    output: OutputOptions,
) -> int:
    """Train every trainable role of SPEC (a file, or the name of a shipped spec), as its `train` says.

    KEY.PATH=VALUE changes a value of the spec, as in train.steps=50 or train.learning_rate=0.001. With
    --resume the spec and its overrides are those that the training was started with. With -m there is a
    training for each combination of values, in folders of one sweep. With --trainer rllm, words that begin
    with `rllm.` or `++` change rLLM's config.
    """
    if (otlp.url or rollouts_on) and (multirun or trainer == "rllm"):
        raise click.UsageError("--otlp and --rollouts-on go with one training of this project's own loop")
    if trainer == "rllm":
        if multirun:
            raise click.UsageError("-m goes with this project's own loop, not with --trainer rllm")
        if output.quiet or output.as_json:
            raise click.UsageError("--quiet and --json go with --trainer rolegraph")
        settings: dict[str, Any] = {"resume": resume, "seed": seed or 0, "trackers": track}
        return _train_with_rllm(source, backend or "tinker", out, print_config=print_config, **settings)
    if backend is not None or print_config:
        raise click.UsageError("--backend and --print-config go with --trainer rllm")
    if multirun:
        from rolegraph.cli.running import run_sweep

        output.check_single("training")
        return run_sweep("train", source, out, {"seed": seed or 0}, resume=resume, track=track)
    from rolegraph.cli.train_display import train_display

    if resume:
        job = rg.TrainingJob.resume(out, source, seed=seed)
    else:
        job = rg.TrainingJob.create(rg.open_source(source), out=out, seed=seed or 0)
    with train_display(job, output) as display, otlp.traced(job, display) as observe:
        run_until_done(job.run(observe, track, rollouts_on=rollouts_on))
    return 0


def _train_with_rllm(
    source: rg.Source, backend: str, folder: Path | None, *, print_config: bool, resume: bool, **settings: Any
) -> int:
    """Start rLLM's trainer on a spec, or print the config that it would be started with.

    Args:
        source: The spec, which is needed with `resume`, too.
        backend: A backend of rLLM, or one of your own as `package.module:Class`.
        folder: Folder of the training; required with `resume`.
        print_config: Whether to print the config and return.
        resume: Whether to continue the training in `folder`.
        settings: `seed` of the order of the data, and `trackers` that metrics are sent to.

    Returns:
        The exit code, 0.
    """
    from rolegraph.integrations.rllm import estimators
    from rolegraph.integrations.rllm import launch as rllm

    if resume and folder is None:
        raise rg.UsageError("--resume with --trainer rllm needs --out, the training's folder")
    folder = folder or rg.new_folder(f"{Path(source.named_spec).stem}-rllm")
    job = rllm.prepare(source, backend, folder=folder, resume=resume, **settings)
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
    if print_config:
        click.echo(rllm.describe(job))
        return 0
    # The grouping hook logs which estimator each role's advantages came from.
    log = logging.getLogger("rolegraph.integrations.rllm")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    log.propagate = False
    for role, estimator in estimators.estimator_map(job.run.plan, job.run.backend).items():
        names = " with ".join(estimator) if isinstance(estimator, tuple) else estimator
        click.echo(f"{role}: {names}", err=True)
    rllm.launch(job)
    return 0


@click.command("eject")
@options.source("The model to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@options.backend(default="tinker")
@options.seed("Seed of the order of the data.")
@options.path("--out", "out", "FILE.py", "File of the script. Default: standard output.")
@options.path("--verifiers", "verifiers", "DIR", "New folder of an environment package for verifiers.")
def eject_command(
    source: rg.Source, backend: str, seed: int, out: Path | None, verifiers: Path | None
) -> int:
    """Write a script that trains SPEC as `rolegraph train SPEC --trainer rllm` does, to read and change.

    With --verifiers, write a folder for that project instead.
    """
    from rolegraph.integrations.rllm import launch as rllm

    if out is not None and verifiers is not None:
        raise rg.UsageError("--out and --verifiers exclude each other")
    if verifiers is not None:
        from rolegraph.integrations.verifiers import eject_verifiers

        eject_verifiers(source, verifiers)
        click.echo(f"wrote {verifiers}; install it with: pip install -e {verifiers}")
        return 0
    job = rllm.prepare(source, backend, seed=seed)
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
    if out is None:
        click.echo(rllm.script(job), nl=False)
        return 0
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(rllm.script(job))
    except FileExistsError:
        raise rg.UsageError(f"{out} already exists; choose another file with --out") from None
    except OSError as error:
        raise rg.UsageError(f"cannot write {out}: {error.strerror}") from error
    click.echo(f"wrote {out}; run it with: python {out}")
    return 0
