"""`rolegraph train SPEC`: a training of a spec's roles, new or resumed."""

from __future__ import annotations

from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import options
from rolegraph.engine.cli.output import OutputOptions
from rolegraph.engine.cli.waiting import run_until_done


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
@click.option(
    "--track",
    type=click.Choice(["tensorboard", "wandb", "mlflow", "trackio"]),
    multiple=True,
    help="Send metrics, episodes and the report to a tracker as well.",
)
@click.option(
    "--trainer",
    type=click.Choice(["rolegraph", "rllm"]),
    default="rolegraph",
    show_default=True,
    help="The training loop: this project's, or rLLM's AgentTrainer.",
)
@options.text(
    "--rollouts-on",
    "CLUSTER",
    "Ray cluster that makes the episodes: ray (of RAY_ADDRESS or this machine), ray://HOST:PORT, HOST:PORT.",
)
@options.backend("rLLM's backend, or a class of your own.")
@options.otlp("Send each finished episode as spans to an OpenTelemetry collector.")
@options.flag("--print-config", "Print rLLM's config and stop.")
@options.output
def command(
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
        from rolegraph.engine.cli.rllm import train_with_rllm

        return train_with_rllm(
            source,
            backend or "tinker",
            print_config=print_config,
            folder=out,
            resume=resume,
            seed=seed or 0,
            trackers=track,
        )
    if backend is not None or print_config:
        raise click.UsageError("--backend and --print-config go with --trainer rllm")
    if multirun:
        from rolegraph.engine.cli.sweep import run_sweep

        output.check_single("training")
        return run_sweep("train", source, out, {"seed": seed or 0}, resume=resume, track=track)
    from rolegraph.engine.cli.train_display import train_display

    if resume:
        job = rg.TrainingJob.resume(out, source, seed=seed)
    else:
        job = rg.TrainingJob.create(rg.open_source(source), out=out, seed=seed or 0)
    with train_display(job, output) as display, otlp.traced(job, display) as observe:
        run_until_done(job.run(observe, track, rollouts_on=rollouts_on))
    return 0
